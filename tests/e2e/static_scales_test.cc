// Static scales of 8-bit operands: found on observations, kept in a file, used by an engine.
#include <cmath>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "command.h"
#include "engine/observe_operands.h"
#include "tiny.h"
#ifdef TENDON_HAS_SIM
#include "backend/sim/sim_backend.h"
#endif

namespace tendon::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr CodedProducts kAll = {.vision_normed = true, .vision_rest = true, .prefix = true, .expert = true};

struct Param {
  const char* model;
  DType precision;
};
std::string param_name(const testing::TestParamInfo<Param>& info) {
  return std::string(info.param.model) + "_" + std::string(precision_name(info.param.precision));
}

class StaticScales : public testing::TestWithParam<Param> {
 protected:
  StaticScales()
      : cpu_(make_backend("cpu", {.threads = 1, .device = 0})), model_(load_tiny(data_dir() / GetParam().model)) {}

  static EngineOptions options(DType precision, const CodedProducts& coded = kAll) {
    EngineOptions options;
    options.precision = precision;
    options.coded = coded;
    options.steps = 3;
    return options;
  }
  // On requests `first`, `first` + 1, ….
  std::shared_ptr<OperandMaxima> found(DType precision, int64_t first, int64_t count) {
    EngineOptions taps = options(precision);
    taps.operand_taps = true;
    Engine engine(*cpu_, model_.config, model_.weights, taps);
    auto maxima = std::make_shared<OperandMaxima>(no_maxima(model_.config));
    maxima->weights = weights_mark(model_.weights);
    for (int64_t i = first; i < first + count; ++i) {
      infer(engine, Request(model_.config, i));
      observe_operands(engine.plan(), *maxima);
    }
    return maxima;
  }
  Engine with_scales(Backend& backend, std::shared_ptr<const OperandMaxima> maxima, const CodedProducts& coded = kAll,
                     const LogSink& log = {}) {
    EngineOptions scaled = options(GetParam().precision, coded);
    scaled.operand_maxima = std::move(maxima);
    return {backend, model_.config, model_.weights, scaled, log};
  }

  std::unique_ptr<Backend> cpu_;
  LoadedModel model_;
};

INSTANTIATE_TEST_SUITE_P(Tiny, StaticScales,
                         testing::Values(Param{"tiny_pi0", DType::kI8}, Param{"tiny_pi0", DType::kE4m3},
                                         Param{"tiny_pi05", DType::kI8}),
                         param_name);

TEST_P(StaticScales, ActionsAreAsNearAsWithScalesOfRows) {
  const auto maxima = found(DType::kBf16, 10, 64);
  EXPECT_EQ(maxima->observations, 64);
  Engine exact(*cpu_, model_.config, model_.weights, options(DType::kF32));
  Engine rows(*cpu_, model_.config, model_.weights, options(GetParam().precision));
  Engine fixed = with_scales(*cpu_, maxima);
  double of_rows = 0, of_fixed = 0;
  for (int64_t i = 0; i < 6; ++i) {
    const Request request(model_.config, i);
    const std::vector<float> actions = infer(exact, request);
    of_rows += max_abs_difference(actions, infer(rows, request));
    of_fixed += max_abs_difference(actions, infer(fixed, request));
  }
  EXPECT_LT(of_fixed, 2 * of_rows);
  EXPECT_GT(of_fixed, 0);
}

TEST_P(StaticScales, AreUsedWhereProductsHaveCodes) {
  const auto maxima = found(DType::kBf16, 10, 2);
  for (int bits = 0; bits < 4; ++bits) {
    const bool vision = (bits & 1) != 0;
    const bool prefix = (bits & 2) != 0;
    Engine engine = with_scales(*cpu_, maxima, {.vision_rest = vision, .prefix = prefix});
    const Weights& weights = engine.store().weights();
    for (const VisionLayerWeights& layer : weights.vision.layers) {
      EXPECT_EQ(layer.factors.attended.defined(), vision) << bits;
      EXPECT_EQ(layer.factors.hidden.defined(), vision) << bits;
    }
    EXPECT_EQ(weights.prefix.layers[0].factors.attended.defined(), prefix) << bits;
    EXPECT_EQ(weights.prefix.layers[0].factors.hidden.defined(), prefix) << bits;
    EXPECT_FALSE(weights.prefix.layers.back().factors.hidden.defined()) << "its products are not needed";
    EXPECT_FALSE(weights.expert.layers[0].factors.hidden.defined());
    infer(engine, Request(model_.config, 1));
  }
}

