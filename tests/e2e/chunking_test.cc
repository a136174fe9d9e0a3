// Real-time chunking: the engine on the tiny checkpoints, the toy with a known answer, and the policy around it.
#include <cmath>

#include <gmock/gmock.h>

#include "plan/plan.h"
#include "policy/policy.h"
#include "tiny.h"

namespace tendon::test {
namespace {

constexpr int64_t kSteps = 3;

// An engine with its model; the horizon is 6 so that rows can be given, pulled and left alone.
struct Chunked {
  std::unique_ptr<Backend> backend;
  LoadedModel model;
  std::unique_ptr<Engine> engine;

  Chunked(const std::filesystem::path& directory, std::optional<Chunking> chunking, EngineOptions options = {},
          const char* card = "cpu")
      : backend(make_backend(card, {.threads = 1, .device = 0})), model(load_tiny(directory, 6)) {
    options.precision = DType::kF32;
    if (!options.schedule) options.steps = kSteps;
    options.chunking = chunking;
    engine = std::make_unique<Engine>(*backend, model.config, model.weights, options);
  }
  Chunked(const char* directory, std::optional<Chunking> chunking, const EngineOptions& options = {})
      : Chunked(data_dir() / directory, chunking, options) {}
  int64_t width() const { return model.config.action_dim; }
};

// A request with a previous chunk; all memory is its own.
struct Continued {
  Request request;
  std::vector<float> previous, guidance;
  int64_t frozen_rows;

