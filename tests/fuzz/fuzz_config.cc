// The first byte chooses: config.json or model.safetensors.index.json; the rest is the text.
#include <cstddef>
#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace tendon;
  if (bytes == 0) return 0;
  const std::string_view text = fuzz::to_text(data + 1, bytes - 1);
  fuzz::only_bad_input([&] {
    if (data[0] % 2 == 1) {
      (void)parse_shard_index(text, "model.safetensors.index.json");
      return;
    }
    const CheckpointConfig config = parse_checkpoint_config(text, "config.json", [](LogLevel, const std::string& line) {
      if (line.size() > 4096) std::abort();
    });
    if (config.horizon.value_or(1) < 1) std::abort();
  });
  return 0;
}
