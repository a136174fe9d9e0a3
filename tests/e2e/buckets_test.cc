// Plans made at start, prompt lengths that are rounded up, and what a call copies and makes.
#include <gmock/gmock.h>

#include "../support/copying_backend.h"
#include "tiny.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

struct Param {
  const char* model;
  DType precision;
};

class BucketsTest : public testing::TestWithParam<Param> {
 protected:
  BucketsTest() : model_(load_tiny(data_dir() / GetParam().model)) {}

  EngineOptions options() const {
    EngineOptions options;
    options.precision = GetParam().precision;
    options.steps = 3;
    return options;
  }
  // Prompts of 4, 8 or all tokens, of one to three views.
  EngineOptions prepared() const {
    EngineOptions prepared = options();
    prepared.prompt_lengths = {4, 8, model_.config.max_token_len};
    prepared.prepared = {{1, 1}, {1, 2}, {1, 3}, {2, 3}};
    return prepared;
  }
  static double tolerance() { return GetParam().precision == DType::kF32 ? 1e-5 : 0.05; }
  std::unique_ptr<Engine> make(const EngineOptions& engine_options, const LogSink& log = {}) {
    return std::make_unique<Engine>(backend_, model_.config, model_.weights, engine_options, log);
  }
  Request request(int64_t number, int64_t prompt, int64_t views = 3) const {
    return Request(model_.config, number, 3, prompt).mask({true, views > 1, views > 2});
  }
  static Status try_infer(Engine& engine, const Request& request) {
    const Sample sample = request.sample();
    std::vector<float> actions(static_cast<size_t>(engine.config().horizon * engine.config().action_dim));
    return engine.infer({&sample, 1}, actions);
  }

  CopyingBackend backend_;
  LoadedModel model_;
};

INSTANTIATE_TEST_SUITE_P(Tiny, BucketsTest,
                         testing::Values(Param{"tiny_pi0", DType::kF32}, Param{"tiny_pi0", DType::kBf16},
                                         Param{"tiny_pi05", DType::kF32}, Param{"tiny_pi05", DType::kBf16}),
                         [](const testing::TestParamInfo<Param>& test) {
                           return std::string(test.param.model) + "_" + std::string(dtype_name(test.param.precision));
                         });

// Padding rows are computed and read by nobody. But a product library chooses its blocks by the number of rows, so that
// the sums of a row may be ordered otherwise: most calls give the same bytes, all of them the same numbers.
TEST_P(BucketsTest, PaddedPromptsGiveTheNumbersOfExactOnes) {
  const auto exact = make(options());
  const auto padded = make(prepared());
  for (int64_t views = 1; views <= 3; ++views) {
    for (int64_t prompt = 1; prompt <= model_.config.max_token_len; ++prompt) {
      const Request one = request(prompt, prompt, views);
      EXPECT_LE(max_abs_difference(infer(*exact, one), infer(*padded, one)), tolerance())
          << views << " views, " << prompt << " tokens";
      const int64_t rows = padded->bucket().prefix_rows - views * model_.config.vision.tokens();
      EXPECT_EQ(rows, prompt <= 4 ? 4 : prompt <= 8 ? 8 : model_.config.max_token_len);
    }
  }
}

TEST_P(BucketsTest, PaddedBatchesGiveTheNumbersOfExactOnes) {
  const auto exact = make(options());
  const auto padded = make(prepared());
  const Request one = request(1, 3);
  const Request two = request(2, 6);
  const std::vector<Sample> pair = {one.sample(), two.sample()};
  EXPECT_LE(max_abs_difference(infer(*exact, pair), infer(*padded, pair)), tolerance());
  EXPECT_EQ(padded->bucket().prefix_rows, 3 * model_.config.vision.tokens() + 8);
}

TEST_P(BucketsTest, CallsOfPreparedBucketsMakeAndAllocateNothing) {
  const auto engine = make(prepared());
  EXPECT_EQ(backend_.prepared, 12);
  EXPECT_EQ(engine->prepared_buckets().size(), 12U);
  const int made = backend_.prepared;
  const int allocated = backend_.allocations + backend_.host_allocations;
  const int uploads = backend_.uploads;
  int calls = 0;
  for (int round = 0; round < 2; ++round) {
    for (int64_t prompt = 1; prompt <= model_.config.max_token_len; ++prompt) {
      for (int64_t views = 1; views <= 3; ++views, ++calls)
        infer(*engine, request(prompt + 100 * round, prompt, views));
    }
  }
  EXPECT_EQ(backend_.prepared, made);
  EXPECT_EQ(backend_.allocations + backend_.host_allocations, allocated);
  EXPECT_EQ(backend_.uploads, uploads) << "inputs travel in the run";
  EXPECT_EQ(backend_.downloads, 0) << "so do the actions";
  EXPECT_EQ(backend_.runs, calls);
}

