// A network whose output is known: action_out_proj.weight = 0 and bias c give actions = noise - c, so that every number
// after the network can be written down. The expected values are computed here by their own formulas.
#include <cmath>

#include <gmock/gmock.h>

#include "policy/policy.h"
#include "tiny.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kWidth = 32;  // action_dim of the tiny checkpoints and of every preset

std::vector<float> bias() {
  std::vector<float> c;
  for (int i = 0; i < kWidth; ++i) c.push_back(0.03F * static_cast<float>(i) - 0.4F);
  return c;
}

EngineOptions engine_options(DType precision, int64_t steps) {
  EngineOptions options;
  options.precision = precision;
  options.steps = steps;
  return options;
}

class ConstantNetwork {
 public:
  explicit ConstantNetwork(const std::string& model, std::optional<int64_t> horizon = {}, int64_t steps = 10,
                           DType precision = DType::kBf16)
      : backend_(make_backend("cpu", {.threads = 1, .device = 0})) {
    write_constant_checkpoint(temp_.path(), data_dir() / model, bias());
    model_ = load_tiny(temp_.path(), horizon);
    engine_ = std::make_unique<Engine>(*backend_, model_.config, model_.weights, engine_options(precision, steps));
  }
  Engine& engine() { return *engine_; }
  const ModelConfig& config() const { return model_.config; }

 private:
  TempDir temp_;
  std::unique_ptr<Backend> backend_;
  LoadedModel model_;
  std::unique_ptr<Engine> engine_;
};

// --- engine ---------------------------------------------------------------------------------------------------------

TEST(ConstantNetworkEngine, ActionsAreNoiseMinusBias) {
  for (const char* const model : {"tiny_pi0", "tiny_pi05"}) {
    for (const DType precision : {DType::kF32, DType::kBf16}) {
      for (const int64_t steps : {1, 2, 3, 10, 25}) {
        ConstantNetwork network(model, {}, steps, precision);
        const Request request(network.config(), 1);
        const std::vector<float> actions = infer(network.engine(), request);
        const std::vector<float> c = bias();
        for (size_t i = 0; i < actions.size(); ++i) {
          const double want = double{request.noise[i]} - double{c[i % kWidth]};
          // Each step rounds dt·c and the sum once; dt itself is rounded.
          const double size = std::abs(double{request.noise[i]}) + std::abs(double{c[i % kWidth]});
          ASSERT_NEAR(actions[i], want, static_cast<double>(steps + 2) * 0x1.0p-24 * size + 1e-9)
              << model << " " << dtype_name(precision) << ", " << steps << " steps, value " << i;
        }
      }
    }
  }
}

// --- policy ---------------------------------------------------------------------------------------------------------

// What openpi's configurations say, written down once more.
struct Expected {
  const char* preset;
  const char* model;
  int state_width, action_width, horizon;
  std::vector<int> delta;  // dims whose action is relative to the state
  bool aloha = false;
  bool quantile = false;
};

std::vector<int> dims(int first, int end) {
  std::vector<int> result;
  for (int i = first; i < end; ++i) result.push_back(i);
  return result;
}
const std::vector<int> kTwoArms = {0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12};

std::vector<Expected> expectations() {
  return {
      {"pi0_aloha", "tiny_pi0", 14, 14, 50, kTwoArms, true},
      {"pi05_aloha", "tiny_pi05", 14, 14, 50, kTwoArms, true, true},
      {"pi0_aloha_towel", "tiny_pi0", 14, 14, 50, kTwoArms, true},
      {"pi0_aloha_tupperware", "tiny_pi0", 14, 14, 50, kTwoArms, true},
      {"pi0_aloha_pen_uncap", "tiny_pi0", 14, 14, 50, kTwoArms, true},
      {"pi05_aloha_pen_uncap", "tiny_pi05", 14, 14, 50, kTwoArms, true, true},
      {"pi0_aloha_sim", "tiny_pi0", 14, 14, 50, {}, true},
      {"pi0_droid", "tiny_pi0", 8, 8, 10, {}},
      {"pi05_droid", "tiny_pi05", 8, 8, 15, {}, false, true},
      {"pi05_droid_finetune", "tiny_pi05", 8, 8, 16, {}, false, true},
      {"pi05_full_droid_finetune", "tiny_pi05", 8, 8, 16, dims(0, 7), false, true},
      {"pi05_libero", "tiny_pi05", 8, 7, 10, {}, false, true},
      {"pi0_libero", "tiny_pi0", 8, 7, 50, dims(0, 6)},
      {"pi0_libero_low_mem_finetune", "tiny_pi0", 8, 7, 50, dims(0, 6)},
      {"pi05_droid_jointpos_polaris", "tiny_pi05", 8, 8, 15, dims(0, 7), false, true},
      {"pi0_droid_jointpos_polaris", "tiny_pi0", 8, 8, 10, dims(0, 7)},
      {"pi0_droid_jointpos_100k_polaris", "tiny_pi0", 8, 8, 10, dims(0, 7)},
      {"pi0_ur5", "tiny_pi0", 7, 7, 50, dims(0, 6)},
  };
}

