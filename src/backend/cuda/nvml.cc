#include "backend/cuda/nvml.h"

#include <dlfcn.h>

#include "backend/cuda/slowing_reasons.h"

namespace tendon {
namespace {

constexpr unsigned kSmClock = 1;      // NVML_CLOCK_SM
constexpr unsigned kMemoryClock = 2;  // NVML_CLOCK_MEM

}  // namespace

template <class F>
bool Nvml::find(F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(library_, name));
  if (function == nullptr) missing_ = std::string("the library NVML has no function ") + name;
  return function != nullptr;
}

Nvml::Nvml(const std::string& pci_bus_id) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    missing_ = "the library NVML (libnvidia-ml.so.1) cannot be opened";
    return;
  }
  if (!find(error_, "nvmlErrorString") || !find(init_, "nvmlInit_v2") || !find(shutdown_, "nvmlShutdown") ||
      !find(handle_, "nvmlDeviceGetHandleByPciBusId_v2") || !find(driver_, "nvmlSystemGetDriverVersion") ||
      !find(energy_mj_, "nvmlDeviceGetTotalEnergyConsumption") || !find(clock_mhz_, "nvmlDeviceGetClockInfo")) {
    init_ = nullptr;
    return;
  }
  power_mw_ = reinterpret_cast<decltype(power_mw_)>(dlsym(library_, "nvmlDeviceGetPowerUsage"));
  temperature_ = reinterpret_cast<decltype(temperature_)>(dlsym(library_, "nvmlDeviceGetTemperature"));
  slowed_by_ = reinterpret_cast<decltype(slowed_by_)>(dlsym(library_, "nvmlDeviceGetCurrentClocksThrottleReasons"));
  if (const int status = init_(); status != 0) {
    missing_ = std::string("NVML does not start: ") + error_(status);
    init_ = nullptr;
    return;
  }
  char text[96] = {};
  if (driver_(text, sizeof(text)) == 0) driver_version_ = text;
  if (const int status = handle_(pci_bus_id.c_str(), &card_); status != 0) {
    missing_ = "NVML does not know the card at " + pci_bus_id + ": " + error_(status);
    card_ = nullptr;
  }
}

Nvml::~Nvml() {
  if (init_ != nullptr) shutdown_();
  if (library_ != nullptr) dlclose(library_);
}

DeviceSensors Nvml::read() const {
  DeviceSensors sensors{.missing = missing_};
  if (card_ == nullptr) return sensors;
  unsigned long long energy = 0;
  if (const int status = energy_mj_(card_, &energy); status == 0) {
    sensors.energy_j = static_cast<double>(energy) * 1e-3;
  } else {
    sensors.missing = std::string("NVML reads no energy counter: ") + error_(status);
  }
  unsigned mhz = 0;
  if (clock_mhz_(card_, kSmClock, &mhz) == 0) sensors.core_mhz = mhz;
  if (clock_mhz_(card_, kMemoryClock, &mhz) == 0) sensors.memory_mhz = mhz;
  unsigned mw = 0;
  if (power_mw_ != nullptr && power_mw_(card_, &mw) == 0) sensors.power_w = static_cast<double>(mw) * 1e-3;
  unsigned celsius = 0;
  if (temperature_ != nullptr && temperature_(card_, 0, &celsius) == 0) sensors.temperature_c = celsius;
  unsigned long long reasons = 0;
  if (slowed_by_ != nullptr && slowed_by_(card_, &reasons) == 0) sensors.slowed_by = slowing_reasons(reasons);
  return sensors;
}

}  // namespace tendon