// Four plans that nobody prepared push each other out, never a prepared one.
TEST_P(BucketsTest, PreparedPlansAreNeverDropped) {
  std::vector<std::string> lines;
  EngineOptions some = options();
  some.prompt_lengths = {4};
  some.prepared = {{1, 3}};
  const auto engine = make(some, [&](LogLevel, const std::string& line) { lines.push_back(line); });
  const Request often = request(1, 2);
  const std::vector<float> first = infer(*engine, often);
  lines.clear();
  for (int64_t prompt = 5; prompt <= 12; ++prompt) infer(*engine, request(prompt, prompt));
  EXPECT_EQ(backend_.prepared, 1 + 8);
  ASSERT_EQ(lines.size(), 8U) << "a plan made while a caller waits is worth a line";
  EXPECT_THAT(lines[0], HasSubstr("not prepared"));
  EXPECT_THAT(lines[0], HasSubstr("3 pictures"));
  EXPECT_TRUE(same_bytes(first, infer(*engine, often)));
  EXPECT_EQ(backend_.prepared, 1 + 8) << "the prepared plan was still there";
  infer(*engine, request(12, 12));
  EXPECT_EQ(backend_.prepared, 1 + 8) << "and so was the last of the others";
  infer(*engine, request(5, 5));
  EXPECT_EQ(backend_.prepared, 1 + 9) << "the oldest was not";
}

TEST_P(BucketsTest, StrictEnginesRefuseWhatWasNotPrepared) {
  EngineOptions strict = options();
  strict.prompt_lengths = {4, 8};
  strict.prepared = {{1, 2}};
  strict.prepared_only = true;
  const auto engine = make(strict);
  EXPECT_TRUE(try_infer(*engine, request(1, 8, 2)).is_ok());
  const int made = backend_.prepared;
  for (const Request& other : {request(1, 4, 3), request(1, 9, 2)}) {
    const Status status = try_infer(*engine, other);
    EXPECT_EQ(status.code(), StatusCode::kBadInput);
    EXPECT_THAT(status.message(), HasSubstr("not prepared"));
  }
  const Request one = request(1, 4, 2);
  const std::vector<Sample> pair = {one.sample(), one.sample()};
  std::vector<float> actions(2 * static_cast<size_t>(engine->config().horizon * engine->config().action_dim));
  EXPECT_EQ(engine->infer(pair, actions).code(), StatusCode::kBadInput);
  EXPECT_EQ(backend_.prepared, made);
  EXPECT_TRUE(try_infer(*engine, request(2, 1, 2)).is_ok()) << "a refusal leaves the engine usable";
}

TEST_P(BucketsTest, WithoutPackingOnePlanServesEveryLength) {
  EngineOptions unpacked = prepared();
  unpacked.folds.pack_valid_tokens = false;
  unpacked.prepared = {{1, 3}};
  const auto engine = make(unpacked);
  EXPECT_EQ(backend_.prepared, 1);
  infer(*engine, request(1, 3));
  infer(*engine, request(1, model_.config.max_token_len, 2));
  EXPECT_EQ(backend_.prepared, 1);
}

// All plans share their scratch memory: one block, made for the largest.
TEST_P(BucketsTest, PlansShareOneWorkspace) {
  const auto engine = make(prepared());
  // One block of weights, one workspace, and an arena a plan.
  EXPECT_EQ(backend_.allocations, 1 + 1 + 12);
}

TEST(Buckets, ServingLengthsEndWithTheBudget) {
  EXPECT_EQ(serving_prompt_lengths(48), (std::vector<int64_t>{32, 48}));
  EXPECT_EQ(serving_prompt_lengths(200), (std::vector<int64_t>{32, 48, 64, 96, 128, 192, 200}));
  EXPECT_EQ(serving_prompt_lengths(20), (std::vector<int64_t>{20}));
  EXPECT_EQ(serving_prompt_lengths(32), (std::vector<int64_t>{32}));
}

TEST(Buckets, ImpossibleOnesAreRefused) {
  const LoadedModel model = load_tiny(data_dir() / "tiny_pi0");
  CopyingBackend backend;
  for (const PreparedBatch& bad : {PreparedBatch{0, 3}, PreparedBatch{1, 0}, PreparedBatch{1, 17}}) {
    EngineOptions options;
    options.prepared = {bad};
    try {
      const Engine engine(backend, model.config, model.weights, options);
      ADD_FAILURE() << bad.batch << " samples with " << bad.views << " views were prepared";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadUse);
      EXPECT_THAT(error.what(), HasSubstr("views"));
    }
  }
}

TEST_P(BucketsTest, OnePromptLengthCanBePrepared) {
  EngineOptions one = options();
  one.prepared = {{.batch = 1, .views = 2, .prompt_tokens = 6}};
  one.prepared_only = true;
  const auto engine = make(one);
  ASSERT_EQ(engine->prepared_buckets().size(), 1U);
  EXPECT_EQ(engine->prepared_buckets()[0].prefix_rows, 2 * model_.config.vision.tokens() + 6);
  EXPECT_TRUE(try_infer(*engine, request(1, 6, 2)).is_ok());
  EXPECT_FALSE(try_infer(*engine, request(1, 7, 2)).is_ok());
  EXPECT_FALSE(try_infer(*engine, request(1, 6, 3)).is_ok());
  for (const int64_t tokens : {int64_t{0}, model_.config.max_token_len + 1}) {
    one.prepared[0].prompt_tokens = tokens;
    try {
      make(one);
      ADD_FAILURE() << "no error for " << tokens << " tokens";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadUse);
      EXPECT_THAT(error.what(), HasSubstr("--max-tokens"));
    }
  }
}

}  // namespace
}  // namespace tendon::test
