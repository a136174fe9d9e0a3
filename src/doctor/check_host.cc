#include <fmt/format.h>

#include "doctor/checks.h"

namespace tendon::doctor {
namespace {

Finding governor(const Machine& m) {
  const std::string subject = "CPU governor";
  if (m.governors.empty())
    return {Severity::kOk, subject, "not shown by this kernel (as in most virtual machines)", "", ""};
  std::string slow;
  for (const auto& [name, count] : m.governors) {
    if (name != "performance")
      slow += fmt::format("{}{} on {} of {} CPUs", slow.empty() ? "" : ", ", name, count, m.cpus);
  }
  if (slow.empty()) return {Severity::kOk, subject, "performance", "", ""};
  return {Severity::kWrong, subject, slow,
          "clocks rise only after load has come: the host's part of every call, and every call on the CPU, is slower",
          "cpupower frequency-set -g performance"};
}

Finding huge_pages(const Machine& m) {
  const std::string subject = "transparent huge pages";
  if (!m.huge_pages) return {Severity::kAdvice, subject, "cannot be read", "", ""};
  if (*m.huge_pages != "never") return {Severity::kOk, subject, *m.huge_pages, "", ""};
  return {Severity::kWrong, subject, "never",
          "gigabytes of weights in pages of 4 kB cost look-ups of addresses on the CPU",
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding numa_balancing(const Machine& m) {
  const std::string subject = "automatic NUMA balancing";
  if (!m.numa_balancing.value_or(false)) return {Severity::kOk, subject, "off, or not in this kernel", "", ""};
  const bool matters = m.amd_on_bus > 0;
  return {matters            ? Severity::kWrong
          : m.numa_nodes > 1 ? Severity::kAdvice
                             : Severity::kOk,
          subject, fmt::format("on, {} NUMA nodes", m.numa_nodes),
          matters ? "AMD advises against it with its cards: pages that move stall what the card reads"
                  : "pages move between nodes, and whoever reads them meanwhile waits",
          "sysctl kernel.numa_balancing=0"};
}

Finding quota(const Machine& m) {
  const std::string subject = "CPU quota";
  const bool throttled = m.throttled_periods.value_or(0) > 0;
  if (!m.cpu_quota) return {Severity::kOk, subject, "none", "", ""};
  const std::string found =
      fmt::format("{:.1f} of {} CPUs, throttled in {} periods", *m.cpu_quota, m.cpus, m.throttled_periods.value_or(0));
  if (!throttled && *m.cpu_quota >= static_cast<double>(m.cpus)) return {Severity::kOk, subject, found, "", ""};
  return {throttled ? Severity::kWrong : Severity::kAdvice, subject, found,
          "a process that has used up its quota stands still for the rest of the period, up to 0.1 s",
          fmt::format("give the container more CPUs, or use --threads {}", static_cast<int64_t>(*m.cpu_quota))};
}

Finding load(const Machine& m) {
  const std::string subject = "load";
  if (!m.load) return {Severity::kAdvice, subject, "cannot be read", "", ""};
  const std::string found = fmt::format("{:.1f} on {} CPUs", *m.load, m.cpus);
  if (m.cpus == 0 || *m.load < static_cast<double>(m.cpus)) return {Severity::kOk, subject, found, "", ""};
  return {Severity::kAdvice, subject, found, "other programs use the CPUs: times vary", "measure when they have ended"};
}

Finding memory(const Machine& m) {
  constexpr int64_t kFullModelMb = 8192;
  const std::string subject = "memory";
  if (!m.available_mb) return {Severity::kAdvice, subject, "cannot be read", "", ""};
  const std::string found = fmt::format("{} MB available", *m.available_mb);
  if (*m.available_mb >= kFullModelMb) return {Severity::kOk, subject, found, "", ""};
  return {Severity::kAdvice, subject, found, "the published models need about 7 GB for their weights",
          "close other programs, or use a machine with more"};
}

}  // namespace

std::vector<Finding> check_host(const Machine& m) {
  std::vector<Finding> findings = {governor(m), huge_pages(m), numa_balancing(m), quota(m), load(m), memory(m)};
  if (m.turbo && !*m.turbo) {
    findings.push_back({Severity::kWrong, "CPU turbo", "off", "the host's part of a call runs at the base clock",
                        "echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo, or echo 1 > "
                        "/sys/devices/system/cpu/cpufreq/boost"});
  }
  return findings;
}

std::vector<Finding> check_environment(const Machine& m) {
  struct Variable {
    const char* name;
    const char* value;  // null: any but 0
    Severity severity;
    const char* reason;
  };
  constexpr Variable kVariables[] = {
      {"CUDA_LAUNCH_BLOCKING", nullptr, Severity::kWrong, "every launch waits for its kernel"},
      {"CUDA_FORCE_PTX_JIT", nullptr, Severity::kWrong, "kernels are compiled again at start, not taken as built"},
      {"CUDA_INJECTION64_PATH", nullptr, Severity::kWrong, "a profiler is loaded into every CUDA program"},
      {"HIP_LAUNCH_BLOCKING", nullptr, Severity::kWrong, "every launch waits for its kernel"},
      {"AMD_SERIALIZE_KERNEL", nullptr, Severity::kWrong, "kernels wait for each other, the host for all"},
      {"AMD_SERIALIZE_COPY", nullptr, Severity::kWrong, "copies wait for each other, the host for all"},
      {"AMD_LOG_LEVEL", nullptr, Severity::kWrong, "the runtime writes a log of its calls"},
      {"HSA_XNACK", "1", Severity::kWrong, "kernels are prepared for page faults, which makes them slower"},
      {"HSA_ENABLE_SDMA", "0", Severity::kAdvice, "copies take compute units instead of the copy engines"},
      {"HSA_TOOLS_LIB", nullptr, Severity::kWrong, "a profiler is loaded into every ROCm program"},
      {"OMP_WAIT_POLICY", "passive", Severity::kAdvice,
       "CPU threads sleep between operations and have to be woken (right where other programs need the cores)"},
      {"LD_PRELOAD", nullptr, Severity::kAdvice, "another library stands in front of the system's"},
  };
  std::vector<Finding> findings;
  for (const Variable& one : kVariables) {
    const auto found = m.environment.find(one.name);
    if (found == m.environment.end() || found->second.empty()) continue;
    const bool bad = one.value != nullptr ? found->second == one.value : found->second != "0";
    if (!bad) continue;
    findings.push_back({one.severity, fmt::format("environment: {}", one.name), found->second, one.reason,
                        fmt::format("unset {}", one.name)});
  }
  if (findings.empty())
    findings.push_back({Severity::kOk, "environment", "no variable that is known to slow things down", "", ""});
  return findings;
}

std::vector<Finding> check(const Machine& m) {
  std::vector<Finding> all;
  for (const auto& part : {check_host(m), check_environment(m), check_nvidia(m), check_amd(m)}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace tendon::doctor