NormStats statistics(bool quantile, int state_width, int action_width) {
  const auto entry = [&](int width, double shift) {
    NormEntry result;
    result.mode = quantile ? NormMode::kQuantile : NormMode::kMeanStd;
    for (int i = 0; i < width; ++i) {
      const double x = 0.1 * i + shift;
      result.mean.push_back(0.3 - x / 4);
      result.std.push_back(0.5 + x / 3);
      result.q01.push_back(-1.0 - x / 5);
      result.q99.push_back(0.75 + x / 2);
    }
    return result;
  };
  NormStats stats;
  stats.state = entry(state_width, 0.05);
  stats.actions = entry(action_width, 0.2);
  stats.where = "test";
  return stats;
}

// openpi's Unnormalize; past the statistics: mean 0 and std 1, or unchanged.
double unnormalized(const NormStats& stats, size_t dim, double x) {
  const NormEntry& s = stats.actions;
  if (s.mode == NormMode::kQuantile) {
    return dim < s.q01.size() ? (x + 1) / 2 * (s.q99[dim] - s.q01[dim] + 1e-6) + s.q01[dim] : x;
  }
  return dim < s.mean.size() ? x * (s.std[dim] + 1e-6) + s.mean[dim] : x * (1 + 1e-6);
}

bool flips(size_t dim) { return dim == 1 || dim == 2 || dim == 8 || dim == 9; }

// ALOHA's gripper position as the model sees it: the crank angle of the linkage, scaled.
double gripper_seen(double position) {
  const double opening = position * (0.05800 - 0.01844) + 0.01844;
  const double sine = (0.022 * 0.022 + opening * opening - 0.036 * 0.036) / (2 * 0.022 * opening);
  return (std::asin(std::min(1.0, std::max(-1.0, sine))) - 0.5476) / (1.6296 - 0.5476);
}

// What the robot must get for network output `raw` and robot state `state`.
std::vector<double> expected_actions(const Expected& e, const NormStats& stats, const std::vector<double>& raw,
                                     const std::vector<double>& state, bool adapt = true) {
  std::vector<double> result;
  for (size_t row = 0; row < raw.size() / kWidth; ++row) {
    for (size_t dim = 0; dim < static_cast<size_t>(e.action_width); ++dim) {
      double value = unnormalized(stats, dim, raw[row * kWidth + dim]);
      const bool gripper = dim == 6 || dim == 13;
      const bool convert = e.aloha && adapt;
      if (std::find(e.delta.begin(), e.delta.end(), static_cast<int>(dim)) != e.delta.end()) {
        value += convert && flips(dim) ? -state[dim] : state[dim];
      }
      if (convert && flips(dim)) value = -value;
      if (convert && gripper) value = (value + 0.5476 + 0.6213) / (1.4910 + 0.6213);
      result.push_back(value);
    }
  }
  return result;
}

std::vector<double> robot_state(int width, double shift = 0) {
  std::vector<double> state;
  for (int i = 0; i < width; ++i) state.push_back(0.05 * (i + 1) + shift);
  return state;
}

Image picture(int side, uint8_t value) {
  Image image;
  image.height = image.width = side;
  image.rgb.assign(static_cast<size_t>(side) * static_cast<size_t>(side) * 3, value);
  return image;
}

Observation observation(const Preset& preset, double state_shift = 0) {
  Observation result;
  for (size_t i = 0; i < kCameraSlots; ++i) {
    if (preset.robot->cameras[i].use != CameraUse::kUnused)
      result.cameras[i] = picture(28, static_cast<uint8_t>(90 + i));
  }
  result.state = robot_state(preset.robot->state_width, state_shift);
  result.tokens = {2, 107, 255, 193, 108};
  return result;
}

