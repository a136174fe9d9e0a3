// The card's sensors through NVIDIA's management library, opened at run time: without it the fields stay empty.
#pragma once

#include <string>

#include "backend/backend.h"

namespace tendon {

class Nvml {
 public:
  // `pci_bus_id` as the CUDA runtime writes it: "0000:3B:00.0".
  explicit Nvml(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // energy_j is the card's own counter of all it draws since the driver was loaded; it moves every 20 to 100 ms.
  DeviceSensors read() const;
  const std::string& driver_version() const { return driver_version_; }  // "580.159.04", or empty

 private:
  template <class F>
  bool find(F& function, const char* name);

  void* library_ = nullptr;
  void* card_ = nullptr;  // nvmlDevice_t
  std::string missing_, driver_version_;
  // The library's own prototypes; an int status of 0 is success, unsigned kinds are its enumerations.
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*handle_)(const char* pci_bus_id, void** card) = nullptr;
  int (*driver_)(char* text, unsigned bytes) = nullptr;
  int (*energy_mj_)(void* card, unsigned long long* energy) = nullptr;
  int (*clock_mhz_)(void* card, unsigned kind, unsigned* mhz) = nullptr;
  // These may be absent.
  int (*power_mw_)(void* card, unsigned* mw) = nullptr;
  int (*temperature_)(void* card, unsigned sensor, unsigned* celsius) = nullptr;
  int (*slowed_by_)(void* card, unsigned long long* reasons) = nullptr;
  const char* (*error_)(int status) = nullptr;
};

}  // namespace tendon
