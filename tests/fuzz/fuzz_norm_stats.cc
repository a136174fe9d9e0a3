// The first byte chooses: openpi's norm_stats.json (two modes) or a processor file of LeRobot; the rest is the text.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/norm_stats.h"
#include "checkpoint/stats_files.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace tendon;
  if (bytes == 0) return 0;
  const std::string_view text = fuzz::to_text(data + 1, bytes - 1);
  fuzz::only_bad_input([&] {
    if (data[0] % 3 == 2) {
      (void)parse_normalizer_step(text, "policy_preprocessor.json", "normalizer_processor");
      return;
    }
    const NormMode mode = data[0] % 3 == 0 ? NormMode::kMeanStd : NormMode::kQuantile;
    const NormStats stats = parse_openpi_norm_stats(text, "norm_stats.json", mode);
    const std::vector<double> values(8, 0.5);
    if (unnormalize_state(stats, normalize_state(stats, values)).size() != values.size()) std::abort();
    (void)unnormalize_actions(stats, normalize_actions(stats, values, 4), 4);
  });
  return 0;
}