struct Call {
  std::vector<float> noise;
  std::vector<double> raw;  // noise - bias
};
Call make_call(const ModelConfig& config, int64_t number = 1) {
  Call call{synthetic_noise(config.horizon, kWidth, number), {}};
  const std::vector<float> c = bias();
  for (size_t i = 0; i < call.noise.size(); ++i) call.raw.push_back(double{call.noise[i]} - double{c[i % kWidth]});
  return call;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "value " << i;
}

TEST(ConstantNetworkPolicy, EveryPresetGivesTheRobotsNumbers) {
  EXPECT_EQ(expectations().size(), all_presets().size()) << "a preset has no expectation here";
  for (const Expected& e : expectations()) {
    SCOPED_TRACE(e.preset);
    const Preset& preset = find_preset(e.preset);
    ASSERT_EQ(preset.horizon, e.horizon);
    ConstantNetwork network(e.model, preset.horizon, 2);
    const Call call = make_call(network.config());
    // As long as the model, as the robot, and shorter than the robot's action.
    for (const int width : {static_cast<int>(kWidth), e.action_width, 5}) {
      const NormStats stats = statistics(e.quantile, std::min(width, e.state_width), width);
      Policy policy(network.engine(), preset, stats, nullptr);
      for (const double shift : {0.0, -0.7}) {  // the second request is relative to its own state
        const Observation seen = observation(preset, shift);
        const ActionChunk chunk = policy.infer(seen, call.noise);
        EXPECT_EQ(chunk.horizon, e.horizon);
        EXPECT_EQ(chunk.width, e.action_width);
        EXPECT_EQ(chunk.truncated_from, 0);
        expect_near(chunk.actions, expected_actions(e, stats, call.raw, seen.state), 1e-5);
      }
    }
  }
}

TEST(ConstantNetworkPolicy, AlohaAdapterCanBeOff) {
  const Expected e = {"pi0_aloha", "tiny_pi0", 14, 14, 50, kTwoArms, true};
  const Preset& preset = find_preset(e.preset);
  ConstantNetwork network(e.model, 3);
  const NormStats stats = statistics(false, 14, 14);
  Policy policy(network.engine(), preset, stats, nullptr, {.adapter = {.adapt_to_pi = false}, .strict_prompt = false});
  const Call call = make_call(network.config());
  const Observation seen = observation(preset);
  expect_near(policy.infer(seen, call.noise).actions, expected_actions(e, stats, call.raw, seen.state, false), 1e-5);
}

// openpi's own numbers: mean 0.1, std 0.5, model output 0.25, state from 0.05 to 0.7.
TEST(ConstantNetworkPolicy, AlohaRowOfOpenpi) {
  ConstantNetwork network("tiny_pi0", 2);
  NormStats stats;
  stats.state.mode = stats.actions.mode = NormMode::kMeanStd;
  stats.state.mean = stats.actions.mean = std::vector<double>(14, 0.1);
  stats.state.std = stats.actions.std = std::vector<double>(14, 0.5);
  const std::vector<float> c = bias();
  std::vector<float> noise(2 * kWidth);
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = 0.25F + c[i % kWidth];
  Policy policy(network.engine(), find_preset("pi0_aloha"), stats, nullptr);
  const std::vector<double> row = {.275, -.125, -.075, .425, .475, .525, .659897,
                                   .625, .225,  .275,  .775, .825, .875, .659897};
  std::vector<double> want = row;
  want.insert(want.end(), row.begin(), row.end());
  expect_near(policy.infer(observation(find_preset("pi0_aloha")), noise).actions, want, 2e-6);
}

