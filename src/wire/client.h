// A client of the policy protocol, as simple as openpi's: connect, one message out, one message in.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tendon {

struct ClientOptions {
  std::string api_key = {};  // sent as "Authorization: Api-Key …" unless empty
  double timeout_s = 60;     // of every step
};

struct Frame {
  bool is_text = false;  // text frames carry errors
  std::string bytes;
};

class WireClient {
 public:
  // `url` is ws://HOST:PORT, with or without a path. The first frame of an openpi server, its metadata, is left to
  // read(). All functions throw Error(kBadInput) with the address and the reason when the connection cannot be made,
  // breaks, is closed (with code and reason) or is silent for too long.
  explicit WireClient(const std::string& url, const ClientOptions& options = {});
  ~WireClient();
  WireClient(WireClient&&) noexcept;

  Frame read();
  void write(std::string_view message);
  // With the closing handshake; a destroyed client just hangs up, as openpi's.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tendon