TEST_P(StaticScales, LargerNumbersAreCutOff) {
  auto maxima = found(DType::kBf16, 10, 8);
  const Request request(model_.config, 1);
  Engine fitting = with_scales(*cpu_, maxima);
  const std::vector<float> before = infer(fitting, request);
  visit_maxima(*maxima, [](const std::string&, std::vector<float>& values) {
    for (float& value : values) value *= 0.01F;
  });
  Engine engine = with_scales(*cpu_, maxima);
  const std::vector<float> after = infer(engine, request);
  EXPECT_TRUE(std::ranges::all_of(after, [](float value) { return std::isfinite(value); }));
  EXPECT_GT(max_abs_difference(before, after), 0.01);
  EXPECT_TRUE(same_bytes(after, infer(engine, request)));
}

TEST_P(StaticScales, OfOtherWeightsAreReported) {
  auto maxima = found(DType::kF32, 10, 1);
  std::string text;
  const LogSink log = [&](LogLevel level, const std::string& line) {
    if (level == LogLevel::kWarning) text += line;
  };
  with_scales(*cpu_, maxima, kAll, log);
  EXPECT_EQ(text, "");
  maxima->weights = "0000000000000000";
  with_scales(*cpu_, maxima, kAll, log);
  EXPECT_THAT(text, AllOf(HasSubstr("other weights"), HasSubstr("tendon check")));
}

// i8 has no code for what is not finite: all that could make such an operand is looked at before.
TEST_P(StaticScales, WeightsThatAreNotFiniteAreNamed) {
  const auto maxima = found(DType::kBf16, 10, 1);
  const std::string prefix = "paligemma_with_expert.paligemma.model.language_model.layers.0.";
  const std::string vision = "paligemma_with_expert.paligemma.model.vision_tower.vision_model.encoder.layers.1.";
  for (const std::string& name :
       {prefix + "mlp.down_proj.weight", prefix + "mlp.gate_proj.weight", prefix + "self_attn.q_proj.weight",
        prefix + "post_attention_layernorm.weight", vision + "mlp.fc1.bias", vision + "layer_norm2.weight"}) {
    SCOPED_TRACE(name);
    StoredMap weights = read_weights(data_dir() / GetParam().model);
    ASSERT_TRUE(weights.contains(name));
    const Shape shape = weights[name].shape;
    std::vector<float> values = weights[name].floats();
    values[static_cast<size_t>(shape.rank() == 2 ? shape[1] * 3 + 1 : 3)] = INFINITY;
    set_weight(weights, name, values);
    const TempDir temp;
    write_checkpoint(temp.path(), weights, data_dir() / GetParam().model);
    const LoadedModel broken = load_tiny(temp.path());
    EngineOptions scaled = options(GetParam().precision);
    scaled.operand_maxima = maxima;
    try {
      const Engine engine(*cpu_, broken.config, broken.weights, scaled);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("'" + name + "'"), HasSubstr(shape.rank() == 2 ? "row 3" : "element 3"),
                                      HasSubstr("not finite")));
    }
  }
}

