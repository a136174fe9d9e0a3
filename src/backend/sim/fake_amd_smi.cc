// A libamd_smi for tests: one card at 0000:c1:00.0 that draws 250 W. The environment variable TENDON_FAKE_AMD_SMI
// orders one fault: no-start, no-card, no-energy, hot, capped.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kNotSupported = 2;
constexpr int kNotFound = 31;
constexpr double kWatts = 250;
constexpr float kResolutionUj = 15.3F;
char the_card;

bool ordered(std::string_view fault) {
  const char* const given = std::getenv("TENDON_FAKE_AMD_SMI");
  return given != nullptr && given == fault;
}

}  // namespace

FAKE int amdsmi_init(uint64_t flags) { return flags == 2 && !ordered("no-start") ? 0 : kNotSupported; }
FAKE int amdsmi_get_processor_handle_from_bdf(uint64_t address, void** card) {
  *card = &the_card;
  return address == 0xc100 && !ordered("no-card") ? 0 : kNotFound;
}
FAKE int amdsmi_get_energy_count(void* card, uint64_t* count, float* resolution_uj, uint64_t* time_ns) {
  if (card != &the_card || ordered("no-energy")) return kNotSupported;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *time_ns = static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
  *count = static_cast<uint64_t>(kWatts * std::chrono::duration<double, std::micro>(now).count() / kResolutionUj);
  *resolution_uj = kResolutionUj;
  return 0;
}
FAKE int amdsmi_get_clock_info(void*, int kind, void* info) {
  if (kind != 0 && kind != 4) return kNotSupported;
  const uint32_t mhz[3] = {kind == 0 ? 2100U : 1300U, 132, kind == 0 ? 2100U : 1300U};
  std::memcpy(info, mhz, sizeof(mhz));
  return 0;
}
FAKE int amdsmi_get_temp_metric(void*, int sensor, int metric, int64_t* celsius) {
  if (sensor != 1) return kNotSupported;
  *celsius = metric == 5 ? 100 : ordered("hot") ? 98 : 55;
  return 0;
}
FAKE int amdsmi_get_power_cap_info(void*, uint32_t, uint64_t* cap_uw) {
  cap_uw[0] = ordered("capped") ? 500'000'000 : 750'000'000;
  cap_uw[1] = 750'000'000;
  return 0;
}
