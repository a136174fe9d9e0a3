// What a connection to the server's socket sends after a good handshake: WebSocket frames of any kind.
#include "fuzz.h"
#include "served.h"

namespace {

const std::string kHandshake =
    "GET / HTTP/1.1\r\nHost: fuzz\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  tendon::fuzz::talk_to_server(kHandshake + std::string(tendon::fuzz::to_text(data, bytes)));
  return 0;
}
