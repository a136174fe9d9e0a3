#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "doctor/machine.h"

namespace tendon::doctor {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::string result = text.str();
  while (!result.empty() && (result.back() == '\n' || result.back() == ' ' || result.back() == '\0')) result.pop_back();
  return result;
}

std::optional<std::string> word_of(const fs::path& path) {
  std::string text = text_of(path);
  if (text.empty()) return {};
  return text;
}

template <class T>
std::optional<T> number_in(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return {};
  return value;
}

template <class T>
std::optional<T> number_of(const fs::path& path) {
  return number_in<T>(text_of(path));
}

// Entries of a directory whose names begin so, sorted.
std::vector<fs::path> entries(const fs::path& directory, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// "cpu12", not "cpufreq"; "card1", not "card1-DP-1".
bool is_numbered(const fs::path& path, size_t prefix) {
  const std::string name = path.filename().string();
  return name.size() > prefix && name.find_first_not_of("0123456789", prefix) == std::string::npos;
}

// "[madvise]" of "always [madvise] never".
std::optional<std::string> bracketed(const std::string& text) {
  const size_t begin = text.find('[');
  const size_t end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return text.substr(begin + 1, end - begin - 1);
}

// The value behind a key at the start of a line.
std::string field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(" :\t", key.size());
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

// "580.159.04" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  …": the first word that is a version.
std::string driver_version(const std::string& text) {
  std::istringstream words(text.substr(0, text.find('\n')));
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

void read_cpus(const fs::path& root, Machine& m) {
  const fs::path cpus = root / "sys/devices/system/cpu";
  for (const fs::path& cpu : entries(cpus, "cpu")) {
    if (!is_numbered(cpu, 3)) continue;
    ++m.cpus;
    if (const auto governor = word_of(cpu / "cpufreq/scaling_governor")) ++m.governors[*governor];
  }
  if (const auto off = number_of<int>(cpus / "intel_pstate/no_turbo")) m.turbo = *off == 0;
  if (const auto boost = number_of<int>(cpus / "cpufreq/boost"); boost && !m.turbo) m.turbo = *boost != 0;
  for (const fs::path& node : entries(root / "sys/devices/system/node", "node")) m.numa_nodes += is_numbered(node, 4);
}

void read_limits(const fs::path& root, Machine& m) {
  const fs::path group = root / "sys/fs/cgroup";
  std::istringstream quota(text_of(group / "cpu.max"));
  std::string most;
  double period_us = 0;
  if (quota >> most >> period_us && period_us > 0) {
    if (const auto us = number_in<double>(most)) m.cpu_quota = *us / period_us;
  }
  m.throttled_periods = number_in<int64_t>(field(text_of(group / "cpu.stat"), "nr_throttled"));
}

void read_buses(const fs::path& root, Machine& m) {
  for (const fs::path& device : entries(root / "sys/bus/pci/devices", "")) {
    const std::string type = text_of(device / "class");
    const bool card = type.starts_with("0x03") || type.starts_with("0x12");  // display, or processing accelerator
    const std::string vendor = text_of(device / "vendor");
    m.nvidia_on_bus += card && vendor == "0x10de";
    m.amd_on_bus += card && vendor == "0x1002";
  }
}

void read_amd(const fs::path& root, Machine& m) {
  const fs::path module = root / "sys/module/amdgpu";
  std::error_code ignored;
  if (fs::exists(module, ignored)) m.amd_driver = word_of(module / "version").value_or("in the kernel");
  m.rocm = text_of(root / "opt/rocm/.info/version");
  for (const fs::path& card : entries(root / "sys/class/drm", "card")) {
    const fs::path device = card / "device";
    if (!is_numbered(card, 4) || text_of(device / "vendor") != "0x1002") continue;
    const std::string bus = fs::canonical(device, ignored).filename().string();
    m.amd_cards.push_back({.name = card.filename().string(),
                           .pci_bus_id = bus.find(':') == std::string::npos ? "" : bus,
                           .performance_level = word_of(device / "power_dpm_force_performance_level"),
                           .compute_partition = word_of(device / "current_compute_partition"),
                           .memory_partition = word_of(device / "current_memory_partition"),
                           .link_speed = word_of(device / "current_link_speed"),
                           .max_link_speed = word_of(device / "max_link_speed"),
                           .link_width = number_of<int64_t>(device / "current_link_width"),
                           .max_link_width = number_of<int64_t>(device / "max_link_width")});
  }
}

}  // namespace

void read_amd_cards(Machine& m) {
  for (AmdCard& card : m.amd_cards) {
    if (card.pci_bus_id.empty()) continue;
    const hip::AmdSmi smi(card.pci_bus_id);
    if (!smi.missing().empty()) m.amd_missing = smi.missing();
    card.state = smi.state();
  }
}

Machine read_machine(const std::string& root_path) {
  const fs::path root = root_path;
  Machine m;
  read_cpus(root, m);
  read_limits(root, m);
  read_buses(root, m);
  read_amd(root, m);
  m.huge_pages = bracketed(text_of(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  if (const auto balancing = number_of<int>(root / "proc/sys/kernel/numa_balancing"))
    m.numa_balancing = *balancing != 0;
  m.load = number_of<double>(root / "proc/loadavg");
  if (const auto kb = number_in<int64_t>(field(text_of(root / "proc/meminfo"), "MemAvailable")))
    m.available_mb = *kb / 1024;
  m.kernel_options = text_of(root / "proc/cmdline");
  m.nvidia_driver = driver_version(text_of(root / "proc/driver/nvidia/version"));
  return m;
}

}  // namespace tendon::doctor
