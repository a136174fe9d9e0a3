#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "base/check.h"
#include "doctor/checks.h"

namespace tendon::doctor {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A root directory that goes away with the object.
class Root {
 public:
  Root() {
    std::string name = (fs::temp_directory_path() / "tendon_doctor_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Root() { fs::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  Root& file(const std::string& name, const std::string& text) {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text << "\n";
    return *this;
  }
  Root& card(const std::string& bus, const std::string& vendor, const std::string& type = "0x030200") {
    return file("sys/bus/pci/devices/" + bus + "/vendor", vendor).file("sys/bus/pci/devices/" + bus + "/class", type);
  }
  std::string path() const { return path_.string(); }
  Machine machine() const { return read_machine(path()); }

 private:
  fs::path path_;
};

// A machine that leaves nothing to wish for.
Root& good(Root& root) {
  for (const char* cpu : {"cpu0", "cpu1", "cpu10"}) {
    root.file(std::string("sys/devices/system/cpu/") + cpu + "/cpufreq/scaling_governor", "performance");
  }
  return root.file("sys/devices/system/cpu/intel_pstate/no_turbo", "0")
      .file("sys/devices/system/cpu/cpufreq/boost", "1")
      .file("sys/devices/system/node/node0/cpulist", "0-2")
      .file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
      .file("proc/sys/kernel/numa_balancing", "0")
      .file("proc/loadavg", "0.10 0.2 0.3 1/100 4711")
      .file("proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable:   60000000 kB")
      .file("proc/cmdline", "root=/dev/sda1 iommu=pt quiet")
      .file("sys/fs/cgroup/cpu.max", "max 100000")
      .file("sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 0");
}

NvidiaCard good_card() {
  NvidiaCard card;
  card.name = "NVIDIA H100 80GB HBM3";
  card.persistence = true;
  card.mig = false;
  card.ecc = true;
  card.uncorrected_errors = 0;
  card.core_mhz = card.max_core_mhz = card.chosen_core_mhz = 1980;
  card.power_limit_w = card.default_power_limit_w = 700;
  card.temperature_c = 40;
  card.pcie_width = card.max_pcie_width = 16;
  card.pcie_generation = card.max_pcie_generation = 5;
  card.processes = 0;
  card.slowed_by = "";
  return card;
}

Machine good_machine() {
  Root root;
  good(root)
      .card("0000:18:00.0", "0x10de")
      .file("proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jan  1 2026\nGCC 12");
  Machine machine = root.machine();
  machine.nvidia_cards = {good_card()};
  return machine;
}

// Findings that are not ok, as "severity subject".
std::vector<std::string> complaints(const Machine& machine) {
  std::vector<std::string> result;
  for (const Finding& one : check(machine)) {
    if (one.severity == Severity::kOk) {
      continue;
    }
    EXPECT_FALSE(one.found.empty()) << one.subject;
    // Every complaint says why and what to do, unless it only says that something cannot be read.
    if (one.found != "cannot be read") {
      EXPECT_FALSE(one.reason.empty()) << one.subject;
      EXPECT_FALSE(one.remedy.empty()) << one.subject;
    }
    result.push_back((one.severity == Severity::kWrong ? "wrong " : "advice ") + one.subject);
  }
  return result;
}

void expect_only(const Machine& machine, const std::string& complaint) {
  EXPECT_THAT(complaints(machine), testing::ElementsAre(HasSubstr(complaint)));
}

TEST(Machine, IsReadFromItsFiles) {
  Root root;
  good(root)
      .card("0000:18:00.0", "0x10de")
      .card("0000:19:00.0", "0x10de", "0x020000")
      .card("0000:20:00.0", "0x1002", "0x120000");
  root.file("sys/fs/cgroup/cpu.max", "150000 100000")
      .file("sys/module/amdgpu/version", "6.12")
      .file("opt/rocm/.info/version", "7.2.0-12")
      .file("sys/class/drm/card0/device/vendor", "0x10de")
      .file("sys/class/drm/card1/device/vendor", "0x1002")
      .file("sys/class/drm/card1-DP-1/device/vendor", "0x1002")
      .file("sys/class/drm/card1/device/current_link_width", "8")
      .file("sys/class/drm/card1/device/max_link_width", "16")
      .file("sys/class/drm/card1/device/power_dpm_force_performance_level", "auto");
  const Machine m = root.machine();
  EXPECT_EQ(m.cpus, 3);
  EXPECT_THAT(m.governors, testing::ElementsAre(testing::Pair("performance", 3)));
  EXPECT_EQ(m.turbo, true);
  EXPECT_EQ(m.huge_pages, "madvise");
  EXPECT_EQ(m.numa_balancing, false);
  EXPECT_EQ(m.numa_nodes, 1);
  EXPECT_EQ(m.cpu_quota, 1.5);
  EXPECT_EQ(m.throttled_periods, 0);
  EXPECT_EQ(m.load, 0.1);
  EXPECT_EQ(m.available_mb, 58593);
  EXPECT_EQ(m.nvidia_on_bus, 1);  // not its network controller
  EXPECT_EQ(m.amd_on_bus, 1);
  EXPECT_EQ(m.amd_driver, "6.12");
  EXPECT_EQ(m.rocm, "7.2.0-12");
  ASSERT_EQ(m.amd_cards.size(), 1U);
  EXPECT_EQ(m.amd_cards[0].link_width, 8);
  EXPECT_EQ(m.nvidia_driver, "");
}

TEST(Machine, WithoutAnyFilesIsEmptyAndDoesNotComplainOfFaults) {
  const Root root;
  for (const std::string& one : complaints(root.machine())) EXPECT_THAT(one, HasSubstr("advice"));
}

TEST(Doctor, IsContentWithAGoodMachine) {
  EXPECT_EQ(good_machine().nvidia_driver, "580.159.04");
  EXPECT_THAT(complaints(good_machine()), testing::IsEmpty());
}

TEST(Doctor, FindsWhatIsWrongWithTheHost) {
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"}, "wrong CPU governor"},
      {{"sys/devices/system/cpu/intel_pstate/no_turbo", "1"}, "wrong CPU turbo"},
      {{"sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"}, "wrong transparent huge pages"},
      {{"sys/fs/cgroup/cpu.max", "200000 100000"}, "advice CPU quota"},
      {{"proc/loadavg", "7.00 1 1 1/1 1"}, "advice load"},
      {{"proc/meminfo", "MemAvailable: 4000000 kB"}, "advice memory"},
  };
  for (const auto& [file, complaint] : cases) {
    Root root;
    good(root).file(file.first, file.second);
    SCOPED_TRACE(complaint);
    expect_only(root.machine(), complaint);
  }
  Root throttled;
  good(throttled).file("sys/fs/cgroup/cpu.max", "200000 100000").file("sys/fs/cgroup/cpu.stat", "nr_throttled 12");
  expect_only(throttled.machine(), "wrong CPU quota");
  Root two_nodes;
  good(two_nodes).file("proc/sys/kernel/numa_balancing", "1").file("sys/devices/system/node/node1/cpulist", "3");
  expect_only(two_nodes.machine(), "advice automatic NUMA balancing");
}

TEST(Doctor, FindsWhatIsWrongWithAnNvidiaCard) {
  const std::pair<void (*)(NvidiaCard&), const char*> cases[] = {
      {[](NvidiaCard& c) { c.persistence = false; }, "wrong GPU 0 NVIDIA H100 80GB HBM3: persistence mode"},
      {[](NvidiaCard& c) { c.mig = true; }, "MIG"},
      {[](NvidiaCard& c) { c.uncorrected_errors = 2; }, "wrong GPU 0 NVIDIA H100 80GB HBM3: memory errors"},
      {[](NvidiaCard& c) { c.chosen_core_mhz = 1200; }, "advice GPU 0 NVIDIA H100 80GB HBM3: chosen clocks"},
      {[](NvidiaCard& c) { c.power_limit_w = 400; }, "power limit"},
      {[](NvidiaCard& c) { c.slowed_by = "heat"; }, "clocks held down"},
      {[](NvidiaCard& c) { c.temperature_c = 90; }, "temperature"},
      {[](NvidiaCard& c) { c.pcie_width = 4; }, "wrong GPU 0 NVIDIA H100 80GB HBM3: PCIe link"},
      {[](NvidiaCard& c) { c.pcie_generation = 1; }, "advice GPU 0 NVIDIA H100 80GB HBM3: PCIe link"},
      {[](NvidiaCard& c) { c.processes = 1; }, "wrong GPU 0 NVIDIA H100 80GB HBM3: other processes"},
      {[](NvidiaCard& c) { c.name = "NVIDIA RTX 6000 Ada"; }, "advice GPU 0 NVIDIA RTX 6000 Ada: ECC"},
  };
  for (const auto& [spoil, complaint] : cases) {
    Machine machine = good_machine();
    spoil(machine.nvidia_cards[0]);
    SCOPED_TRACE(complaint);
    expect_only(machine, complaint);
  }
  Machine silent = good_machine();  // a card that tells nothing is no fault
  silent.nvidia_cards[0] = {};
  EXPECT_THAT(complaints(silent), testing::IsEmpty());
}

TEST(Doctor, FindsWhatIsWrongWithTheDriver) {
  Machine machine = good_machine();
  machine.nvidia_driver = "535.104.05";
  expect_only(machine, "wrong NVIDIA driver");
  machine = good_machine();
  machine.nvidia_driver = "";
  machine.nvidia_cards.clear();
  expect_only(machine, "wrong NVIDIA driver");
  machine = good_machine();
  machine.nvidia_cards.clear();
  machine.nvidia_missing = "NVML does not start: Driver/library version mismatch";
  expect_only(machine, "wrong NVIDIA management library");
}

TEST(Doctor, FindsWhatIsWrongWithAnAmdCard) {
  Root root;
  good(root)
      .card("0000:18:00.0", "0x1002")
      .file("sys/module/amdgpu/version", "6.12")
      .file("opt/rocm/.info/version", "7.2.0");
  Machine fine = root.machine();
  AmdCard card;
  card.name = "card1";
  card.performance_level = "auto";
  card.compute_partition = "SPX";
  card.link_width = card.max_link_width = 16;
  fine.amd_cards = {card};
  EXPECT_THAT(complaints(fine), testing::IsEmpty());
  const std::pair<void (*)(Machine&), const char*> cases[] = {
      {[](Machine& m) { m.amd_driver = ""; }, "wrong AMD driver"},
      {[](Machine& m) { m.rocm = "7.13.1"; }, "wrong ROCm"},
      {[](Machine& m) { m.kernel_options = "quiet"; }, "advice IOMMU"},
      {[](Machine& m) { m.numa_balancing = true; }, "wrong automatic NUMA balancing"},
      {[](Machine& m) { m.amd_missing = "no library"; }, "advice AMD management library"},
      {[](Machine& m) { m.amd_cards[0].state = {.power_cap_w = 500, .default_power_cap_w = 750}; },
       "wrong GPU card1: power limit"},
      {[](Machine& m) { m.amd_cards[0].state = {.temperature_c = 97, .critical_c = 100}; },
       "advice GPU card1: temperature"},
      {[](Machine& m) { m.amd_cards[0].performance_level = "low"; }, "wrong GPU card1: performance level"},
      {[](Machine& m) { m.amd_cards[0].compute_partition = "CPX"; }, "wrong GPU card1: compute partition"},
      {[](Machine& m) { m.amd_cards[0].link_width = 8; }, "wrong GPU card1: PCIe link"},
  };
  for (const auto& [spoil, complaint] : cases) {
    Machine machine = fine;
    spoil(machine);
    SCOPED_TRACE(complaint);
    expect_only(machine, complaint);
  }
}

TEST(Doctor, FindsVariablesThatSlowDown) {
  Machine machine = good_machine();
  machine.environment = {{"CUDA_LAUNCH_BLOCKING", "0"}, {"HSA_XNACK", "0"}, {"HSA_ENABLE_SDMA", "1"}, {"PATH", "/bin"}};
  EXPECT_THAT(complaints(machine), testing::IsEmpty());
  machine.environment["CUDA_LAUNCH_BLOCKING"] = "1";
  expect_only(machine, "wrong environment: CUDA_LAUNCH_BLOCKING");
}

TEST(Cards, ComeFromAFileForTests) {
  Root root;
  root.file("cards.json",
            R"({"cards": [{"name": "X", "persistence": false, "power_limit_w": 300.5, "slowed_by": "heat"}]})")
      .file("bad.json", R"({"cards": [{"persistence": "no"}]})");
  Machine machine;
  read_nvidia_cards(machine, root.path() + "/cards.json");
  ASSERT_EQ(machine.nvidia_cards.size(), 1U);
  EXPECT_EQ(machine.nvidia_cards[0].persistence, false);
  EXPECT_EQ(machine.nvidia_cards[0].power_limit_w, 300.5);
  EXPECT_EQ(machine.nvidia_cards[0].slowed_by, "heat");
  EXPECT_EQ(machine.nvidia_cards[0].mig, std::nullopt);
  EXPECT_THROW(read_nvidia_cards(machine, root.path() + "/bad.json"), Error);
  EXPECT_THROW(read_nvidia_cards(machine, root.path() + "/none.json"), Error);
}

}  // namespace
}  // namespace tendon::doctor