  Continued(const ModelConfig& config, int64_t number, int64_t frozen, double weight = 1.0)
      : request(config, number),
        previous(synthetic_noise(config.horizon, config.action_dim, number + 1000)),
        guidance(previous.size(), 0.0F),
        frozen_rows(frozen) {
    for (int64_t i = 0; i < frozen * config.action_dim; ++i)
      guidance[static_cast<size_t>(i)] = static_cast<float>(weight);
  }
  Sample sample() const {
    Sample result = request.sample();
    result.previous = {previous, guidance, frozen_rows};
    return result;
  }
};

std::vector<float> run(Chunked& chunked, const Continued& call) {
  const Sample sample = call.sample();
  return infer(*chunked.engine, std::span(&sample, 1));
}

const Chunking kGuided{ChunkingMode::kGuided, 3.0F};
const Chunking kInpaint{ChunkingMode::kInpaint, 3.0F};
const Chunking kTrained{ChunkingMode::kTrained, 3.0F};
constexpr const char* kModels[] = {"tiny_pi0", "tiny_pi05"};

// Pitfall 24: a server that offers chunking answers other requests as one that does not.
TEST(Chunking, CallsWithoutPreviousKeepTheirBytes) {
  for (const char* const model : kModels) {
    Chunked plain(model, {});
    const Request request(plain.model.config, 1);
    const std::vector<float> expected = infer(*plain.engine, request);
    for (const Chunking& chunking : {kGuided, kInpaint, kTrained}) {
      Chunked offered(model, chunking);
      EXPECT_TRUE(same_bytes(infer(*offered.engine, request), expected)) << model;
      run(offered, Continued(plain.model.config, 2, 3));
      EXPECT_TRUE(same_bytes(infer(*offered.engine, request), expected)) << model << ", after another call";
    }
  }
}

// Pitfall 23: weights of 0, or no given row, are plain sampling.
TEST(Chunking, NothingGivenIsPlainSampling) {
  for (const char* const model : kModels) {
    Chunked plain(model, {});
    const Continued call(plain.model.config, 1, 0);
    const std::vector<float> expected = infer(*plain.engine, call.request);
    for (const Chunking& chunking : {kGuided, kInpaint, kTrained}) {
      Chunked chunked(model, chunking);
      EXPECT_TRUE(same_bytes(run(chunked, call), expected)) << model << " " << static_cast<int>(chunking.mode);
    }
  }
}

// One plan for all delays and chunks; field case 25 in the network's units.
TEST(Chunking, GivenRowsComeBack) {
  for (const char* const model : kModels) {
    for (const Chunking& chunking : {kInpaint, kTrained}) {
      Chunked chunked(model, chunking);
      Chunked plain(model, {});
      const Plan* plan = nullptr;
      for (const int64_t frozen : {1, 4, 6}) {
        const Continued call(plain.model.config, frozen, frozen);
        const std::vector<float> actions = run(chunked, call);
        if (plan == nullptr) plan = &chunked.engine->plan();
        EXPECT_EQ(plan, &chunked.engine->plan());
        const auto given = static_cast<size_t>(frozen * plain.width());
        EXPECT_TRUE(
            std::equal(actions.begin(), actions.begin() + static_cast<std::ptrdiff_t>(given), call.previous.begin()));
        const std::vector<float> without = infer(*plain.engine, call.request);
        if (frozen == 6) continue;
        EXPECT_GT(max_abs_difference(std::span(actions).subspan(given), std::span(without).subspan(given)), 1e-3)
            << "the other rows see the given ones";
      }
    }
  }
}

// What the model sees of given rows in trained mode: the previous chunk at time 0. With all rows given it is a plain
// model at time 0, and in the first layer each row's keys are those of its own time.
TEST(Chunking, TrainedRowsAreAtTimeZero) {
  for (const char* const model : kModels) {
    for (const bool tables : {true, false}) {
      EngineOptions options;
      options.taps = true;
      options.folds.time_tables = tables;
      const auto at = [&](float time, std::optional<Chunking> chunking) {
        EngineOptions one = options;
        one.schedule = Schedule{.times = {time}, .dt = -1.0F};
        return Chunked(model, chunking, one);
      };
      Chunked noisy = at(1.0F, {}), clean = at(0.0F, {}), trained = at(1.0F, kTrained);
      const auto read = [](const Chunked& from, const char* name) {
        std::vector<float> values(static_cast<size_t>(from.engine->plan().tensor(name).elements()));
        from.engine->plan().read(name, values.data(), values.size() * sizeof(float));
        return values;
      };
      const Continued all(noisy.model.config, 1, 6);
      Request at_zero = all.request;
      at_zero.noise = all.previous;
      infer(*noisy.engine, all.request);
      infer(*clean.engine, at_zero);
      run(trained, all);
      EXPECT_LE(max_abs_difference(read(trained, "v.0"), read(clean, "v.0")), 1e-6);
      EXPECT_GT(max_abs_difference(read(noisy, "v.0"), read(clean, "v.0")), 1e-3);

      const Continued some(noisy.model.config, 1, 2);
      run(trained, some);
      const std::vector<float> keys = read(trained, "k_cache.0");
      const auto width = static_cast<size_t>(trained.model.config.kv_width());
      // The cache ends with the action rows, padding apart: prompts have their own length here.
      const auto row = [&](const std::vector<float>& cache, size_t i) {
        return std::span(cache).subspan(cache.size() - (6 - i) * width, width);
      };
      const std::vector<float> clean_keys = read(clean, "k_cache.0"), noisy_keys = read(noisy, "k_cache.0");
      for (size_t i = 0; i < 6; ++i) {
        EXPECT_LE(max_abs_difference(row(keys, i), row(i < 2 ? clean_keys : noisy_keys, i)), 1e-6) << i;
        EXPECT_GT(max_abs_difference(row(keys, i), row(i < 2 ? noisy_keys : clean_keys, i)), 1e-3) << i;
      }
    }
  }
}

// A network whose velocity is a constant c: the guided path can be written down.
TEST(Chunking, GuidanceFollowsItsFormula) {
  const TempDir temp;
  std::vector<float> c;
  for (int i = 0; i < 32; ++i) c.push_back(0.05F * static_cast<float>(i) - 0.3F);
  write_constant_checkpoint(temp.path(), data_dir() / "tiny_pi0", c);
  Chunked chunked(temp.path(), kGuided);
  const Continued call(chunked.model.config, 1, 4, 0.75);
  const std::vector<float> actions = run(chunked, call);
  for (size_t i = 0; i < actions.size(); ++i) {
    double x = call.request.noise[i];
    const double v = c[i % 32];
    for (int64_t step = 0; step < kSteps; ++step) {
      const double t = 1.0 - static_cast<double>(step) / kSteps;
      const double k = step == 0 ? 3.0 : std::min(3.0, (t * t + (1 - t) * (1 - t)) / (t * (1 - t)));
      x -= (v - k * call.guidance[i] * (call.previous[i] - (x - t * v))) / kSteps;
    }
    ASSERT_NEAR(actions[i], x, 1e-5) << i;
  }
}

// A batch may mix requests that continue a chunk with requests that do not.
TEST(Chunking, BatchesMayMix) {
  for (const Chunking& chunking : {kGuided, kInpaint, kTrained}) {
    Chunked chunked("tiny_pi05", chunking);
    const Continued call(chunked.model.config, 1, 3);
    const Request other(chunked.model.config, 2);
    const std::vector<float> alone = run(chunked, call);
    const std::vector<float> other_alone = infer(*chunked.engine, other);
    const Sample samples[] = {other.sample(), call.sample()};
    const std::vector<float> both = infer(*chunked.engine, samples);
    EXPECT_LE(max_abs_difference(std::span(both).first(alone.size()), other_alone), 1e-5);
    EXPECT_LE(max_abs_difference(std::span(both).subspan(alone.size()), alone), 1e-5);
  }
}

TEST(Chunking, BadPreviousChunksAreRefused) {
  Chunked plain("tiny_pi0", {});
  Chunked chunked("tiny_pi0", kGuided);
  std::vector<float> out(static_cast<size_t>(6 * plain.width()));
  const auto message = [&](Engine& engine, const Continued& call) {
    const Sample sample = call.sample();
    return std::string(engine.infer(std::span(&sample, 1), out).message());
  };
  const Continued good(plain.model.config, 1, 2);
  EXPECT_THAT(message(*plain.engine, good), testing::HasSubstr("without chunking"));
  Continued bad = good;
  bad.previous.pop_back();
  EXPECT_THAT(message(*chunked.engine, bad), testing::HasSubstr("191 values and 192 weights, expected 192"));
  bad = good;
  bad.guidance[7] = NAN;
  EXPECT_THAT(message(*chunked.engine, bad), testing::HasSubstr("weight that is not finite, first at index 7"));
  bad = good;
  bad.previous[9] = INFINITY;
  EXPECT_THAT(message(*chunked.engine, bad), testing::HasSubstr("value that is not finite, first at index 9"));
  bad = good;
  bad.frozen_rows = 7;
  EXPECT_THAT(message(*chunked.engine, bad), testing::HasSubstr("7 rows are given, expected 0 to 6"));
}

// Chunks of 10 numbers from a Gaussian of covariance exp(-|i - j| / 4), whose velocity field is known:
// v(x, t) = E[noise - data | x_t = x] = (t·I - (1-t)·C)·(t²·I + (1-t)²·C)⁻¹·x. Guided with delay 3 of 7 the first rows
// must come out near the previous chunk; with the sign wrong they go away from it.
class Toy {
 public:
  static constexpr int64_t kSize = 10, kDelay = 3, kOverlap = 7, kToySteps = 10, kSamples = 64;