// The state that the network gets: signs, linkage, normalisation, zero padding. A network whose output does not depend
// on it cannot tell, so here the network is whole and its answer is compared with the engine's on the prepared state.
TEST(Policy, AlohaStateReachesTheNetworkConverted) {
  const std::unique_ptr<Backend> backend = make_backend("cpu", {.threads = 1, .device = 0});
  const LoadedModel model = load_tiny(data_dir() / "tiny_pi0", 4);
  Engine engine(*backend, model.config, model.weights, engine_options(DType::kF32, 10));
  const Preset& preset = find_preset("pi0_aloha_sim");
  NormStats stats = statistics(false, 14, 14);
  stats.actions.mean.assign(14, 0.0);
  stats.actions.std.assign(14, 1.0 - 1e-6);
  Policy policy(engine, preset, stats, nullptr);
  Observation seen = observation(preset);
  for (const double gripper : {0.0, 0.25, 0.5, 0.75, 1.0, 1.1}) {
    seen.state[6] = gripper;
    seen.state[13] = 1.1 - gripper;
    const std::vector<float> noise = synthetic_noise(4, kWidth);
    const ActionChunk chunk = policy.infer(seen, noise);

    std::vector<float> state(kWidth, 0.0F);
    for (size_t i = 0; i < 14; ++i) {
      double value = flips(i) ? -seen.state[i] : seen.state[i];
      if (i == 6 || i == 13) value = gripper_seen(value);
      state[i] = static_cast<float>((value - stats.state.mean[i]) / (stats.state.std[i] + 1e-6));
    }
    Sample sample;
    for (const std::optional<Image>& camera : seen.cameras)
      sample.cameras.push_back({camera->rgb.data(), DType::kU8, true});
    sample.tokens = seen.tokens;
    sample.state = state;
    sample.noise = noise;
    const std::vector<float> raw = infer(engine, std::span(&sample, 1));
    for (size_t row = 0; row < 4; ++row) {
      for (size_t dim = 0; dim < 14; ++dim) {
        double want = flips(dim) ? -double{raw[row * kWidth + dim]} : double{raw[row * kWidth + dim]};
        if (dim == 6 || dim == 13) want = (want + 0.5476 + 0.6213) / (1.4910 + 0.6213);
        ASSERT_NEAR(chunk.actions[row * 14 + dim], want, 1e-5) << "gripper " << gripper << ", " << row << ", " << dim;
      }
    }
  }
  EXPECT_NEAR(gripper_seen(0), -1.079866, 1e-6);
  EXPECT_NEAR(gripper_seen(0.25), -0.513078, 1e-6);
  EXPECT_NEAR(gripper_seen(0.5), -0.140056, 1e-6);
  EXPECT_NEAR(gripper_seen(0.75), 0.223328, 1e-6);
  EXPECT_NEAR(gripper_seen(1), 0.945653, 1e-6);
  EXPECT_NEAR(gripper_seen(1.1), 0.945653, 1e-6);
}

TEST(ConstantNetworkPolicy, WithoutStatisticsUnitsAreTheNetworks) {
  const Preset& preset = find_preset("pi0_libero");
  ConstantNetwork network("tiny_pi0", 3);
  Policy policy(network.engine(), preset, std::nullopt, nullptr);
  const Call call = make_call(network.config());
  std::vector<double> want;
  for (size_t row = 0; row < 3; ++row) {
    for (size_t dim = 0; dim < 7; ++dim) want.push_back(call.raw[row * kWidth + dim]);
  }
  expect_near(policy.infer(observation(preset), call.noise).actions, want, 1e-5);
}

// LeRobot's inverse has no epsilon: exactly std, exactly q99 - q01.
TEST(ConstantNetworkPolicy, LerobotStatisticsHaveNoEpsilon) {
  const Preset& preset = find_preset("pi0_droid");
  ConstantNetwork network("tiny_pi0", 2);
  NormStats stats = statistics(false, 8, 8);
  stats.convention = NormConvention::kLerobot;
  stats.eps = 0.125;  // would show
  Policy policy(network.engine(), preset, stats, nullptr);
  const Call call = make_call(network.config());
  std::vector<double> want;
  for (size_t row = 0; row < 2; ++row) {
    for (size_t dim = 0; dim < 8; ++dim)
      want.push_back(call.raw[row * kWidth + dim] * stats.actions.std[dim] + stats.actions.mean[dim]);
  }
  expect_near(policy.infer(observation(preset), call.noise).actions, want, 1e-5);
}

// --- errors ---------------------------------------------------------------------------------------------------------

