#include "served.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "server/pages.h"
#include "server/server.h"
#include "wire/message.h"

const std::string_view tendon::kStatusPage = "status";

namespace tendon::fuzz {
namespace {

struct FuzzJob : Job {};

// Takes every message that decodes; the answer is always the same.
class FuzzModel : public Model {
 public:
  std::unique_ptr<Job> prepare(std::span<const std::byte> message, Intake*) override {
    decode_message(message);
    return std::make_unique<FuzzJob>();
  }
  std::vector<Outcome> infer(std::span<Job* const> batch) override {
    std::vector<Outcome> outcomes(batch.size());
    for (Outcome& outcome : outcomes) {
      outcome.chunk.horizon = outcome.chunk.width = 1;
      outcome.chunk.actions = {1.0};
    }
    return outcomes;
  }
};

// Lives as long as the program; libFuzzer ends it with exit.
struct Target {
  ServerOptions options{.port = 0, .max_message_bytes = 4096, .max_clients = 100000};
  Server server{options};
  FuzzModel model;
  Metrics metrics{ServerInfo{}};
  std::string metadata = WireWriter().map(0).take();
  std::thread thread{[this] { server.run(model, metrics, metadata); }};
  int port = server.port();
};

Target& target() {
  static Target* const made = new Target;
  return *made;
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 2000; ++i) {
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
    usleep(1000);  // not listening yet
  }
  std::abort();
}

}  // namespace

void talk_to_server(const std::string& bytes) {
  const int fd = connect_to(target().port);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;  // the server has closed
    sent += static_cast<size_t>(n);
  }
  ::shutdown(fd, SHUT_WR);
  char buffer[4096];
  for (;;) {
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, 30000) == 0) std::abort();
    if (::recv(fd, buffer, sizeof(buffer), 0) <= 0) break;
  }
  const linger now{1, 0};  // no TIME_WAIT: ports would run out
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  ::close(fd);
}

}  // namespace tendon::fuzz
