// What a machine shows of itself, as far as it matters for latency. Nothing here changes anything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/hip/amd_smi.h"

namespace tendon::doctor {

// An NVIDIA card, as NVML tells. What it does not tell stays empty.
struct NvidiaCard {
  std::string name;
  std::optional<bool> persistence, mig, ecc;
  std::optional<int64_t> uncorrected_errors;                      // of memory, since the driver was loaded
  std::optional<double> core_mhz, max_core_mhz, chosen_core_mhz;  // now; possible; set by somebody
  std::optional<double> power_limit_w, default_power_limit_w;
  std::optional<double> temperature_c;
  std::optional<int64_t> pcie_width, max_pcie_width, pcie_generation, max_pcie_generation;
  std::optional<int64_t> processes;      // that compute on it now
  std::optional<std::string> slowed_by;  // "power cap, heat"; empty: nothing
};

// An AMD card, as the kernel's driver tells in /sys/class/drm/card*/device, and AMD SMI.
struct AmdCard {
  std::string name;              // "card1"
  std::string pci_bus_id = {};   // "0000:c1:00.0"; empty: unknown
  hip::AmdCardState state = {};  // of AMD SMI
  std::optional<std::string> performance_level, compute_partition, memory_partition;
  std::optional<std::string> link_speed, max_link_speed;  // "16.0 GT/s PCIe"
  std::optional<int64_t> link_width, max_link_width;
};

struct Machine {
  int64_t cpus = 0;
  std::map<std::string, int64_t> governors;  // CPUs by governor; empty: the kernel shows none (virtual machines)
  std::optional<bool> turbo;
  std::optional<std::string> huge_pages;  // "always", "madvise", "never"
  std::optional<bool> numa_balancing;
  int64_t numa_nodes = 0;
  std::optional<double> cpu_quota;           // CPUs that a container may use
  std::optional<int64_t> throttled_periods;  // in which it wanted more
  std::optional<double> load;                // of the last minute
  std::optional<int64_t> available_mb;
  std::string kernel_options;  // /proc/cmdline

  int64_t nvidia_on_bus = 0, amd_on_bus = 0;  // cards that compute or show pictures
  std::string nvidia_driver;                  // version of the loaded module; empty: none
  std::string amd_driver;                     // likewise; "in the kernel" where the module has no version
  std::string rocm;                           // version; empty: none
  std::vector<NvidiaCard> nvidia_cards;
  std::string nvidia_missing;  // why NVML tells nothing
  std::vector<AmdCard> amd_cards;
  std::string amd_missing;  // why AMD SMI tells nothing of them
  std::map<std::string, std::string> environment;
};

// From the files below `root` ("/" or, for tests, a copy of parts of one); not the cards of NVML, nor the environment.
// What cannot be read stays empty.
Machine read_machine(const std::string& root);

// Fills nvidia_cards and, if there are none, nvidia_missing. Opens NVML at run time.
void read_nvidia_cards(Machine& machine);

// Fills the states of amd_cards. Opens AMD SMI at run time.
void read_amd_cards(Machine& machine);

// NVIDIA's from a file, for tests: {"cards": [{"name": …, "persistence": true, …}]} or {"missing": "…"}. Throws
// Error(kBadInput).
void read_nvidia_cards(Machine& machine, const std::string& file);

}  // namespace tendon::doctor