// The message of the Error(kBadInput) that `f` must throw.
template <class F>
std::string bad_input(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

class PolicyErrors : public testing::Test {
 protected:
  PolicyErrors() : network_("tiny_pi0", 2, 1), noise_(synthetic_noise(2, kWidth)) {}
  Policy make(const char* preset, const Tokenizer* tokenizer = nullptr, const PolicyOptions& options = {}) {
    return {network_.engine(), find_preset(preset), statistics(false, 7, 7), tokenizer, options};
  }
  std::string refused(Policy& policy, const Observation& seen) {
    return bad_input([&] { policy.infer(seen, noise_); });
  }

  ConstantNetwork network_;
  std::vector<float> noise_;
};

TEST_F(PolicyErrors, PresetOfTheOtherModel) {
  const std::string message = bad_input([&] { make("pi05_droid"); });
  EXPECT_THAT(message, HasSubstr("pi05_droid"));
  EXPECT_THAT(message, HasSubstr("pi05 model"));
  EXPECT_THAT(message, HasSubstr("pi0 model"));
}

TEST_F(PolicyErrors, StatisticsLongerThanTheActions) {
  EXPECT_NO_THROW(Policy(network_.engine(), find_preset("pi0_droid"), statistics(false, 33, 32), nullptr));
  const std::string message =
      bad_input([&] { Policy(network_.engine(), find_preset("pi0_droid"), statistics(false, 8, 33), nullptr); });
  EXPECT_THAT(message, HasSubstr("33"));
  EXPECT_THAT(message, HasSubstr("32"));
}

TEST_F(PolicyErrors, MissingCamerasAreListed) {
  Policy aloha = make("pi0_aloha");
  Observation seen = observation(find_preset("pi0_aloha"));
  seen.cameras[0].reset();
  std::string message = refused(aloha, seen);
  for (const char* part : {"base_0_rgb", "images/cam_high", "left", "right"}) EXPECT_THAT(message, HasSubstr(part));
  seen.cameras = {};
  EXPECT_THAT(refused(aloha, seen), HasSubstr("none"));

  Policy droid = make("pi0_droid");
  seen = observation(find_preset("pi0_droid"));
  seen.cameras[1].reset();
  message = refused(droid, seen);
  EXPECT_THAT(message, HasSubstr("observation/wrist_image_left"));
  EXPECT_THAT(message, HasSubstr("given: base"));
}

TEST_F(PolicyErrors, AlohaRunsWithoutWrists) {
  Policy aloha = make("pi0_aloha");
  Observation seen = observation(find_preset("pi0_aloha"));
  seen.cameras[1].reset();
  seen.cameras[2].reset();
  EXPECT_EQ(aloha.infer(seen, noise_).actions.size(), 28U);
}

TEST_F(PolicyErrors, StateOfTheWrongLengthOrNotFinite) {
  Policy policy = make("pi0_libero");
  Observation seen = observation(find_preset("pi0_libero"));
  for (const size_t width : {0, 7, 9, 32}) {
    seen.state.assign(width, 0.1);
    const std::string message = refused(policy, seen);
    EXPECT_THAT(message, HasSubstr("state of 8"));
    EXPECT_THAT(message, HasSubstr(std::to_string(width) + " were given"));
  }
  seen.state.assign(8, 0.1);
  seen.state[5] = std::nan("");
  EXPECT_THAT(refused(policy, seen), HasSubstr("state element 5"));
  // Finite, but not as the f32 that the network takes.
  seen.state[5] = 0;
  seen.state[2] = 1e300;
  const std::string message = refused(policy, seen);
  EXPECT_THAT(message, HasSubstr("state"));
  EXPECT_THAT(message, HasSubstr("index 2"));
}

TEST_F(PolicyErrors, NoiseOfTheWrongLength) {
  Policy policy = make("pi0_libero");
  noise_.pop_back();
  const std::string message = refused(policy, observation(find_preset("pi0_libero")));
  EXPECT_THAT(message, HasSubstr("noise"));
  EXPECT_THAT(message, HasSubstr("63"));
  EXPECT_THAT(message, HasSubstr("64"));
}

TEST_F(PolicyErrors, TextNeedsATokenizer) {
  Policy policy = make("pi0_libero");
  Observation seen = observation(find_preset("pi0_libero"));
  seen.tokens.clear();
  seen.prompt = "pick up the cup";
  EXPECT_THAT(refused(policy, seen), HasSubstr("--tokenizer"));
}

TEST_F(PolicyErrors, TokenizerLargerThanTheEmbedding) {
  const Tokenizer tokenizer((data_dir() / "policy" / "tiny_tokenizer.model").string());  // 560 pieces, 512 rows
  const std::string message = bad_input([&] { make("pi0_libero", &tokenizer); });
  EXPECT_THAT(message, HasSubstr("560"));
  EXPECT_THAT(message, HasSubstr("512"));
}

TEST_F(PolicyErrors, PromptOverTheBudget) {
  Policy cutting = make("pi0_libero");
  Policy strict = make("pi0_libero", nullptr, {.adapter = {}, .strict_prompt = true});
  Observation seen = observation(find_preset("pi0_libero"));
  seen.tokens.assign(12, 5);
  EXPECT_EQ(cutting.infer(seen, noise_).truncated_from, 0);
  EXPECT_EQ(strict.infer(seen, noise_).truncated_from, 0);
  for (const size_t count : {size_t{13}, size_t{120}, size_t{100000}}) {
    seen.tokens.assign(count, 5);
    EXPECT_EQ(cutting.infer(seen, noise_).truncated_from, static_cast<int>(count));
    const std::string message = refused(strict, seen);
    EXPECT_THAT(message, HasSubstr(std::to_string(count)));
    EXPECT_THAT(message, HasSubstr("12"));
  }
}

// A vocabulary as large as the tokenizer's, so that text works: π0's form is cut at the budget, π0.5's holds the state.
class TextPrompt : public testing::Test {
 protected:
  TextPrompt() : tokenizer_((data_dir() / "policy" / "tiny_tokenizer.model").string()) {}

  // The tiny checkpoint with rows added to its embedding.
  LoadedModel load(const std::string& model) {
    StoredMap weights = read_weights(data_dir() / model);
    for (auto& [name, stored] : weights) {
      if (stored.shape.rank() != 2 || stored.shape[0] != 512) continue;
      std::vector<float> values = stored.floats();
      const size_t first = values.size();
      values.resize(static_cast<size_t>(560 * stored.shape[1]));
      for (size_t i = first; i < values.size(); ++i) values[i] = values[i - first];
      stored = store(values, {560, stored.shape[1]}, DType::kBf16);
    }
    write_checkpoint(temp_.path(), weights, data_dir() / model);
    return load_tiny(temp_.path(), 2, 40);
  }

  TempDir temp_;
  Tokenizer tokenizer_;
  std::unique_ptr<Backend> backend_ = make_backend("cpu", {.threads = 1, .device = 0});
};

TEST_F(TextPrompt, TextEqualsItsTokens) {
  const LoadedModel model = load("tiny_pi0");
  Engine engine(*backend_, model.config, model.weights, engine_options(DType::kBf16, 2));
  const Preset& preset = find_preset("pi0_libero");
  Policy policy(engine, preset, statistics(false, 8, 7), &tokenizer_);
  const std::vector<float> noise = synthetic_noise(2, kWidth);
  Observation text = observation(preset);
  text.tokens.clear();
  text.prompt = "pick up the red cube";
  Observation ids = text;
  ids.tokens = {kBosToken};
  for (const char* part : {"pick up the red cube", "\n"}) {
    for (const int32_t id : tokenizer_.encode(part)) ids.tokens.push_back(id);
  }
  const std::vector<double> want = policy.infer(ids, noise).actions;
  EXPECT_EQ(policy.infer(text, noise).actions, want);
  text.prompt = "  pick_up the red\ncube ";
  EXPECT_EQ(policy.infer(text, noise).actions, want) << "cleaned like openpi's";
  text.prompt = "pick up the blue cube";
  EXPECT_NE(policy.infer(text, noise).actions, want);

  text.prompt = std::string(4000, 'z') + " pick up";
  const ActionChunk cut = policy.infer(text, noise);
  EXPECT_GT(cut.truncated_from, 40);
  text.prompt += " something else";
  EXPECT_EQ(policy.infer(text, noise).actions, cut.actions) << "the first tokens are kept";
}

// π0.5 reads the state through the prompt, in bins of the normalised value.
TEST_F(TextPrompt, Pi05SeesTheStateInThePrompt) {
  const LoadedModel model = load("tiny_pi05");
  Engine engine(*backend_, model.config, model.weights, engine_options(DType::kBf16, 2));
  const Preset& preset = find_preset("pi05_droid");
  NormStats stats = statistics(true, 8, 8);
  stats.state.q01.assign(8, -1.0);
  stats.state.q99.assign(8, 1.0 - 1e-6);  // normalised = itself
  Policy policy(engine, preset, stats, &tokenizer_);
  const std::vector<float> noise = synthetic_noise(2, kWidth);
  Observation text = observation(preset);
  text.tokens.clear();
  text.prompt = "go";
  text.state.assign(8, 1e-3);
  const std::vector<double> actions = policy.infer(text, noise).actions;
  text.state[0] = 5e-3;  // the same bin
  EXPECT_EQ(policy.infer(text, noise).actions, actions);
  text.state[0] = 0.5;
  EXPECT_NE(policy.infer(text, noise).actions, actions);
  Observation ids = text;
  ids.tokens = {kBosToken};
  for (const int32_t id : tokenizer_.encode("Task: go, State: 192 128 128 128 128 128 128 128;\nAction: ")) {
    if (ids.tokens.size() < 40) ids.tokens.push_back(id);
  }
  EXPECT_EQ(policy.infer(text, noise).actions, policy.infer(ids, noise).actions);
}

}  // namespace
}  // namespace tendon::test
