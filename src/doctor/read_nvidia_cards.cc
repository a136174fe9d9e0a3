#include <dlfcn.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "backend/cuda/slowing_reasons.h"
#include "base/check.h"
#include "doctor/machine.h"

namespace tendon::doctor {
namespace {

constexpr unsigned kCoreClock = 1;  // NVML_CLOCK_SM

// The library for as long as the object lives. Functions that it lacks, or that fail, give nothing.
class Library {
 public:
  ~Library() {
    if (started_) call<int()>("nvmlShutdown");
    if (handle_ != nullptr) dlclose(handle_);
  }

  // Empty when it runs.
  std::string open() {
    handle_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr)
      return "the library NVML (libnvidia-ml.so.1), which comes with the driver, cannot be opened";
    const int status = call<int()>("nvmlInit_v2");
    started_ = status == 0;
    if (started_) return {};
    const auto text = reinterpret_cast<const char* (*)(int)>(dlsym(handle_, "nvmlErrorString"));
    return std::string("NVML does not start: ") + (text != nullptr ? text(status) : "unknown reason");
  }

  template <class Signature, class... Args>
  int call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<Signature*>(dlsym(handle_, name));
    return function == nullptr ? -1 : function(args...);
  }

  // One number of a card, by a function (card, number*).
  template <class T = unsigned>
  std::optional<T> number(const char* name, void* card) const {
    T value = 0;
    if (call<int(void*, T*)>(name, card, &value) != 0) return {};
    return value;
  }
  // By a function (card, kind, number*).
  std::optional<double> of_kind(const char* name, void* card, unsigned kind) const {
    unsigned value = 0;
    if (call<int(void*, unsigned, unsigned*)>(name, card, kind, &value) != 0) return {};
    return value;
  }
  // The first of a function (card, now*, after the next start*).
  std::optional<bool> mode(const char* name, void* card) const {
    unsigned now = 0;
    unsigned pending = 0;
    if (call<int(void*, unsigned*, unsigned*)>(name, card, &now, &pending) != 0) return {};
    return now != 0;
  }

 private:
  void* handle_ = nullptr;
  bool started_ = false;
};

NvidiaCard read_card(const Library& nvml, void* card) {
  NvidiaCard result;
  char name[96] = {};
  if (nvml.call<int(void*, char*, unsigned)>("nvmlDeviceGetName", card, name, 96U) == 0) result.name = name;
  if (const auto on = nvml.number("nvmlDeviceGetPersistenceMode", card)) result.persistence = *on != 0;
  result.mig = nvml.mode("nvmlDeviceGetMigMode", card);
  result.ecc = nvml.mode("nvmlDeviceGetEccMode", card);
  unsigned long long errors = 0;
  if (nvml.call<int(void*, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors", card, 1, 0, &errors) == 0) {
    result.uncorrected_errors = static_cast<int64_t>(errors);
  }
  result.core_mhz = nvml.of_kind("nvmlDeviceGetClockInfo", card, kCoreClock);
  result.max_core_mhz = nvml.of_kind("nvmlDeviceGetMaxClockInfo", card, kCoreClock);
  result.chosen_core_mhz = nvml.of_kind("nvmlDeviceGetApplicationsClock", card, kCoreClock);
  result.temperature_c = nvml.of_kind("nvmlDeviceGetTemperature", card, 0);
  if (const auto mw = nvml.number("nvmlDeviceGetEnforcedPowerLimit", card)) result.power_limit_w = *mw * 1e-3;
  if (const auto mw = nvml.number("nvmlDeviceGetPowerManagementDefaultLimit", card)) {
    result.default_power_limit_w = *mw * 1e-3;
  }
  result.pcie_width = nvml.number("nvmlDeviceGetCurrPcieLinkWidth", card);
  result.max_pcie_width = nvml.number("nvmlDeviceGetMaxPcieLinkWidth", card);
  result.pcie_generation = nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", card);
  result.max_pcie_generation = nvml.number("nvmlDeviceGetMaxPcieLinkGeneration", card);
  constexpr int kMoreThanRoom = 7;  // NVML_ERROR_INSUFFICIENT_SIZE: the count is still given
  unsigned count = 0;
  const int status = nvml.call<int(void*, unsigned*, void*)>("nvmlDeviceGetComputeRunningProcesses_v3", card, &count,
                                                             static_cast<void*>(nullptr));
  if (status == 0 || status == kMoreThanRoom) result.processes = count;
  if (const auto bits = nvml.number<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", card)) {
    result.slowed_by = slowing_reasons(*bits);
  }
  return result;
}

}  // namespace

void read_nvidia_cards(Machine& machine) {
  Library nvml;
  machine.nvidia_missing = nvml.open();
  if (!machine.nvidia_missing.empty()) return;
  char driver[96] = {};
  if (machine.nvidia_driver.empty() &&
      nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", driver, 96U) == 0) {
    machine.nvidia_driver = driver;  // containers hide /proc/driver
  }
  unsigned count = 0;
  nvml.call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) {
    void* card = nullptr;
    if (nvml.call<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2", i, &card) != 0) continue;
    machine.nvidia_cards.push_back(read_card(nvml, card));
  }
  if (count == 0) machine.nvidia_missing = "NVML lists no card";
}

void read_nvidia_cards(Machine& machine, const std::string& file) {
  std::ifstream in(file);
  if (!in) throw_bad_input("Cannot open '{}'. Check the path.", file);
  try {
    const auto json = nlohmann::json::parse(in);
    machine.nvidia_missing = json.value("missing", "");
    for (const auto& one : json.value("cards", nlohmann::json::array())) {
      const auto set = [&](const char* key, auto& field) {
        if (one.contains(key)) field = one[key].get<typename std::remove_reference_t<decltype(field)>::value_type>();
      };
      NvidiaCard card;
      card.name = one.value("name", "card");
      set("persistence", card.persistence), set("mig", card.mig), set("ecc", card.ecc);
      set("uncorrected_errors", card.uncorrected_errors), set("core_mhz", card.core_mhz);
      set("max_core_mhz", card.max_core_mhz), set("chosen_core_mhz", card.chosen_core_mhz);
      set("power_limit_w", card.power_limit_w), set("default_power_limit_w", card.default_power_limit_w);
      set("temperature_c", card.temperature_c), set("pcie_width", card.pcie_width);
      set("max_pcie_width", card.max_pcie_width), set("pcie_generation", card.pcie_generation);
      set("max_pcie_generation", card.max_pcie_generation), set("processes", card.processes);
      set("slowed_by", card.slowed_by);
      machine.nvidia_cards.push_back(card);
    }
  } catch (const nlohmann::json::exception& error) {
    throw_bad_input("'{}' is no list of cards: {}", file, error.what());
  }
}

}  // namespace tendon::doctor