  // Mean |x_i - previous_i| over the first kDelay numbers.
  static double prefix_error(bool guided) {
    const auto backend = make_backend("cpu", {.threads = 1, .device = 0});
    const Schedule schedule = make_schedule(kToySteps, TimeRule::kOpenpi);
    const ModelConfig config;
    const Weights weights;
    const Tables tables;
    const Folds folds;
    const ForwardSpec spec{.config = config,
                           .weights = weights,
                           .tables = tables,
                           .folds = folds,
                           .schedule = schedule,
                           .bucket = {},
                           .chunking = Chunking{ChunkingMode::kGuided, 10.0F}};
    std::vector<std::vector<float>> matrices;
    for (const float time : schedule.times) matrices.push_back(velocity_matrix(static_cast<double>(time)));
    Recorder r;
    const Recorder::Scope scope = r.scope("toy");
    const Tensor noise = r.input("noise", DType::kF32, {kSamples, kSize});
    const ChunkConstraint chunk(r, spec, noise);
    Tensor x = noise;
    for (int64_t step = 0; step < kToySteps; ++step) {
      const Tensor v = r.temporary(DType::kF32, x.shape);
      const Tensor w(DType::kF32, {kSize, kSize}, matrices[static_cast<size_t>(step)].data());
      r.add(Linear{.x = x, .w = w, .bias = {}, .out = v});
      const Tensor next =
          step + 1 == kToySteps ? r.output("actions", DType::kF32, x.shape) : r.temporary(DType::kF32, x.shape);
      r.add(EulerStep{.x = x, .v = chunk.guided(x, v, step), .out = next, .dt = schedule.dt});
      x = next;
    }
    Plan plan(*backend, r);
    // The previous chunk is data of the same distribution, made by the plain sampler.
    const std::vector<float> previous = sample(plan, 7, {}, false);
    const std::vector<float> actions = sample(plan, 8, previous, guided);
    double error = 0;
    for (int64_t s = 0; s < kSamples; ++s) {
      for (int64_t i = 0; i < kDelay; ++i) {
        const auto at = static_cast<size_t>(s * kSize + i);
        error += std::abs(static_cast<double>(actions[at]) - static_cast<double>(previous[at]));
      }
    }
    return error / (kSamples * kDelay);
  }

