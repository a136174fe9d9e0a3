#include "checkpoint/norm_stats.h"

#include <cmath>
#include <limits>

#include "test_files.h"

namespace tendon {
namespace {

using test::expect_refusal;

NormStats quantile(NormConvention convention, std::vector<double> q01, std::vector<double> q99) {
  NormStats stats;
  stats.convention = convention;
  stats.eps = convention == NormConvention::kOpenpi ? 1e-6 : 1e-8;
  stats.state = {NormMode::kQuantile, {}, {}, std::move(q01), std::move(q99)};
  stats.actions = stats.state;
  return stats;
}

NormStats mean_std(NormConvention convention, std::vector<double> mean, std::vector<double> std) {
  NormStats stats;
  stats.convention = convention;
  stats.eps = convention == NormConvention::kOpenpi ? 1e-6 : 1e-8;
  stats.state = {NormMode::kMeanStd, std::move(mean), std::move(std), {}, {}};
  stats.actions = stats.state;
  return stats;
}

using Vector = std::vector<double>;

TEST(NormStats, OpenpiQuantileGoldenNumbers) {
  const NormStats stats = quantile(NormConvention::kOpenpi, {-1, 0}, {3, 0});
  const Vector state = {0.5, 1e-6};
  const Vector normal = normalize_state(stats, state);
  EXPECT_EQ(normal[0], -0.2500001874999531);
  EXPECT_EQ(normal[1], 1.0);  // q01 == q99: the denominator is eps
  const Vector back = unnormalize_state(stats, normal);
  EXPECT_NEAR(back[0], 0.5, 1e-12);
  EXPECT_NEAR(back[1], 1e-6, 1e-18);
  // Nothing is clipped.
  EXPECT_LT(normalize_state(stats, Vector{-2})[0], -1.4);
  EXPECT_GT(normalize_state(stats, Vector{5})[0], 1.9);
}

TEST(NormStats, OpenpiMeanStdUsesEpsBothWays) {
  const NormStats stats = mean_std(NormConvention::kOpenpi, {1, 2}, {0.5, 0});
  const Vector normal = normalize_state(stats, Vector{2, 2.000001});
  EXPECT_EQ(normal[0], 1.0 / 0.500001);
  EXPECT_NEAR(normal[1], 1.0, 1e-9);
  EXPECT_EQ(unnormalize_actions(stats, Vector{1, 1}, 2), (Vector{1 + (0.5 + 1e-6), 2 + 1e-6}));
}

TEST(NormStats, LerobotMeanStdHasNoEpsInTheInverse) {
  const NormStats stats = mean_std(NormConvention::kLerobot, {1, 2}, {0.5, 0});
  EXPECT_EQ(normalize_state(stats, Vector{2, 2})[0], 1.0 / (0.5 + 1e-8));
  EXPECT_EQ(unnormalize_actions(stats, Vector{1, 1}, 2), (Vector{1.5, 2}));
}

TEST(NormStats, LerobotQuantileReplacesOnlyAZeroRange) {
  const NormStats stats = quantile(NormConvention::kLerobot, {-1, 2}, {3, 2});
  EXPECT_EQ(normalize_state(stats, Vector{0.5, 2}), (Vector{-0.25, -1}));
  EXPECT_EQ(normalize_state(stats, Vector{0.5, 2 + 1e-8})[1], 2.0 * ((2 + 1e-8) - 2) / 1e-8 - 1.0);
  EXPECT_EQ(unnormalize_actions(stats, Vector{-0.25, 1}, 2), (Vector{0.5, 2 + 1e-8}));
}

TEST(NormStats, RoundTripIsExactTo1e12) {
  for (const NormConvention convention : {NormConvention::kOpenpi, NormConvention::kLerobot}) {
    const Vector rows = {0.1, -7, 2.5, 3, 1e3, -0.25};
    const NormStats q = quantile(convention, {-1, -8, 0}, {3, 9, 2.5});
    const NormStats z = mean_std(convention, {1, 2, 3}, {0.5, 2, 9});
    for (const NormStats& stats : {q, z}) {
      const Vector back = unnormalize_actions(stats, normalize_actions(stats, rows, 3), 3);
      const double tolerance =
          convention == NormConvention::kOpenpi ? 1e-12 : 2e-7;  // LeRobot's z-score is no exact inverse
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(back[i] / rows[i], 1, tolerance) << i;
    }
  }
}

TEST(NormStats, FieldCase07_LongerThanTheStateIsCut) {
  EXPECT_EQ(normalize_state(quantile(NormConvention::kLerobot, {-1, 0, 0}, {3, 1, 1}), Vector{0.5}), Vector{-0.25});
  EXPECT_EQ(normalize_state(mean_std(NormConvention::kLerobot, {1, 5}, {1, 5}), Vector{1}), Vector{0});
}

TEST(NormStats, FieldCase07_ShorterLeavesTheRest) {
  for (const NormConvention convention : {NormConvention::kOpenpi, NormConvention::kLerobot}) {
    const NormStats q = quantile(convention, {-1}, {3});
    EXPECT_EQ(normalize_state(q, Vector{0.5, 7})[1], 7);
    EXPECT_EQ(unnormalize_actions(q, Vector{0, 7, 0, -7}, 2)[1], 7);
    EXPECT_EQ(unnormalize_actions(q, Vector{0, 7, 0, -7}, 2)[3], -7);
    const NormStats z = mean_std(convention, {1}, {2});
    EXPECT_EQ(normalize_state(z, Vector{1, 7})[1], 7 / (1 + z.eps));
    EXPECT_EQ(unnormalize_actions(z, Vector{0, 7}, 2)[1], convention == NormConvention::kOpenpi ? 7 * (1 + 1e-6) : 7);
  }
}

TEST(NormStats, FieldCase07_LongerThanTheActionWidthIsRefused) {
  NormStats stats = quantile(NormConvention::kOpenpi, {-1, 0, 0}, {3, 1, 1});
  stats.where = "norm_stats.json";
  require_action_width(stats, 3);
  expect_refusal([&] { require_action_width(stats, 2); }, {"norm_stats.json", "length 3", "width 2", "--norm-stats"});
  expect_refusal([&] { unnormalize_actions(stats, Vector{0, 0}, 2); }, {"length 3"});
  expect_refusal([&] { normalize_actions(stats, Vector{0, 0}, 2); }, {"length 3"});
}

TEST(NormStats, IdentityAndInPlace) {
  NormStats stats;
  EXPECT_EQ(normalize_state(stats, Vector{3, 4}), (Vector{3, 4}));
  EXPECT_EQ(unnormalize_actions(stats, Vector{3, 4}, 1), (Vector{3, 4}));
  const NormStats q = quantile(NormConvention::kOpenpi, {-1}, {3});
  Vector values = {0.5};
  normalize(q.state, q.convention, q.eps, values, values);
  EXPECT_EQ(values[0], -0.2500001874999531);
}

NormStats parse(const std::string& text, NormMode mode) {
  return parse_openpi_norm_stats(text, "a/norm_stats.json", mode);
}

std::string stats_json(const std::string& state,
                       const std::string& actions = R"({"mean":[0],"std":[1],"q01":[0],"q99":[1]})") {
  return R"({"norm_stats": {"state": )" + state + R"(, "actions": )" + actions +
         R"(, "extra": {"mean": "x"}}, "version": 3})";
}

TEST(NormStats, FieldCase07_ReadsOpenpiAndIgnoresExtraFields) {
  const std::string text = stats_json(R"({"mean":[1,2],"std":[3,4],"q01":[-1,0],"q99":[1,2.5],"count":7})");
  const NormStats stats = parse(text, NormMode::kQuantile);
  EXPECT_EQ(stats.state.mean, (Vector{1, 2}));
  EXPECT_EQ(stats.state.q99, (Vector{1, 2.5}));
  EXPECT_EQ(stats.state.width(), 2);
  EXPECT_EQ(stats.actions.width(), 1);
  EXPECT_EQ(stats.eps, 1e-6);
  EXPECT_TRUE(stats.state.mode == NormMode::kQuantile && stats.convention == NormConvention::kOpenpi);
  EXPECT_TRUE(parse(text, NormMode::kMeanStd).actions.mode == NormMode::kMeanStd);
  // pi0 does not need quantiles.
  EXPECT_EQ(parse(stats_json(R"({"mean":[1],"std":[3],"q01":null,"q99":null})"), NormMode::kMeanStd).state.width(), 1);
  EXPECT_EQ(parse(stats_json(R"({"mean":[1],"std":[3]})"), NormMode::kMeanStd).state.width(), 1);
}

TEST(NormStats, FieldCase07_RefusalsNameEntryAndStatistic) {
  constexpr NormMode kZ = NormMode::kMeanStd;
  constexpr NormMode kQ = NormMode::kQuantile;
  const struct {
    std::string text;
    NormMode mode;
    std::vector<std::string> parts;
  } cases[] = {
      {stats_json(R"({"mean":[1],"std":[1]})"), kQ, {"state.q01", "missing", "quantile"}},
      {stats_json(R"({"mean":[1],"std":[1],"q01":[0],"q99":null})"), kQ, {"state.q99", "missing"}},
      {stats_json(R"({"mean":[1],"std":[1],"q01":[0],"q99":[1]})", R"({"mean":[1],"std":[1]})"), kQ, {"actions.q01"}},
      {stats_json(R"({"q01":[0],"q99":[1]})"), kZ, {"state.mean", "missing", "mean/std"}},
      {stats_json(R"({"mean":[1]})"), kZ, {"state.std", "missing"}},
      {stats_json(R"({"mean":[1,2],"std":[1]})"), kZ, {"state.mean", "length 2", "state.std", "length 1"}},
      {stats_json(R"({"q01":[1,2],"q99":[1,2,3]})"), kQ, {"state.q01", "length 2", "state.q99", "length 3"}},
      {stats_json(R"({"mean":[1,[2,3]],"std":[1,1]})"), kZ, {"state.mean[1]", "a list", "flat list"}},
      {stats_json(R"({"mean":[[1],[2]],"std":[1,1]})"), kZ, {"state.mean[0]", "a list"}},
      {stats_json(R"({"mean":[1,NaN],"std":[1,1]})"), kZ, {"state.mean[1]", "NaN"}},
      {stats_json(R"({"mean":[1,0],"std":[Infinity,1]})"), kZ, {"state.std[0]", "Infinity"}},
      {stats_json(R"({"mean":[1,0],"std":[1,1],"q01":[0,-Infinity],"q99":[1,1]})"), kQ, {"state.q01[1]", "-Infinity"}},
      {stats_json(R"({"mean":[1,null],"std":[1,1]})"), kZ, {"state.mean[1]", "null"}},
      {stats_json(R"({"mean":[1],"std":[1]})", R"({"mean":[1],"std":["1"]})"), kZ, {"actions.std[0]"}},
      {stats_json(R"({"mean":3,"std":[1]})"), kZ, {"state.mean", "an integer", "list of numbers"}},
      {stats_json(R"({"mean":[],"std":[]})"), kZ, {"state.mean", "empty"}},
      {stats_json(R"({"mean":[1],"std":[-1]})"), kZ, {"state.std[0]", "-1"}},
      {stats_json(R"({"q01":[1],"q99":[0]})"), kQ, {"state.q99[0]", "below"}},
      {stats_json(R"({"mean":[1e999],"std":[-1]})"), kZ, {"overflow"}},
      {stats_json("[]"), kZ, {"'state'"}},
      {R"({"norm_stats": {"state": {"mean":[0],"std":[1]}}})", kZ, {"'actions'"}},
      {R"({"norm_stats": {"actions": {"mean":[0],"std":[1]}}})", kZ, {"'state'"}},
      {R"({"state": {}})", kZ, {"'norm_stats'"}},
      {R"([])", kZ, {"'norm_stats'"}},
      {R"(nope)", kZ, {"not valid JSON"}},
  };
  for (const auto& [text, mode, parts] : cases) {
    SCOPED_TRACE(text);
    expect_refusal([&, m = mode] { parse(text, m); }, parts);
    expect_refusal([&, m = mode] { parse(text, m); }, {"a/norm_stats.json"});
  }
}

TEST(NormStats, CheckRefusesNonFiniteWithIndex) {
  NormEntry entry{NormMode::kMeanStd, {0, 0}, {1, std::numeric_limits<double>::infinity()}, {}, {}};
  expect_refusal([&] { check_norm_entry(entry, "w.safetensors", "observation.state"); },
                 {"w.safetensors", "observation.state.std[1]", "inf"});
}

}  // namespace
}  // namespace tendon
