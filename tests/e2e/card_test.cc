// The engine and the command on the simulated card: the numbers of the CPU, graphs and their absence, memory, exit
// codes.
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "../support/copying_backend.h"
#include "backend/sim/sim_backend.h"
#include "base/convert.h"
#include "streamed.h"

namespace tendon::test {
namespace {

using sim::CaptureFault;
using sim::SimOptions;
using testing::AllOf;
using testing::HasSubstr;

#ifdef TENDON_SANITIZED
constexpr int64_t kSteps = 1;  // they slow the simulated card down
#else
constexpr int64_t kSteps = 2;
#endif

struct Logged {
  std::vector<std::string> warnings, lines;
  LogSink sink() {
    return [this](LogLevel level, const std::string& text) {
      (level == LogLevel::kWarning ? warnings : lines).push_back(text);
    };
  }
};

// A tiny engine on a card.
struct CardEngine {
  gpu::Runtime* card = nullptr;
  std::unique_ptr<Backend> backend;
  LoadedModel model;
  std::unique_ptr<Engine> engine;

  CardEngine(const std::string& directory, DType precision, const SimOptions& sim, const BackendOptions& options = {})
      : backend(sim::make_sim_backend(sim, options, &card)), model(load_tiny(data_dir() / directory)) {
    EngineOptions engine_options;
    engine_options.precision = precision;
    engine_options.steps = kSteps;
    engine = std::make_unique<Engine>(*backend, model.config, model.weights, engine_options);
  }
  Request request(int64_t number) const { return {model.config, number}; }
  std::vector<float> run(int64_t number) { return infer(*engine, request(number)); }
};

std::vector<float> on_cpu(const std::string& directory, DType precision, int64_t number) {
  const auto backend = make_backend("cpu");
  const LoadedModel model = load_tiny(data_dir() / directory);
  EngineOptions options;
  options.precision = precision;
  options.steps = kSteps;
  Engine engine(*backend, model.config, model.weights, options);
  return infer(engine, Request(model.config, number));
}

// In bf16 both round differently: the card may be no further from f32 than 1.5 times the CPU's distance.
TEST(Card, GivesTheNumbersOfTheCpu) {
  for (const char* directory : {"tiny_pi0", "tiny_pi05"}) {
    const std::vector<float> exact = on_cpu(directory, DType::kF32, 1);
    EXPECT_LE(max_abs_difference(CardEngine(directory, DType::kF32, {}).run(1), exact), 3e-5) << directory;
    EXPECT_LE(max_abs_difference(CardEngine(directory, DType::kBf16, {}).run(1), exact),
              1.5 * max_abs_difference(on_cpu(directory, DType::kBf16, 1), exact))
        << directory;
  }
}

TEST(Card, GivesTheSameBytesInEveryOrderOfThreads) {
  const std::vector<float> forward = CardEngine("tiny_pi0", DType::kBf16, {}).run(1);
  EXPECT_TRUE(same_bytes(forward, CardEngine("tiny_pi0", DType::kBf16, {.order = simt::Order::kReverse}).run(1)));
  EXPECT_TRUE(same_bytes(forward, CardEngine("tiny_pi0", DType::kBf16, {.order = simt::Order::kShuffled}).run(1)));
}

TEST(Card, NeitherAllocatesNorCapturesAfterItsPlanIsMade) {
  CardEngine card("tiny_pi0", DType::kBf16, {});
  Request first = card.request(1);
  infer(*card.engine, first.mask({true, true, false}));
  const gpu::Counters start = card.card->counters();
  EXPECT_GT(start.allocations, 0U);
  EXPECT_EQ(start.captures, 1U);
  EXPECT_EQ(start.instantiations, 1U);
  for (int64_t number = 2; number < 6; ++number) {  // other pictures, prompt, state and noise, other cameras masked
    Request request = card.request(number);
    infer(*card.engine, request.mask({number % 3 != 0, number % 3 != 1, number % 3 != 2}));
  }
  const gpu::Counters& end = card.card->counters();
  EXPECT_EQ(end.allocations, start.allocations);
  EXPECT_EQ(end.host_allocations, start.host_allocations);
  EXPECT_EQ(end.captures, start.captures);
  EXPECT_EQ(end.instantiations, start.instantiations);
  EXPECT_EQ(end.graph_launches, start.graph_launches + 4);
}

TEST(Card, LaunchesInPiecesUntilToldOtherwise) {
  CardEngine card("tiny_pi0", DType::kBf16, {});
  const std::vector<float> whole = card.run(1);
  Plan& plan = card.engine->prepare(std::vector{card.request(1).sample()});
  const size_t ends[] = {1, 8, plan.ops().size() - 1};
  uint64_t launches = card.card->counters().graph_launches;
  EXPECT_EQ(plan.launch_in_pieces(ends), 4U);
  for (int run = 0; run < 2; ++run) {
    EXPECT_TRUE(same_bytes(card.run(1), whole));
    EXPECT_EQ(card.card->counters().graph_launches, launches += 4);
  }
  EXPECT_EQ(plan.launch_in_pieces({}), 1U);
  EXPECT_TRUE(same_bytes(card.run(1), whole));
  EXPECT_EQ(card.card->counters().graph_launches, launches + 1);

  CardEngine without("tiny_pi0", DType::kBf16, {}, {.graph = false});
  EXPECT_EQ(without.engine->prepare(std::vector{card.request(1).sample()}).launch_in_pieces(ends), 1U);
  EXPECT_TRUE(same_bytes(without.run(1), whole));
}

// Real-time chunking: one graph for all delays and previous chunks, with the numbers of the CPU.
TEST(Card, ContinuesChunksInOneGraph) {
  for (const char* directory : {"tiny_pi0", "tiny_pi05"}) {
    for (const ChunkingMode mode : {ChunkingMode::kGuided, ChunkingMode::kInpaint, ChunkingMode::kTrained}) {
      gpu::Runtime* card = nullptr;
      const auto backend = sim::make_sim_backend({}, {}, &card);
      const auto cpu = make_backend("cpu");
      const LoadedModel model = load_tiny(data_dir() / directory, 4);
      EngineOptions options;
      options.precision = DType::kF32;
      options.steps = kSteps;
      options.chunking = Chunking{.mode = mode, .max_guidance = 2.0F};
      Engine engine(*backend, model.config, model.weights, options);
      Engine expected(*cpu, model.config, model.weights, options);
      const Request request(model.config, 1);
      const auto values = static_cast<size_t>(4 * model.config.action_dim);
      for (const int64_t frozen : {1, 3}) {
        const std::vector<float> previous = synthetic_noise(4, model.config.action_dim, frozen);
        std::vector<float> weights(values, 0.0F);
        std::fill_n(weights.begin(), frozen * model.config.action_dim, 1.0F);
        Sample sample = request.sample();
        sample.previous = {previous, weights, frozen};
        const std::vector<float> actions = infer(engine, std::span(&sample, 1));
        EXPECT_LE(max_abs_difference(actions, infer(expected, std::span(&sample, 1))), 3e-5) << directory;
      }
      EXPECT_EQ(card->counters().captures, 1U);
      EXPECT_EQ(card->counters().graph_launches, 2U);
    }
  }
}

TEST(Card, FallsBackToSingleLaunchesWhenCaptureFails) {
  const std::vector<float> expected = CardEngine("tiny_pi0", DType::kF32, {}).run(1);
  for (const CaptureFault fault :
       {CaptureFault::kBegin, CaptureFault::kNode, CaptureFault::kEnd, CaptureFault::kInstantiate}) {
    Logged log;
    CardEngine card("tiny_pi0", DType::kF32, {.capture_fault = fault, .failing_node = 17}, {.log = log.sink()});
    EXPECT_TRUE(same_bytes(card.run(1), expected));
    Request other = card.request(1);
    other.mask({true, false, false});  // another plan
    infer(*card.engine, other);
    EXPECT_TRUE(same_bytes(card.run(1), expected));
    EXPECT_EQ(card.card->counters().graph_launches, 0U);
    ASSERT_EQ(log.warnings.size(), 1U);  // said once
    EXPECT_THAT(log.warnings[0], AllOf(HasSubstr("sim"), HasSubstr("ordered fault"), HasSubstr("same numbers"),
                                       HasSubstr("--no-graph")));
  }
}

TEST(Card, RunsWithoutAGraphOnRequest) {
  Logged log;
  CardEngine card("tiny_pi0", DType::kF32, {}, {.graph = false, .log = log.sink()});
  EXPECT_TRUE(same_bytes(card.run(1), CardEngine("tiny_pi0", DType::kF32, {}).run(1)));
  EXPECT_EQ(card.card->counters().captures, 0U);
  EXPECT_TRUE(log.warnings.empty());
}

// --- streams --------------------------------------------------------------------------------------------------------

// The front of a frame takes turns with the back of the one before, kernel by kernel.
TEST(CardStream, OverlappingFramesGetTheBytesOfPlainCalls) {
  const std::pair<const char*, PreferredHalf> cases[] = {{"tiny_pi0", PreferredHalf::kBack},
                                                         {"tiny_pi05", PreferredHalf::kNeither}};
  for (const auto& [directory, preferred] : cases) {
    CardEngine card(directory, DType::kBf16, {});
    const Chunks expected = plain_calls(*card.engine, 1, 5);
    FrameStream stream = open_stream(*card.engine, {.preferred = preferred});
    EXPECT_TRUE(stream.overlaps());
    const gpu::Counters start = card.card->counters();
    expect_same_chunks(streamed(stream, *card.engine, 1, 5), expected);
    const gpu::Counters& end = card.card->counters();
    EXPECT_EQ(end.graph_launches, start.graph_launches + 10);
    EXPECT_EQ(end.synchronisations, start.synchronisations + 5);
    EXPECT_EQ(end.allocations, start.allocations);
    EXPECT_EQ(end.host_allocations, start.host_allocations);
    EXPECT_EQ(end.captures, start.captures);
    EXPECT_EQ(end.instantiations, start.instantiations);
  }
}

TEST(CardStream, RunsTheLoopAsItsParts) {
  CardEngine card("tiny_pi0", DType::kF32, {.order = simt::Order::kReverse});
  FrameStream stream = open_stream(*card.engine, {.expand = {"denoise_loop", "linear_residual"}});
  const auto is_expanded = [](const Op& op) { return op_name(op) == "linear_residual"; };
  EXPECT_TRUE(std::ranges::none_of(stream.plan().ops(), is_expanded));
  const Chunks expected = plain_calls(*card.engine, 1, 3);
  EXPECT_TRUE(std::ranges::any_of(card.engine->plan().ops(), is_expanded));
  const Chunks got = streamed(stream, *card.engine, 1, 3);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(max_abs_difference(got[i], expected[i]), 3e-5);
}

TEST(CardStream, WithoutGraphsFramesRunOneAfterTheOther) {
  CardEngine card("tiny_pi0", DType::kBf16, {}, {.graph = false});
  const Chunks expected = plain_calls(*card.engine, 1, 3);
  FrameStream stream = open_stream(*card.engine);
  EXPECT_FALSE(stream.overlaps());
  expect_same_chunks(streamed(stream, *card.engine, 1, 3), expected);
  EXPECT_EQ(card.card->counters().captures, 0U);
}

TEST(CardStream, AFrameThatCannotBeBegunLeavesTheOthers) {
  CardEngine card("tiny_pi0", DType::kBf16, {.failing_halves = 2});
  const Chunks expected = plain_calls(*card.engine, 1, 3);
  FrameStream stream = open_stream(*card.engine);
  ASSERT_TRUE(submit(stream, *card.engine, 1).is_ok());
  const Status status = submit(stream, *card.engine, 2);
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_THAT(status.message(), HasSubstr("ordered fault"));
  EXPECT_EQ(stream.frames_under_way(), 1U);
  ASSERT_TRUE(submit(stream, *card.engine, 3).is_ok());
  std::vector<float> actions(values_of(*card.engine));
  for (const size_t frame : {0, 2}) {
    ASSERT_TRUE(stream.wait(actions).is_ok());
    EXPECT_TRUE(same_bytes(actions, expected[frame])) << frame;
  }
}

TEST(CardStream, MayGoWithFramesUnderWay) {
  CardEngine card("tiny_pi0", DType::kBf16, {});
  const Chunks expected = plain_calls(*card.engine, 1, 2);
  {
    FrameStream stream = open_stream(*card.engine);
    ASSERT_TRUE(submit(stream, *card.engine, 1).is_ok());
    ASSERT_TRUE(submit(stream, *card.engine, 2).is_ok());
  }
  expect_same_chunks(plain_calls(*card.engine, 1, 2), expected);
  FrameStream stream = open_stream(*card.engine);
  expect_same_chunks(streamed(stream, *card.engine, 1, 2), expected);
}

LoadOptions when_asked() {
  LoadOptions options;
  options.making = Making::kWhenAsked;
  return options;
}

// Makes an engine on a card with one fault and calls it twice: the message of the first error. Nothing stays behind.
std::string failure(const SimOptions& fault, const LoadOptions& load, const std::string& checkpoint) {
  const auto backend = sim::make_sim_backend(fault, {});
  const size_t free = backend->info().free_bytes;
  std::string message;
  try {
    const LoadedModel model = load_model(checkpoint, load);
    EngineOptions options;
    options.steps = kSteps;
    Engine engine(*backend, model.config, model.weights, options);
    const Request request(model.config, 1);
    const Sample sample = request.sample();
    std::vector<float> actions(static_cast<size_t>(model.config.horizon * model.config.action_dim));
    const Status status = engine.infer(std::span(&sample, 1), actions);
    EXPECT_EQ(status.code(), StatusCode::kDevice);
    message = status.message();
    EXPECT_TRUE(engine.infer(std::span(&sample, 1), actions).is_ok());  // the fault is over
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    message = error.what();
  }
  EXPECT_LE(backend->info().free_bytes, free);
  EXPECT_GE(backend->info().free_bytes + (size_t{64} << 20), free);
  return message;
}

// Whichever allocation fails: an error that names the memory.
TEST(Card, AnyAllocationMayFail) {
  CardEngine good("tiny_pi0", DType::kBf16, {});
  good.run(1);
  const gpu::Counters& counters = good.card->counters();
  const std::string checkpoint = (data_dir() / "tiny_pi0").string();
  ASSERT_GE(counters.allocations, 2U);
  ASSERT_GE(counters.host_allocations, 3U);  // two windows for the weights, a plan's inputs and outputs
  for (uint64_t n = 1; n <= counters.allocations; ++n) {
    EXPECT_THAT(failure({.failing_allocation = n}, {}, checkpoint),
                AllOf(HasSubstr("ot enough memory"), HasSubstr("MB")))
        << "allocation " << n;
  }
  for (uint64_t n = 1; n <= counters.host_allocations; ++n) {
    EXPECT_THAT(failure({.failing_host_allocation = n}, {}, checkpoint),
                AllOf(HasSubstr("ot enough page-locked host memory"), HasSubstr("MB")))
        << "pinned allocation " << n;
  }
}

TEST(Card, AnUploadMayFail) {
  EXPECT_THAT(failure({.failing_copy = 1}, {}, (data_dir() / "tiny_pi0").string()), HasSubstr("ordered fault"));
  EXPECT_THAT(failure({.failing_copy = 1}, when_asked(), "synthetic:pi0-tiny"), HasSubstr("ordered fault"));
}

// --- synthetic weights ----------------------------------------------------------------------------------------------

// Those that the card makes have the bits that the host would have brought, in both compute types.
TEST(Card, MakesSyntheticWeightsByItself) {
  for (const char* checkpoint : {"synthetic:pi0-tiny", "synthetic:pi05-tiny"}) {
    for (const DType precision : {DType::kBf16, DType::kF32}) {
      const auto backend = sim::make_sim_backend({}, {});
      const LoadedModel lazy = load_model(checkpoint, when_asked());
      EXPECT_EQ(lazy.weights.prefix.layers[0].q.data, nullptr);
      const LoadedModel made = load_model(checkpoint);
      EngineOptions options;
      options.precision = precision;
      options.steps = 1;
      const Engine engine(*backend, lazy.config, lazy.weights, options);
      EXPECT_GT(engine.store().made_bytes(), engine.store().copied_bytes() / 2);
      Weights on_card = engine.store().weights();
      int compared = 0;
      visit_weights(on_card, lazy.config, [&](const WeightSpec& spec, Tensor& tensor) {
        if (!tensor.defined()) return;
        std::vector<char> got(tensor.bytes()), want(tensor.bytes());
        convert(made.source->tensor(spec.name), tensor.dtype, want.data());
        backend->download(got.data(), tensor.data, got.size());
        EXPECT_EQ(got, want) << spec.name;
        ++compared;
      });
      EXPECT_GT(compared, 50);
      EXPECT_EQ(Engine(*backend, made.config, made.weights, options).store().made_bytes(), 0U);
    }
  }
}

// A backend that cannot make them, and the CPU, ask the source: the same actions.
TEST(Card, HostsMakeSyntheticWeightsThatAreAskedFor) {
  const LoadedModel made = load_model("synthetic:pi0-tiny");
  EngineOptions options;
  options.steps = kSteps;
  const auto actions = [&](Backend& backend, const LoadedModel& model) {
    Engine engine(backend, model.config, model.weights, options);
    EXPECT_EQ(engine.store().made_bytes(), 0U);
    return infer(engine, Request(model.config, 1));
  };
  const auto cpu = make_backend("cpu");
  const std::vector<float> expected = actions(*cpu, made);
  EXPECT_TRUE(same_bytes(actions(*cpu, load_model("synthetic:pi0-tiny", when_asked())), expected));
  CopyingBackend copying;
  EXPECT_LE(
      max_abs_difference(actions(copying, load_model("synthetic:pi0-tiny", when_asked())), actions(copying, made)), 0);
}

// --- the command ----------------------------------------------------------------------------------------------------

struct Result {
  int code;
  std::string text;  // of both streams
};
Result command(const std::string& arguments) {
  const TempDir temp;
  const std::filesystem::path out = temp.path() / "out";
  const std::string line = std::string(TENDON_SIM_COMMAND) + " " + arguments + " >" + out.string() + " 2>&1 </dev/null";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(out)};
}
std::string bench(const std::string& backend, const std::string& more = "") {
  return "bench --checkpoint synthetic:pi0-tiny --steps 1 --iters 1 --backend " + backend + " " + more;
}

TEST(Command, RunsOnTheSimulatedCard) {
  const Result result = command(bench("sim"));
  EXPECT_EQ(result.code, 0) << result.text;
  EXPECT_THAT(result.text, HasSubstr("simulated card"));
}

TEST(Command, ResizesOnTheCardUnlessTheHostShall) {
  const std::string pictures = (data_dir() / "policy/images").string();
  std::vector<std::string> actions;
  for (const std::string more : {"", "--resize card", "--resize host"}) {
    const TempDir temp;
    const std::string out = (temp.path() / "actions.npy").string();
    const Result result = command(
        "run --backend sim --checkpoint synthetic:pi0-tiny --steps 1 --preset pi0_droid --image base=" + pictures +
        "/rgb.png --image left=" + pictures + "/rgb.jpg --state 0,0.1,0.2,0.3,0.4,0.5,0.6,0.7 --tokens 2,5,7 --out " +
        out + " " + more);
    ASSERT_EQ(result.code, 0) << result.text;
    EXPECT_EQ(result.text.find("resized on the card") == std::string::npos, more == "--resize host") << result.text;
    actions.push_back(read_text(out));
  }
  EXPECT_FALSE(actions[0].empty());
  EXPECT_EQ(actions[1], actions[0]);
  EXPECT_EQ(actions[2], actions[0]);
}

TEST(Command, TracesOperationsByEventsWhereThereIsNoTracer) {
  const TempDir temp;
  const std::string out = (temp.path() / "call.json").string();
  const Result result =
      command("trace --backend sim --checkpoint synthetic:pi0-tiny --steps 1 --untraced 1 --out " + out);
  ASSERT_EQ(result.code, 0) << result.text;
  EXPECT_THAT(result.text, HasSubstr("Operations were launched one by one"));
  EXPECT_THAT(read_text(out), AllOf(HasSubstr("slower than the graph"), HasSubstr("no tracer of kernels")));
  EXPECT_THAT(command("report --by stage " + out).text, HasSubstr("| denoise |"));
}

TEST(Command, DeviceTroubleHasExitCodeFour) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"sim:no-driver", "no usable simulated driver"},
      {"sim:old-driver", "too old"},
      {"sim:no-cards", "visible"},
      {"sim:architecture=75", "sm_75"},
      {"sim:architecture=100", "sm_100"},
      {"sim:allocation=1", "Not enough memory"},
      {"sim:memory-kb=300", "Not enough memory"},
  };
  for (const auto& [backend, part] : cases) {
    const Result result = command(bench(backend));
    EXPECT_EQ(result.code, 4) << backend;
    EXPECT_THAT(result.text, HasSubstr(part)) << backend;
  }
  EXPECT_EQ(command(bench("sim", "--device 1")).code, 4);
  EXPECT_THAT(command(bench("sim", "--device 1")).text, HasSubstr("no card 1"));
}

