// Every tiny golden case of both models, stage by stage, in f32 and bf16, with exact and rounded RoPE frequencies.
#include <gtest/gtest.h>

#include <memory>

#include "backend/registry.h"
#include "checkpoint/checkpoint.h"
#include "fixture.h"

namespace tendon::test {
namespace {

struct Variation {
  std::string name;  // variant in the fixture
  DType precision;
  RopeFrequencies rope;
  bool is_f32() const { return precision == DType::kF32; }
};
const Variation kVariations[] = {
    {"f32_exact", DType::kF32, RopeFrequencies::kExact},
    {"f32_rounded", DType::kF32, RopeFrequencies::kBf16},
    {"bf16_exact", DType::kBf16, RopeFrequencies::kExact},
    {"bf16_rounded", DType::kBf16, RopeFrequencies::kBf16},
};

struct Case {
  std::string model, file;
  Variation variation;
};

const std::vector<std::string> kFiles{"all_cams_n10",    "all_cams_n5",     "all_cams_n1",
                                      "cam2_masked_n10", "cam0_masked_n10", "padded_prompt_n10",
                                      "batch2_n10",      "horizon12_n5",    "a8_n10"};

std::vector<Case> cases_of(const std::vector<std::string>& files) {
  std::vector<Case> cases;
  for (const char* model : {"tiny_pi0", "tiny_pi05"}) {
    for (const std::string& file : files) {
      for (const Variation& variation : kVariations) cases.push_back({model, file, variation});
    }
  }
  return cases;
}

// Shared, so that kernels which oneDNN generates for one case serve the others.
Backend& backend() {
  static const std::unique_ptr<Backend> shared = make_backend(TENDON_TEST_BACKEND);
  return *shared;
}

// A checkpoint opened for one case; weights are views into the mapped file.
struct Model {
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;
  Weights weights;

  Model(const std::filesystem::path& directory, const CaseInputs& inputs) : checkpoint(Checkpoint::open(directory)) {
    config = infer_model_config(*checkpoint, checkpoint->config(), detect_variant(*checkpoint));
    choose_lengths(config, checkpoint->config(), {.option = inputs.horizon, .preset = {}},
                   {.option = inputs.cap, .preset = {}});
    weights = load_weights(*checkpoint, config);
  }
};

class TinyGolden : public testing::TestWithParam<Case> {
 protected:
  TinyGolden()
      : directory_(data_dir() / GetParam().model),
        fixture_(directory_ / (GetParam().file + ".safetensors")),
        inputs_(fixture_),
        model_(GetParam().file == "a8_n10" ? directory_ / "a8" : directory_, inputs_),
        reference_(GetParam().variation.is_f32() || GetParam().variation.rope == RopeFrequencies::kExact
                       ? "f32_exact"
                       : "f32_rounded") {
    if (GetParam().variation.name == "f32_rounded") reference_ = "f32_rounded";
    const Array times = fixture_.get("ref/time");
    schedule_ = {times.values, static_cast<float>(-1.0 / static_cast<double>(times.values.size()))};
  }

  Engine make_engine(const Folds& folds, std::optional<Schedule> schedule = {}) {
    EngineOptions options;
    options.precision = GetParam().variation.precision;
    options.rope = GetParam().variation.rope;
    options.schedule = schedule ? *schedule : schedule_;
    options.folds = folds;
    options.taps = true;
    return {backend(), model_.config, model_.weights, options};
  }

  std::vector<float> run(Engine& engine, const float* noise) {
    std::vector<float> actions(static_cast<size_t>(inputs_.batch * inputs_.horizon * inputs_.action_dim));
    const std::vector<Sample> samples = inputs_.samples(noise);
    const Status status = engine.infer(samples, actions);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return actions;
  }

  bool f32() const { return GetParam().variation.is_f32(); }
  bool pi05() const { return model_.config.pi05(); }
  Array reference(const std::string& name) const { return fixture_.get(reference_ + "/" + name); }
  bool has_reference(const std::string& name) const { return fixture_.has(reference_ + "/" + name); }

