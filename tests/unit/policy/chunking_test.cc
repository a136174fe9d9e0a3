#include "policy/chunking.h"

#include <cmath>

#include "policy/adapters.h"
#include "policy_test.h"

namespace tendon {
namespace {

// Pitfall 23: the tables for delay 2, overlap 6, horizon 10.
TEST(ChunkingWeights, FallAsTheScheduleSays) {
  const auto weights = [](GuidanceSchedule schedule) { return guidance_weights(schedule, 2, 6, 10); };
  const std::vector<double> linear = {1, 1, .8, .6, .4, .2, 0, 0, 0, 0};
  const std::vector<double> exponential = {1, 1, .5706, .2871, .1145, .0258, 0, 0, 0, 0};
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(weights(GuidanceSchedule::kLinear)[i], linear[i], 1e-12);
    EXPECT_NEAR(weights(GuidanceSchedule::kExp)[i], exponential[i], 5e-5);
    EXPECT_EQ(weights(GuidanceSchedule::kOnes)[i], i < 6 ? 1 : 0);
    EXPECT_EQ(weights(GuidanceSchedule::kZeros)[i], i < 2 ? 1 : 0);
  }
  EXPECT_EQ(guidance_weights(GuidanceSchedule::kExp, 3, 3, 3), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(guidance_weights(GuidanceSchedule::kExp, 0, 0, 2), (std::vector<double>{0, 0}));
}

// Field case 25: what is left stands beside the new chunk; a short tail goes on with its last row.
TEST(ChunkingRows, AreAlignedAndExtended) {
  const PreviousActions previous{.actions = {0, 0, 1, 10, 2, 20, 3, 30}, .rows = 4, .start = 2, .delay = 1};
  EXPECT_EQ(aligned_rows(previous, 2, 4), (std::vector<double>{2, 20, 3, 30, 3, 30, 3, 30}));
  const ChunkOverlap overlap = check_previous(previous, 2, 4, {});
  EXPECT_EQ(overlap.start, 2);
  EXPECT_EQ(overlap.delay, 1);
  EXPECT_EQ(overlap.overlap, 2);
}

TEST(ChunkingRows, AreRefusedWhenTheyCannotBeUsed) {
  const PreviousActions good{.actions = {0, 1, 2, 3, 4, 5}, .rows = 3, .start = 1, .delay = 2};
  EXPECT_NO_THROW(check_previous(good, 2, 3, {}));
  const auto refused = [&](const std::vector<std::string>& parts, const auto& change, const ChunkingRules& rules = {}) {
    PreviousActions bad = good;
    change(bad);
    expect_bad_input(parts, [&] { check_previous(bad, 2, 3, rules); });
  };
  refused({"0 rows", "1 to 3"}, [](PreviousActions& p) { p.rows = 0, p.actions.clear(); });
  refused({"4 rows"}, [](PreviousActions& p) { p.rows = 4, p.actions.resize(8); });
  refused({"5 numbers in 3 rows", "2 in a row"}, [](PreviousActions& p) { p.actions.pop_back(); });
  refused({"index 4"}, [](PreviousActions& p) { p.actions[4] = NAN; });
  refused({"starts at row 3", "0 to 2"}, [](PreviousActions& p) { p.start = 3; });
  refused({"starts at row -1"}, [](PreviousActions& p) { p.start = -1; });
  refused({"delay of 3", "2 rows of the previous chunk are left"}, [](PreviousActions& p) { p.delay = 3; });
  refused({"delay of -1"}, [](PreviousActions& p) { p.delay = -1; });
  refused({"delay of 2", "at most 1"}, [](PreviousActions&) {}, {.schedule = {}, .max_delay = 1});
}

// Pitfall 23: the way in is the way out backwards, relative to the state of the new call.
TEST(ChunkingRows, GoBackToTheModel) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    std::vector<double> state, rows;
    for (int i = 0; i < preset.robot->state_width; ++i) state.push_back(0.1 + 0.05 * i);
    for (int i = 0; i < 3 * preset.robot->action_width; ++i) rows.push_back(std::sin(i));
    const std::vector<double> model_state = robot_state_in(preset, state);
    const std::vector<double> model = robot_actions_in(preset, rows, model_state);
    const std::vector<double> back = robot_actions_out(preset, model, preset.robot->action_width, model_state);
    ASSERT_EQ(back.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(back[i], rows[i], 1e-12) << i;
  }
}

}  // namespace
}  // namespace tendon
