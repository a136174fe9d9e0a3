// A message of the policy protocol; what decodes is also read as numbers and as text.
#include <cstddef>
#include <cstdint>

#include "fuzz.h"
#include "wire/message.h"

namespace {

void read(const tendon::WireValue& value) {
  using namespace tendon;
  fuzz::only_bad_input([&] { (void)to_numbers(value, "x"); });
  fuzz::only_bad_input([&] { (void)to_text(value, "x"); });
  fuzz::only_bad_input([&] { (void)shape_of(value, "x"); });
  if (value.describe().empty()) std::abort();
  if (const auto* map = value.get_if<WireMap>()) {
    for (const WireEntry& entry : *map) read(entry.value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace tendon;
  fuzz::only_bad_input([&] { read(decode_begun({reinterpret_cast<const std::byte*>(data), bytes})); });
  fuzz::only_bad_input([&] { read(decode_message({reinterpret_cast<const std::byte*>(data), bytes})); });
  return 0;
}
