// What a connection to the server's socket sends: HTTP of any kind.
#include "fuzz.h"
#include "served.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  tendon::fuzz::talk_to_server(std::string(tendon::fuzz::to_text(data, bytes)));
  return 0;
}
