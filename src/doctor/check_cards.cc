#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "doctor/checks.h"

namespace tendon::doctor {
namespace {

// Collects findings about one subject, "GPU 0 NVIDIA H100".
class Card {
 public:
  Card(std::vector<Finding>& findings, std::string subject) : findings_(findings), subject_(std::move(subject)) {}
  ~Card() {
    if (!any_) findings_.push_back({Severity::kOk, subject_, "nothing found that costs latency", "", ""});
  }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  void add(Severity severity, const std::string& what, const std::string& found, const std::string& reason,
           const std::string& remedy) {
    any_ = true;
    findings_.push_back({severity, fmt::format("{}: {}", subject_, what), found, reason, remedy});
  }

 private:
  std::vector<Finding>& findings_;
  std::string subject_;
  bool any_ = false;
};

// 580 of "580.159.04".
int64_t major_of(const std::string& version) {
  int64_t major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

void check_settings(Card& card, size_t index, const NvidiaCard& c) {
  if (c.persistence && !*c.persistence) {
    card.add(Severity::kWrong, "persistence mode", "off",
             "the driver lets go of the card after each program: the next one starts seconds later, with lower clocks",
             fmt::format("nvidia-smi -i {} -pm 1", index));
  }
  if (c.mig.value_or(false)) {
    card.add(Severity::kWrong, "MIG", "on", "programs see a slice of the card, with a part of its units and bandwidth",
             fmt::format("nvidia-smi -i {} -mig 0 (ends what runs on it)", index));
  }
  // HBM has room for the check bits; GDDR gives up bandwidth for them.
  const bool gddr = c.name.find("RTX") != std::string::npos || c.name.find(" L4") != std::string::npos ||
                    c.name.find(" A10") == c.name.size() - 4 || c.name.find(" A40") != std::string::npos;
  if (c.ecc.value_or(false) && gddr) {
    card.add(Severity::kAdvice, "ECC", "on", "on cards with GDDR memory the check bits take a part of the bandwidth",
             fmt::format("nvidia-smi -i {} -e 0, if errors of memory may go unseen", index));
  }
  if (c.uncorrected_errors.value_or(0) > 0) {
    card.add(Severity::kWrong, "memory errors", fmt::format("{} that could not be corrected", *c.uncorrected_errors),
             "results may be wrong and programs end", "reset the card; have it replaced when errors come again");
  }
}

void check_speed(Card& card, size_t index, const NvidiaCard& c) {
  if (c.chosen_core_mhz && c.max_core_mhz && *c.chosen_core_mhz < *c.max_core_mhz) {
    card.add(Severity::kAdvice, "chosen clocks",
             fmt::format("{:.0f} of {:.0f} MHz", *c.chosen_core_mhz, *c.max_core_mhz),
             "clocks under load stay below what the card can do, if the driver still follows this setting",
             fmt::format("nvidia-smi -i {} -rac", index));
  }
  if (c.slowed_by && !c.slowed_by->empty()) {
    card.add(Severity::kWrong, "clocks held down", *c.slowed_by,
             "the card runs slower than its clocks allow at this moment",
             "look at cooling, power supply and power limit");
  }
  if (c.power_limit_w && c.default_power_limit_w && *c.power_limit_w < *c.default_power_limit_w - 0.5) {
    card.add(Severity::kWrong, "power limit",
             fmt::format("{:.0f} of {:.0f} W", *c.power_limit_w, *c.default_power_limit_w),
             "clocks fall when products of matrices reach the limit",
             fmt::format("nvidia-smi -i {} -pl {:.0f}", index, *c.default_power_limit_w));
  }
  constexpr double kHot = 83;
  if (c.temperature_c.value_or(0) >= kHot) {
    card.add(Severity::kAdvice, "temperature", fmt::format("{:.0f} °C", *c.temperature_c),
             "near the point at which clocks are lowered", "look at the cooling");
  }
  if (c.pcie_width && c.max_pcie_width && *c.pcie_width < *c.max_pcie_width) {
    card.add(Severity::kWrong, "PCIe link", fmt::format("{} of {} lanes", *c.pcie_width, *c.max_pcie_width),
             "copies of pictures and actions, and above all of weights at start, are slower",
             "seat the card again, in a slot with all lanes");
  }
  if (c.pcie_generation && c.max_pcie_generation && *c.pcie_generation < *c.max_pcie_generation) {
    card.add(Severity::kAdvice, "PCIe link",
             fmt::format("generation {} of {}", *c.pcie_generation, *c.max_pcie_generation),
             "an idle card saves power in this way; under load it must not stay so",
             "run tendon doctor again while tendon bench runs");
  }
  if (c.processes.value_or(0) > 0) {
    card.add(Severity::kWrong, "other processes", fmt::format("{} compute on it", *c.processes),
             "they take turns with every call: times are longer and vary", "end them, or use another card (--device)");
  }
}

void check_driver(const Machine& m, std::vector<Finding>& findings) {
  const std::string subject = "NVIDIA driver";
  constexpr int64_t kLeastMajor = 580;  // of CUDA 13, which the release is built with
  if (m.nvidia_driver.empty() && !m.nvidia_cards.empty()) {
    findings.push_back({Severity::kOk, subject, "loaded, version unknown", "", ""});
  } else if (m.nvidia_driver.empty()) {
    findings.push_back({Severity::kWrong, subject, fmt::format("not loaded, with {} cards on the bus", m.nvidia_on_bus),
                        "no program can use a card", "install the driver, then: modprobe nvidia"});
  } else if (major_of(m.nvidia_driver) < kLeastMajor) {
    findings.push_back({Severity::kWrong, subject, m.nvidia_driver,
                        fmt::format("programs built with CUDA 13 need driver {} or newer", kLeastMajor),
                        "install a newer driver, or build tendon with an older CUDA"});
  } else {
    findings.push_back({Severity::kOk, subject, m.nvidia_driver, "", ""});
  }
  if (!m.nvidia_driver.empty() && m.nvidia_cards.empty()) {
    findings.push_back(
        {Severity::kWrong, "NVIDIA management library", m.nvidia_missing.empty() ? "no cards" : m.nvidia_missing,
         "cards cannot be looked at; a library that does not fit the driver keeps programs from them too",
         "after an update of the driver: restart the machine; in a container: start it with the GPUs"});
  }
}

void check_state(Card& card, const hip::AmdCardState& c) {
  if (c.power_cap_w && c.default_power_cap_w && *c.power_cap_w < *c.default_power_cap_w - 0.5) {
    card.add(Severity::kWrong, "power limit", fmt::format("{:.0f} of {:.0f} W", *c.power_cap_w, *c.default_power_cap_w),
             "clocks fall when products of matrices reach the limit",
             fmt::format("amd-smi set --power-cap {:.0f}", *c.default_power_cap_w));
  }
  constexpr double kNear = 5;
  if (c.temperature_c && c.critical_c && *c.temperature_c > *c.critical_c - kNear) {
    card.add(Severity::kAdvice, "temperature", fmt::format("{:.0f} of {:.0f} °C", *c.temperature_c, *c.critical_c),
             "near the point at which clocks are lowered", "look at the cooling");
  }
}

}  // namespace

std::vector<Finding> check_nvidia(const Machine& m) {
  std::vector<Finding> findings;
  if (m.nvidia_on_bus == 0 && m.nvidia_driver.empty() && m.nvidia_cards.empty()) {
    return {{Severity::kOk, "NVIDIA", "no card", "", ""}};
  }
  check_driver(m, findings);
  for (size_t i = 0; i < m.nvidia_cards.size(); ++i) {
    const NvidiaCard& one = m.nvidia_cards[i];
    Card card(findings, fmt::format("GPU {} {}", i, one.name));
    check_settings(card, i, one);
    check_speed(card, i, one);
  }
  return findings;
}

std::vector<Finding> check_amd(const Machine& m) {
  std::vector<Finding> findings;
  if (m.amd_on_bus == 0 && m.amd_cards.empty()) return {{Severity::kOk, "AMD", "no card", "", ""}};
  if (m.amd_driver.empty()) {
    findings.push_back({Severity::kWrong, "AMD driver",
                        fmt::format("not loaded, with {} cards on the bus", m.amd_on_bus), "no program can use a card",
                        "modprobe amdgpu"});
  }
  // Times reported by others; nobody here has measured them.
  if (m.rocm.starts_with("7.13") || m.rocm.starts_with("7.14")) {
    findings.push_back({Severity::kWrong, "ROCm", m.rocm,
                        "replaying graphs is reported 2 to 3 times slower than with 7.2 (kokkos issue 9390)",
                        "use another release, and note the version beside every time"});
  } else if (!m.rocm.empty()) {
    findings.push_back({Severity::kOk, "ROCm", m.rocm, "", ""});
  }
  const bool passthrough =
      m.kernel_options.find("iommu=pt") != std::string::npos || m.kernel_options.find("iommu=off") != std::string::npos;
  if (!m.kernel_options.empty() && !passthrough) {
    findings.push_back({Severity::kAdvice, "IOMMU", "not in pass-through mode by the kernel's options",
                        "AMD advises iommu=pt: copies between host and card are translated otherwise",
                        "add iommu=pt to the kernel's options"});
  }
  if (!m.amd_missing.empty()) {
    findings.push_back({Severity::kAdvice, "AMD management library", m.amd_missing,
                        "clocks, heat, power limit and energy of the cards cannot be read",
                        "install amd-smi-lib, or put its folder into LD_LIBRARY_PATH"});
  }
  for (const AmdCard& one : m.amd_cards) {
    Card card(findings, "GPU " + one.name);
    check_state(card, one.state);
    const std::string level = one.performance_level.value_or("auto");
    if (level != "auto" && level != "high") {
      card.add(Severity::kWrong, "performance level", level, "the clocks are held below what the card can do",
               fmt::format("echo auto > /sys/class/drm/{}/device/power_dpm_force_performance_level", one.name));
    }
    if (one.link_width && one.max_link_width && *one.link_width < *one.max_link_width) {
      card.add(Severity::kWrong, "PCIe link", fmt::format("{} of {} lanes", *one.link_width, *one.max_link_width),
               "copies of pictures and actions, and above all of weights at start, are slower",
               "seat the card again, in a slot with all lanes");
    }
    if (one.link_speed && one.max_link_speed && *one.link_speed != *one.max_link_speed) {
      card.add(Severity::kAdvice, "PCIe link", fmt::format("{} of {}", *one.link_speed, *one.max_link_speed),
               "an idle card saves power in this way; under load it must not stay so",
               "run tendon doctor again while the card works");
    }
    if (one.compute_partition && *one.compute_partition != "SPX") {
      card.add(Severity::kWrong, "compute partition", *one.compute_partition,
               "programs see a part of the card; one call wants the whole one",
               "amd-smi set --compute-partition SPX (ends what runs on it)");
    }
  }
  return findings;
}

}  // namespace tendon::doctor