 private:
  static std::vector<float> sample(Plan& plan, int64_t seed, std::vector<float> previous, bool guided) {
    const std::vector<float> noise = synthetic_noise(kSamples, kSize, seed);
    previous.resize(noise.size());
    std::vector<float> weights;
    const std::vector<double> row = guidance_weights(GuidanceSchedule::kExp, kDelay, kOverlap, kSize);
    for (int64_t s = 0; s < kSamples; ++s) {
      for (const double w : row) weights.push_back(guided ? static_cast<float>(w) : 0.0F);
    }
    plan.write("noise", noise.data(), noise.size() * sizeof(float));
    plan.write("previous", previous.data(), previous.size() * sizeof(float));
    plan.write("guidance", weights.data(), weights.size() * sizeof(float));
    EXPECT_TRUE(plan.run().is_ok());
    std::vector<float> actions(noise.size());
    plan.read("actions", actions.data(), actions.size() * sizeof(float));
    return actions;
  }

  // Gauss-Jordan: v = A·B⁻¹ as rows of w, both symmetric and commuting, so w = wᵀ.
  static std::vector<float> velocity_matrix(double t) {
    constexpr auto n = static_cast<size_t>(kSize);
    std::vector<std::vector<double>> a(n, std::vector<double>(2 * n));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        const double c = std::exp(-std::abs(static_cast<double>(i) - static_cast<double>(j)) / 4.0);
        const double one = i == j ? 1.0 : 0.0;
        a[i][j] = t * t * one + (1 - t) * (1 - t) * c;
        a[i][n + j] = t * one - (1 - t) * c;
      }
    }
    for (size_t k = 0; k < n; ++k) {
      const double pivot = a[k][k];
      for (double& value : a[k]) value /= pivot;
      for (size_t i = 0; i < n; ++i) {
        if (i == k) continue;
        const double factor = a[i][k];
        for (size_t j = 0; j < 2 * n; ++j) a[i][j] -= factor * a[k][j];
      }
    }
    std::vector<float> result;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) result.push_back(static_cast<float>(a[i][n + j]));
    }
    return result;
  }
};

// Pitfall 23.
TEST(Chunking, ToyComesNearToThePreviousChunk) {
  EXPECT_GT(Toy::prefix_error(false), 0.7);
  EXPECT_LT(Toy::prefix_error(true), 0.05);
}

// --- the policy -----------------------------------------------------------------------------------------------------