#ifdef TENDON_HAS_SIM
// As nearly as with scales of rows: a bf16 number that is rounded the other way makes another code.
TEST_P(StaticScales, ACardAndTheHostAgree) {
  const auto card = sim::make_sim_backend({}, {});
  const auto difference = [&](const std::shared_ptr<const OperandMaxima>& maxima) {
    Engine on_host = with_scales(*cpu_, maxima);
    Engine on_card = with_scales(*card, maxima);
    double sum = 0;
    for (int64_t i = 0; i < 4; ++i) {
      const Request request(model_.config, i);
      sum += max_abs_difference(infer(on_host, request), infer(on_card, request));
    }
    return sum;
  };
  EXPECT_LT(difference(found(DType::kBf16, 10, 16)), 2 * difference(nullptr));
}
#endif

// --- as commands ----------------------------------------------------------------------------------------------------

TEST(Calibrate, LeavesTheFileBesideTheCheckpoint) {
  const TempDir temp;
  const fs::path checkpoint = temp.path() / "model";
  write_checkpoint(checkpoint, read_weights(data_dir() / "tiny_pi0"), data_dir() / "tiny_pi0");
  const Args model = {"--checkpoint", checkpoint, "--threads", "1"};
  const auto run = [&](Args args, const Args& more) {
    args.insert(args.end(), model.begin(), model.end());
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  expect_refused(run({"check"}, {"--precision", "int8", "--scales", "static"}), 3, {"tendon_scales.safetensors"});
  const Result made = tendon(run({"tune", "--calibrate", "workload", "--observations", "24"}, {}));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("24 observations"), HasSubstr("tendon_scales.safetensors"),
                              HasSubstr("--scales static")));
  EXPECT_TRUE(fs::exists(checkpoint / "tendon_scales.safetensors"));
  const json check = run_json(run({"check", "--json"}, {"--precision", "int8", "--scales", "static"}));
  EXPECT_EQ(check["ok"], true);
  EXPECT_EQ(check["precision"], "int8 (static scales)");
  const json info = run_json(run({"info", "--json"}, {"--precision", "int8", "--scales", "static"}));
  EXPECT_THAT(info.dump(), HasSubstr("int8 (static scales)"));
  const Result moved = tendon(run({"check"}, {"--precision", "int8", "--codes", "vision", "prefix", "--scales",
                                              checkpoint / "tendon_scales.safetensors"}));
  EXPECT_THAT(moved.err, HasSubstr("int8 (vision+prefix, static scales)"));
}

TEST(Calibrate, BadUseIsExplained) {
  const TempDir temp;
  const Args tune = {"tune", "--checkpoint", "synthetic:pi0-tiny", "--threads", "1", "--calibrate"};
  const auto plus = [](Args args, const Args& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::string out = temp.path() / "scales.safetensors";
  expect_refused(plus(tune, {"workload"}), 2, {"synthetic:pi0-tiny", "--out"});
  expect_refused(plus(tune, {"workload", "--out", out, "--precision", "int8"}), 2, {"--precision int8", "bf16"});
  expect_refused(plus(tune, {"workload", "--out", out, "--observations", "0"}), 2, {"--observations"});
  expect_refused(plus(tune, {temp.path(), "--out", out}), 2, {"--preset"});
  expect_refused(plus(tune, {temp.path() / "none", "--out", out, "--preset", "pi0_droid", "--tokens", "2,5"}), 3,
                 {"none"});
  EXPECT_FALSE(fs::exists(out));
  expect_refused(plus(tune, {"workload", "--out", temp.path() / "no" / "such.safetensors"}), 3, {"such.safetensors"});

  const Args check = {"check", "--checkpoint", "synthetic:pi0-tiny", "--threads", "1"};
  expect_refused(plus(check, {"--scales", "static"}), 2, {"--scales static", "bf16", "--precision int8"});
  expect_refused(plus(check, {"--scales", "static", "--precision", "int8"}), 2, {"synthetic:pi0-tiny", "--out"});
  expect_refused(plus(check, {"--scales", out, "--precision", "fp8"}), 3, {"scales.safetensors"});
  write_text(out, "no scales");
  expect_refused(plus(check, {"--scales", out, "--precision", "fp8"}), 3, {"scales.safetensors"});
}

}  // namespace
}  // namespace tendon::test