  void expect_close(const std::string& what, const Distance& d, double max_abs, double relative) const {
    if (f32()) {
      EXPECT_LE(d.max_abs, max_abs) << what << " (relative " << d.relative() << ")";
    } else {
      EXPECT_LE(d.relative(), relative) << what << " (max abs " << d.max_abs << ")";
    }
    EXPECT_FALSE(std::isnan(d.max_abs)) << what;
  }

  // Compares valid prefix slots of (B, S, ·) reference rows with packed rows of `got` (B, stride, ·).
  Distance compare_slots(const Array& want, const std::vector<float>& got, int64_t got_rows_per_sample) const {
    const Array valid = fixture_.get("ref/valid");
    const int64_t slots = valid.cols();
    Distance distance;
    for (int64_t b = 0; b < inputs_.batch; ++b) {
      int64_t packed = 0;
      for (int64_t s = 0; s < slots; ++s) {
        if (valid.row(b)[s] == 0) continue;
        distance.add(got.data() + (b * got_rows_per_sample + packed++) * want.cols(), want.row(b * slots + s),
                     want.cols());
      }
    }
    return distance;
  }

  std::filesystem::path directory_;
  Fixture fixture_;
  CaseInputs inputs_;
  Model model_;
  std::string reference_;
  Schedule schedule_;
};

TEST_P(TinyGolden, EveryStageMatches) {
  Engine engine = make_engine({});
  const std::vector<float> actions = run(engine, inputs_.noise.values.data());
  const Plan& plan = engine.plan();
  const ModelConfig& c = model_.config;
  const int64_t steps = std::ssize(schedule_.times);

  // Vision: one feature block per active camera, samples first.
  const std::vector<float> features = read_value(plan, "image_features");
  int64_t block = 0;
  Distance vision;
  for (int64_t b = 0; b < inputs_.batch; ++b) {
    for (int64_t camera = 0; camera < inputs_.slots; ++camera) {
      if (!inputs_.camera_active(b, camera)) continue;
      const Array want = fixture_.get("f32_exact/image_features." + std::string(kCameraSlotNames[camera]));
      const int64_t values = c.vision.tokens() * c.prefix.width;
      vision.add(features.data() + block++ * values, want.values.data() + b * values, values);
    }
  }
  expect_close("image features", vision, 2e-5, 0.03);

  const int64_t prefix_rows = engine.bucket().prefix_rows;
  const int64_t capacity = plan.tensor("k_cache.0").shape[1];
  expect_close("prefix embeds",
               compare_slots(reference("prefix_embeds"), read_value(plan, "prefix_embeds"), prefix_rows), 2e-5, 0.03);
  for (int64_t layer = 0; layer < c.depth; ++layer) {
    const std::string at = std::to_string(layer);
    expect_close("k." + at, compare_slots(reference("k." + at), read_value(plan, "k_cache." + at), capacity), 4e-5,
                 0.025);
    expect_close("v." + at, compare_slots(reference("v." + at), read_value(plan, "v_cache." + at), capacity), 4e-5,
                 0.025);
  }

  // Suffix rows: the reference's first row is the state token, which is computed once here.
  const int64_t n = inputs_.horizon + (pi05() ? 0 : 1);
  const int64_t skip = n - inputs_.horizon;
  const int64_t width = c.expert.width;
  const Array suffix = reference("suffix_embeds");
  const Array velocity = reference("v_t");
  for (int64_t step = 0; step < steps; ++step) {
    const std::string at = "." + std::to_string(step);
    const std::vector<float> got_suffix = read_value(plan, "suffix_embeds" + at);
    Distance distance;
    for (int64_t b = 0; b < inputs_.batch; ++b) {
      distance.add(got_suffix.data() + b * inputs_.horizon * width, suffix.row((step * inputs_.batch + b) * n + skip),
                   inputs_.horizon * width);
    }
    expect_close("suffix" + at, distance, 1e-4, 0.06);
    const std::vector<float> got_velocity = read_value(plan, "v" + at);
    Distance v;
    v.add(got_velocity.data(), velocity.values.data() + step * std::ssize(got_velocity), std::ssize(got_velocity));
    if (f32()) expect_close("v" + at, v, 1e-4, 0);
  }

  Distance result;
  const Array want = reference("actions");
  result.add(actions.data(), want.values.data(), std::ssize(actions));
  expect_close("actions", result, 3e-5, pi05() ? 0.015 : 0.04);
}

// The cases that store hidden states.
class TinyHiddenStates : public TinyGolden {};

TEST_P(TinyHiddenStates, OfEveryLayerMatch) {
  Folds folds;
  folds.last_prefix_layer_kv_only = false;  // the fixture holds the last prefix layer too
  Engine engine = make_engine(folds);
  run(engine, inputs_.noise.values.data());
  const Plan& plan = engine.plan();
  const ModelConfig& c = model_.config;
  const auto vision = [&](const std::string& ours, const std::string& theirs) {
    const std::vector<float> got = read_value(plan, ours);
    Distance distance;
    for (int64_t camera = 0; camera < inputs_.slots; ++camera) {
      const Array want = fixture_.get("f32_exact/" + theirs + "." + std::string(kCameraSlotNames[camera]));
      distance.add(got.data() + camera * std::ssize(want.values), want.values.data(), std::ssize(want.values));
    }
    expect_close(ours, distance, 4e-5, 0.03);
  };
  vision("vision.embed", "vision_embed");
  for (int64_t i = 0; i < c.vision.depth; ++i)
    vision("vision.layer." + std::to_string(i), "vision_layer." + std::to_string(i));
  for (int64_t i = 0; i < c.depth; ++i) {
    const std::string at = "prefix.layer." + std::to_string(i);
    expect_close(at,
                 compare_slots(reference("prefix_layer." + std::to_string(i)), read_value(plan, at),
                               engine.bucket().prefix_rows),
                 2e-4, 0.03);
  }
  const int64_t skip = pi05() ? 0 : 1;
  const auto expert = [&](const std::string& ours, const std::string& theirs) {
    const std::vector<float> got = read_value(plan, ours);
    const Array want = reference(theirs);
    Distance distance;
    distance.add(got.data(), want.row(skip), std::ssize(got));
    expect_close(ours, distance, 1e-4, 0.04);
  };
  for (int64_t i = 0; i < c.depth; ++i)
    expert("expert.layer." + std::to_string(i) + ".0", "expert_layer." + std::to_string(i));
  expert("expert_out.0", "expert_out");
}

// The velocity of every step from the reference's own x_t, so that errors do not accumulate.
TEST_P(TinyGolden, VelocityOfEveryStepFromReferenceActions) {
  const Array x = fixture_.get("f32_exact/x_t");
  const Array velocity = reference("v_t");
  const int64_t values = inputs_.batch * inputs_.horizon * inputs_.action_dim;
  for (int64_t step = 0; step < std::ssize(schedule_.times); ++step) {
    Engine engine = make_engine({}, Schedule{{schedule_.times[static_cast<size_t>(step)]}, schedule_.dt});
    run(engine, x.values.data() + step * values);
    Distance distance;
    const std::vector<float> got = read_value(engine.plan(), "v.0");
    distance.add(got.data(), velocity.values.data() + step * values, values);
    // x_t is stored for exact frequencies; with rounded ones it differs a little (README of the fixtures, §5).
    const bool same_x = reference_ == "f32_exact";
    expect_close("v at step " + std::to_string(step), distance, same_x ? 1e-4 : 0.02, 0.06);
  }
}

// Each fold switched off gives the same actions.
TEST_P(TinyGolden, EveryFoldSwitchedOffGivesTheSameActions) {
  const Array want = reference("actions");
  for (const FoldInfo& fold : kFolds) {
    Folds folds;
    folds.*fold.field = false;
    Engine engine = make_engine(folds);
    const std::vector<float> actions = run(engine, inputs_.noise.values.data());
    Distance distance;
    distance.add(actions.data(), want.values.data(), std::ssize(actions));
    expect_close("without " + std::string(fold.name), distance, 3e-5, pi05() ? 0.015 : 0.04);
  }
}

std::string case_name(const testing::TestParamInfo<Case>& test) {
  return test.param.model + "_" + test.param.file + "_" + test.param.variation.name;
}
INSTANTIATE_TEST_SUITE_P(All, TinyGolden, testing::ValuesIn(cases_of(kFiles)), case_name);
INSTANTIATE_TEST_SUITE_P(All, TinyHiddenStates, testing::ValuesIn(cases_of({"all_cams_n10"})), case_name);

}  // namespace
}  // namespace tendon::test
