#include "backend/hip/amd_smi.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace tendon::hip {
namespace {

// amd_smi/amdsmi.h, compared in ROCm/amdsmi 057d688 and the headers of ROCm 6.0 to 7.2: the same in all of them.
using Status = int;  // amdsmi_status_t
using Processor = void*;
constexpr uint64_t kInitGpus = 2;                             // AMDSMI_INIT_AMD_GPUS
constexpr int kClockCore = 0, kClockMemory = 4;               // AMDSMI_CLK_TYPE_GFX, _MEM
constexpr int kHotSpot = 1;                                   // AMDSMI_TEMPERATURE_TYPE_HOTSPOT
constexpr int kTemperatureNow = 0, kTemperatureCritical = 5;  // AMDSMI_TEMP_CURRENT, _CRITICAL
constexpr uint32_t kNothing = 0xffffffff;                     // a number that the card does not have

// The first fields of amdsmi_clk_info_t, with room for what follows them.
struct ClockInfo {
  uint32_t now_mhz, least_mhz, most_mhz;
  uint32_t more[29];
};
// amdsmi_power_cap_info_t, likewise.
struct PowerCapInfo {
  uint64_t cap_uw, default_cap_uw;
  uint64_t more[14];
};

// Numbers go up with releases: 24 came with ROCm 6.0, 27 with ROCm 10.
constexpr const char* kFiles[] = {"libamd_smi.so", "libamd_smi.so.27", "libamd_smi.so.26", "libamd_smi.so.25",
                                  "libamd_smi.so.24"};

// amdsmi_bdf_t for "0000:c1:00.0", which functions take by value: function, device, bus and domain in 3, 5, 8 and 48
// bits, the lowest first.
std::optional<uint64_t> bus_address(const std::string& pci_bus_id) {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  unsigned function = 0;
  if (std::sscanf(pci_bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return {};
  return uint64_t{domain} << 16 | uint64_t{bus} << 8 | uint64_t{device} << 3 | function;
}

// Watts from the kernel: of this moment, or where it has no such file an average.
std::optional<double> power_w(const std::string& device_folder) {
  std::error_code ignored;
  for (const auto& monitor : std::filesystem::directory_iterator(device_folder + "/hwmon", ignored)) {
    for (const char* name : {"power1_input", "power1_average"}) {
      double uw = 0;
      if (std::ifstream(monitor.path() / name) >> uw) return uw * 1e-6;
    }
  }
  return {};
}

}  // namespace

struct AmdSmi::Library {
  Status (*start)(uint64_t flags) = nullptr;
  Status (*find_card)(uint64_t bus_address, Processor* card) = nullptr;
  Status (*energy)(Processor card, uint64_t* count, float* resolution_uj, uint64_t* time_ns) = nullptr;
  Status (*clock)(Processor card, int kind, ClockInfo* info) = nullptr;
  Status (*temperature)(Processor card, int sensor, int metric, int64_t* celsius) = nullptr;
  Status (*power_cap)(Processor card, uint32_t sensor, PowerCapInfo* info) = nullptr;  // may be absent
  std::string missing;                                                                 // why it does not work

  Library() {
    void* handle = nullptr;
    for (const char* file : kFiles) {
      if (handle == nullptr) handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle == nullptr) {
      missing = "the library AMD SMI (libamd_smi.so) cannot be opened";
      return;
    }
    const auto find = [&]<class F>(F& function, const char* name, bool needed) {
      function = reinterpret_cast<F>(dlsym(handle, name));
      if (function == nullptr && needed && missing.empty())
        missing = std::string("the library AMD SMI has no function ") + name;
    };
    find(start, "amdsmi_init", true);
    find(find_card, "amdsmi_get_processor_handle_from_bdf", true);
    find(energy, "amdsmi_get_energy_count", true);
    find(clock, "amdsmi_get_clock_info", true);
    find(temperature, "amdsmi_get_temp_metric", true);
    find(power_cap, "amdsmi_get_power_cap_info", false);
    if (!missing.empty()) return;
    if (const Status status = start(kInitGpus); status != 0)
      missing = fmt::format("AMD SMI does not start: status {}", status);
  }
  // Opened once, and never closed: cards may ask to the end of the process.
  static const Library& the() {
    static const auto* const library = new Library;
    return *library;
  }
};

AmdSmi::AmdSmi(const std::string& pci_bus_id, const std::string& sysfs)
    : device_folder_(sysfs + "/bus/pci/devices/" + pci_bus_id) {
  const Library& library = Library::the();
  missing_ = library.missing;
  if (!missing_.empty()) return;
  const std::optional<uint64_t> address = bus_address(pci_bus_id);
  if (const Status status = address ? library.find_card(*address, &card_) : -1; status != 0) {
    missing_ = fmt::format("AMD SMI does not know the card at {}: status {}", pci_bus_id, status);
    return;
  }
  library_ = &library;
}

AmdSmi::~AmdSmi() = default;

DeviceSensors AmdSmi::read() const {
  DeviceSensors sensors{.missing = missing_, .power_w = power_w(device_folder_)};
  if (library_ == nullptr) return sensors;
  uint64_t count = 0;
  uint64_t time_ns = 0;
  float resolution_uj = 0;
  if (const Status status = library_->energy(card_, &count, &resolution_uj, &time_ns); status == 0) {
    sensors.energy_j = static_cast<double>(count) * static_cast<double>(resolution_uj) * 1e-6;
  } else {
    sensors.missing = fmt::format("AMD SMI reads no energy counter: status {}", status);
  }
  ClockInfo clock{};
  if (library_->clock(card_, kClockCore, &clock) == 0 && clock.now_mhz != kNothing) sensors.core_mhz = clock.now_mhz;
  clock = {};
  if (library_->clock(card_, kClockMemory, &clock) == 0 && clock.now_mhz != kNothing)
    sensors.memory_mhz = clock.now_mhz;
  sensors.temperature_c = temperature(kTemperatureNow);
  return sensors;
}

std::optional<double> AmdSmi::temperature(int metric) const {
  int64_t celsius = 0;
  if (library_->temperature(card_, kHotSpot, metric, &celsius) != 0 || celsius <= 0) return {};
  return static_cast<double>(celsius);
}

AmdCardState AmdSmi::state() const {
  AmdCardState state;
  if (library_ == nullptr) return state;
  ClockInfo clock{};
  if (library_->clock(card_, kClockCore, &clock) == 0) {
    if (clock.now_mhz != kNothing) state.core_mhz = clock.now_mhz;
    if (clock.most_mhz != kNothing) state.max_core_mhz = clock.most_mhz;
  }
  state.temperature_c = temperature(kTemperatureNow);
  state.critical_c = temperature(kTemperatureCritical);
  PowerCapInfo cap{};
  if (library_->power_cap != nullptr && library_->power_cap(card_, 0, &cap) == 0 && cap.default_cap_uw > 0) {
    state.power_cap_w = static_cast<double>(cap.cap_uw) * 1e-6;
    state.default_power_cap_w = static_cast<double>(cap.default_cap_uw) * 1e-6;
  }
  return state;
}

}  // namespace tendon::hip