TEST(Command, SaysOnceThatCaptureFailedAndGoesOn) {
  const Result result = command(bench("sim:capture-node=3"));
  EXPECT_EQ(result.code, 0) << result.text;
  EXPECT_THAT(result.text, HasSubstr("warning: sim: launching failed"));
  EXPECT_THAT(command(bench("sim:capture-node=3", "--no-graph")).text, testing::Not(HasSubstr("warning")));
}

TEST(Command, StreamsFrames) {
  const TempDir temp;
  const std::string out = (temp.path() / "streaming.json").string();
  const std::string base = "bench --streaming --checkpoint synthetic:pi0-tiny --steps 1 --iters 2 --backend sim ";
  const Result result = command(base + "--json " + out);
  ASSERT_EQ(result.code, 0) << result.text;
  EXPECT_THAT(result.text, AllOf(HasSubstr("plain call"), HasSubstr("neither"), HasSubstr("back")));
  const nlohmann::json report = nlohmann::json::parse(read_text(out));
  EXPECT_EQ(report["kind"], "streaming");
  EXPECT_EQ(report["plain"]["calls"], 2);
  ASSERT_EQ(report["rows"].size(), 2U);
  for (const nlohmann::json& row : report["rows"]) {
    EXPECT_EQ(row["loop"], "as planned");
    EXPECT_EQ(row["overlaps"], true);
    EXPECT_EQ(row["frames"], 2);
    EXPECT_EQ(row["different"], 0);
    EXPECT_GT(row["hz"], 0);
    EXPECT_GE(row["latency_ms"]["p99"], row["latency_ms"]["p50"]);
    EXPECT_GT(row["alone_ms"]["p50"], 0);
  }
  const Result without = command(base + "--no-graph");
  EXPECT_EQ(without.code, 0) << without.text;
  EXPECT_THAT(without.text, AllOf(HasSubstr("nothing overlaps"), testing::Not(HasSubstr(" front "))));
}

