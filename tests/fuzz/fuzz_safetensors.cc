// Any bytes as a .safetensors file, then as a checkpoint: header, spans, key styles, embedding rule, variant.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace tendon;
  fuzz::only_bad_input([&] {
    const auto* begin = reinterpret_cast<const std::byte*>(data);
    SafetensorsFile file = SafetensorsFile::from_memory({begin, begin + bytes}, "fuzz.safetensors");
    for (const SafetensorsEntry& entry : file.entries()) {
      // Reads every byte through the typed view, so that a wrong pointer is seen.
      if (to_doubles(file.tensor(entry.name)).size() != static_cast<size_t>(entry.shape.elements())) std::abort();
    }
    std::vector<SafetensorsFile> files;
    files.push_back(std::move(file));
    const auto checkpoint = Checkpoint::from_files(std::move(files), {});
    for (const std::string& name : checkpoint->names()) {
      if (!checkpoint->tensor(name).defined() || checkpoint->stored_name(name).size() > bytes) std::abort();
    }
    (void)checkpoint->dtype_summary();
    (void)checkpoint_variant(*checkpoint);
  });
  return 0;
}
