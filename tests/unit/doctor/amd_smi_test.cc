// AMD SMI, played by the fake libamd_smi that LD_LIBRARY_PATH leads to, and the kernel's own files.
#include "backend/hip/amd_smi.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

namespace tendon::hip {
namespace {

constexpr const char* kCard = "0000:c1:00.0";

class Fault {
 public:
  explicit Fault(const char* name) { setenv("TENDON_FAKE_AMD_SMI", name, 1); }
  ~Fault() { unsetenv("TENDON_FAKE_AMD_SMI"); }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
};

TEST(AmdSmi, ReadsTheSensors) {
  const AmdSmi smi(kCard);
  const DeviceSensors first = smi.read();
  const DeviceSensors second = smi.read();
  EXPECT_EQ(first.missing, "");
  ASSERT_TRUE(first.energy_j && second.energy_j);
  EXPECT_GE(*second.energy_j, *first.energy_j);
  EXPECT_EQ(first.core_mhz, 2100);
  EXPECT_EQ(first.memory_mhz, 1300);
  EXPECT_EQ(first.temperature_c, 55);
}

TEST(AmdSmi, SaysWhyThereIsNoEnergy) {
  const AmdSmi smi(kCard);
  const Fault fault("no-energy");
  const DeviceSensors sensors = smi.read();
  EXPECT_EQ(sensors.missing, "AMD SMI reads no energy counter: status 2");
  EXPECT_FALSE(sensors.energy_j);
  EXPECT_EQ(sensors.core_mhz, 2100);  // the others are there
}

TEST(AmdSmi, SaysWhichCardItDoesNotKnow) {
  for (const char* card : {"0000:c2:00.0", "somewhere"}) {
    const AmdSmi smi(card);
    EXPECT_THAT(smi.missing(), testing::HasSubstr(std::string("does not know the card at ") + card));
    EXPECT_FALSE(smi.read().energy_j);
    EXPECT_FALSE(smi.state().core_mhz);
  }
}

TEST(AmdSmi, ReadsPowerFromTheKernel) {
  const auto root = std::filesystem::path(testing::TempDir()) / "amd_smi_test_sys";
  const auto monitor = root / "bus/pci/devices" / kCard / "hwmon/hwmon3";
  std::filesystem::create_directories(monitor);
  std::ofstream(monitor / "power1_average") << "143000000\n";
  EXPECT_EQ(AmdSmi(kCard, root).read().power_w, 143);
  std::ofstream(monitor / "power1_input") << "151500000\n";
  EXPECT_EQ(AmdSmi(kCard, root).read().power_w, 151.5);
  std::filesystem::remove_all(root);
  EXPECT_FALSE(AmdSmi(kCard, root).read().power_w);
}

TEST(AmdSmi, KnowsLimits) {
  const AmdSmi smi(kCard);
  const AmdCardState fine = smi.state();
  EXPECT_EQ(fine.max_core_mhz, 2100);
  EXPECT_EQ(fine.critical_c, 100);
  EXPECT_EQ(fine.power_cap_w, fine.default_power_cap_w);
  {
    const Fault fault("capped");
    EXPECT_EQ(smi.state().power_cap_w, 500);
  }
  const Fault fault("hot");
  EXPECT_EQ(smi.state().temperature_c, 98);
}

}  // namespace
}  // namespace tendon::hip
