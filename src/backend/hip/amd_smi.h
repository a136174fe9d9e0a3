// An AMD card's sensors through AMD's management library (libamd_smi), opened at run time: without it the fields stay
// empty. No header of ROCm is needed, so this is part of every build: `tendon doctor` asks it too.
#pragma once

#include <optional>
#include <string>

#include "backend/backend.h"

namespace tendon::hip {

// What `tendon doctor` asks; what the library does not tell stays empty.
struct AmdCardState {
  std::optional<double> core_mhz = {}, max_core_mhz = {};
  std::optional<double> temperature_c = {}, critical_c = {};  // at the hottest spot; where clocks are lowered
  std::optional<double> power_cap_w = {}, default_power_cap_w = {};
};

class AmdSmi {
 public:
  // `pci_bus_id` as HIP and the kernel write it: "0000:c1:00.0". `sysfs`: where the kernel shows its devices.
  explicit AmdSmi(const std::string& pci_bus_id, const std::string& sysfs = "/sys");
  ~AmdSmi();
  AmdSmi(const AmdSmi&) = delete;
  AmdSmi& operator=(const AmdSmi&) = delete;

  // energy_j is the card's own counter of all it draws. Power comes from the kernel: the library's structure for it has
  // changed its layout between releases.
  DeviceSensors read() const;
  AmdCardState state() const;
  const std::string& missing() const { return missing_; }  // why nothing can be read; empty: it can

 private:
  struct Library;
  std::optional<double> temperature(int metric) const;

  std::string device_folder_, missing_;
  const Library* library_ = nullptr;
  void* card_ = nullptr;
};

}  // namespace tendon::hip