NormStats statistics(int width) {
  NormStats stats;
  for (NormEntry* entry : {&stats.state, &stats.actions}) {
    entry->mode = NormMode::kMeanStd;
    for (int i = 0; i < width; ++i) {
      entry->mean.push_back(0.1 - 0.02 * i);
      entry->std.push_back(0.5 + 0.1 * i);
    }
  }
  return stats;
}

Observation observation_of(const Preset& preset, double moved) {
  Observation observation;
  observation.cameras[0] = Image{28, 28, std::vector<uint8_t>(28 * 28 * 3, 100)};
  if (preset.robot->cameras[1].use == CameraUse::kRequired) observation.cameras[1] = observation.cameras[0];
  for (int i = 0; i < preset.robot->state_width; ++i) observation.state.push_back(0.2 + 0.03 * i + moved);
  observation.tokens = {2, 7, 11};
  return observation;
}

// Field case 25 and pitfall 23: the rows are given in the robot's units; the state they were made at does not matter.
TEST(ChunkedPolicy, RowsStayWhereTheyWereWhenTheStateMoves) {
  for (const char* const name : {"pi0_aloha", "pi0_droid_jointpos_polaris", "pi0_libero", "pi0_ur5"}) {
    for (const Chunking& chunking : {kInpaint, kTrained}) {
      SCOPED_TRACE(name);
      const Preset& preset = find_preset(name);
      Chunked chunked("tiny_pi0", chunking);
      Policy policy(*chunked.engine, preset, statistics(preset.robot->state_width), nullptr);
      const std::vector<float> noise = synthetic_noise(6, 32, 1);
      const ActionChunk first = policy.infer(observation_of(preset, 0), noise);
      ASSERT_FALSE(first.overlap);
      Observation next = observation_of(preset, 0.1);
      next.previous = PreviousActions{.actions = first.actions, .rows = 6, .start = 2, .delay = 3};
      const ActionChunk second = policy.infer(next, synthetic_noise(6, 32, 2));
      ASSERT_TRUE(second.overlap);
      EXPECT_EQ(second.overlap->start, 2);
      EXPECT_EQ(second.overlap->delay, 3);
      EXPECT_EQ(second.overlap->overlap, 4);
      const auto width = static_cast<size_t>(second.width);
      for (size_t i = 0; i < 3 * width; ++i) EXPECT_NEAR(second.actions[i], first.actions[2 * width + i], 1e-5) << i;
      double other = 0;
      for (size_t i = 3 * width; i < 4 * width; ++i)
        other = std::max(other, std::abs(second.actions[i] - first.actions[2 * width + i]));
      EXPECT_GT(other, 1e-2) << "rows behind the delay are the model's";
    }
  }
}

// Guided rows come nearer than those of a plain call.
TEST(ChunkedPolicy, GuidancePullsTowardsThePreviousChunk) {
  const Preset& preset = find_preset("pi0_aloha");
  Chunked chunked("tiny_pi0", kGuided);
  Policy policy(*chunked.engine, preset, statistics(14), nullptr);
  const ActionChunk first = policy.infer(observation_of(preset, 0), synthetic_noise(6, 32, 1));
  Observation next = observation_of(preset, 0.1);
  const std::vector<float> noise = synthetic_noise(6, 32, 2);
  const ActionChunk plain = policy.infer(next, noise);
  next.previous = PreviousActions{.actions = first.actions, .rows = 6, .start = 2, .delay = 3};
  const ActionChunk guided = policy.infer(next, noise);
  const auto distance = [&](const ActionChunk& chunk, size_t row) {
    double sum = 0;
    for (size_t k = 0; k < 14; ++k) sum += std::abs(chunk.actions[row * 14 + k] - first.actions[(row + 2) * 14 + k]);
    return sum;
  };
  for (size_t row = 0; row < 4; ++row) EXPECT_LT(distance(guided, row), distance(plain, row)) << row;
  EXPECT_LT(distance(guided, 0), 0.3 * distance(plain, 0));
}

}  // namespace
}  // namespace tendon::test