// Every rung gives the actions, with fewer kernels from rung to rung.
TEST(Command, ClimbsTheLadder) {
  const TempDir temp;
  const std::string out = (temp.path() / "ladder.json").string();
  const Result result =
      command("ladder --backend sim --checkpoint synthetic:pi0-tiny --steps 1 --iters 1 --json " + out);
  ASSERT_EQ(result.code, 0) << result.text;
  const nlohmann::json ladder = nlohmann::json::parse(read_text(out));
  ASSERT_EQ(ladder["rungs"].size(), 9U);
  EXPECT_TRUE(ladder["rungs"][0]["kernels"].is_null());  // no graph to count in
  size_t before = std::numeric_limits<size_t>::max();
  for (size_t i = 1; i < 8; ++i) {
    const nlohmann::json& rung = ladder["rungs"][i];
    EXPECT_LE(rung["kernels"], before) << rung["rung"];
    before = rung["kernels"];
  }
  EXPECT_LT(ladder["rungs"][7]["kernels"].get<size_t>() * 3, ladder["rungs"][1]["kernels"].get<size_t>() * 2);
  for (const nlohmann::json& rung : ladder["rungs"]) EXPECT_LT(rung["relative"], 0.05) << rung["rung"];
  EXPECT_LT(ladder["rungs"][7]["operations"], ladder["rungs"][0]["operations"]);
}

TEST(Command, LeavesKernelsOut) {
  const std::string base = "info --backend sim --checkpoint synthetic:pi0-tiny --steps 1 ";
  EXPECT_THAT(command(base).text, AllOf(HasSubstr("gpu.few_rows"), HasSubstr("gpu.attention (mma)"),
                                        HasSubstr("simulated library"), HasSubstr("GEMM table none")));
  EXPECT_THAT(command(base + "--without few_rows 'mma)' cluster").text,
              AllOf(testing::Not(HasSubstr("gpu.few_rows")), HasSubstr("gpu.attention (plain)")));
  EXPECT_THAT(command(base + "--expand norm_qkv_rope").text, testing::Not(HasSubstr("norm_qkv_rope")));
}

}  // namespace
}  // namespace tendon::test
