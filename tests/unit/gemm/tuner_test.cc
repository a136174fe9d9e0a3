#include "backend/gemm/tuner.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

namespace tendon::gemm {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Kernel {
  double us, error;
  double careful_us = 0;  // 0: as at first
};
using Kernels = std::vector<std::pair<std::string, Kernel>>;

class FakeTrial final : public Trial {
 public:
  FakeTrial(const Kernels& kernels, std::vector<std::string>& timed) : kernels_(kernels), timed_(timed) {}
  std::vector<std::string> candidates() override {
    std::vector<std::string> names;
    for (const auto& [name, kernel] : kernels_) names.push_back(name);
    return names;
  }
  double error(const std::string& kernel) override { return find(kernel).error; }
  double time_us(const std::string& kernel, double, bool careful) override {
    timed_.push_back(kernel);
    const Kernel& k = find(kernel);
    return careful && k.careful_us > 0 ? k.careful_us : k.us;
  }

 private:
  const Kernel& find(const std::string& name) const {
    for (const auto& [known, kernel] : kernels_) {
      if (known == name) return kernel;
    }
    throw std::out_of_range(name);
  }
  Kernels kernels_;
  std::vector<std::string>& timed_;
};

class FakeTarget final : public TuneTarget {
 public:
  explicit FakeTarget(Kernels kernels) : kernels_(std::move(kernels)) {}
  std::optional<Desc> product_of(const Op&) const override { return {}; }
  std::unique_ptr<Trial> make_trial(const Desc& desc) override {
    measured.push_back(desc.m);
    return std::make_unique<FakeTrial>(kernels_, timed);
  }
  std::vector<int64_t> measured;
  std::vector<std::string> timed;

 private:
  Kernels kernels_;
};

Desc product(int64_t rows) { return {.m = rows, .n = 64, .k = 64}; }

TEST(GemmTuner, ChoosesTheFastestRightKernel) {
  std::vector<std::string> timed;
  FakeTrial trial({{"lib:default", {20, 0.5}},
                   {"lib:wrong", {1, 3.0}},
                   {"lib:nan", {1, std::numeric_limits<double>::quiet_NaN()}},
                   {"lib:absent", {1, kInfinity}},
                   {"lib:best", {12, 1.0}},
                   {"own:a", {15, 0.1}},
                   {"own:b", {30, 0.1}}},
                  timed);
  const Finding finding = measure(trial, product(8));
  EXPECT_EQ(finding.chosen.kernel, "lib:best");
  EXPECT_EQ(finding.library_default.kernel, "lib:default");
  EXPECT_EQ(finding.library_best.kernel, "lib:best");
  EXPECT_EQ(finding.own_best.kernel, "own:a");
  EXPECT_EQ(finding.tried, 7);
  EXPECT_EQ(finding.wrong, 1);
  for (const char* never : {"lib:wrong", "lib:nan", "lib:absent"})
    EXPECT_EQ(std::ranges::count(timed, never), 0) << never;
}

TEST(GemmTuner, MeasuresTheFinalistsAgain) {
  std::vector<std::string> timed;
  FakeTrial trial({{"own:lucky", {10, 0, 14}}, {"own:steady", {11, 0, 11}}}, timed);
  const Finding finding = measure(trial, product(8));
  EXPECT_EQ(finding.chosen.kernel, "own:steady");
  EXPECT_DOUBLE_EQ(finding.chosen.us, 11.0);
}

TEST(GemmTuner, KeepsKnownRowsAndStopsInTime) {
  FakeTarget target({{"own:a", {5, 0}}});
  Table table;
  table.put({.desc = product(1), .kernel = "own:old", .us = 1});
  double now = 0;
  TuneOptions options{.budget_s = 10, .date = "2026-01-31", .commit = "abc"};
  options.now_s = [&] { return now; };
  options.report = [&](size_t, size_t, const Desc&, const Finding* finding) {
    if (finding == nullptr) now += 6;
  };
  const std::vector<Desc> descs = {product(1), product(2), product(2), product(3), product(4), product(5)};
  EXPECT_EQ(tune(target, descs, table, options), 2U);  // those of 4 and 5 rows
  EXPECT_EQ(target.measured, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(table.find_exact(product(1))->kernel, "own:old");
  EXPECT_EQ(table.find_exact(product(3))->kernel, "own:a");
  EXPECT_EQ(table.find_exact(product(3))->commit, "abc");

  options.retune = true;
  options.budget_s = 1e9;
  EXPECT_EQ(tune(target, descs, table, options), 0U);
  EXPECT_EQ(table.find_exact(product(1))->kernel, "own:a");
  EXPECT_EQ(table.rows().size(), 5U);
}

TEST(GemmTuner, LeavesOutWhatNothingRuns) {
  FakeTarget target({{"own:a", {5, 2}}});
  Table table;
  TuneOptions options;
  options.now_s = [] { return 0.0; };
  EXPECT_EQ(tune(target, {product(1)}, table, options), 0U);
  EXPECT_TRUE(table.rows().empty());
}

}  // namespace
}  // namespace tendon::gemm
