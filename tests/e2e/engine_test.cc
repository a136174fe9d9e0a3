// How the engine behaves as a whole on the tiny checkpoints: determinism, batches, masks, bad input, memory.
#include <link.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>

#include <gmock/gmock.h>

#include "engine/frame_stream.h"
#include "engine/noise.h"
#include "tiny.h"

// Every operator new of this program is counted while `counting` is on, except those that oneDNN makes itself when a
// primitive is executed. malloc (OpenMP, oneDNN's scratch) is not seen.
namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

// Where the code of libdnnl lies; empty when it is linked statically.
struct CodeRange {
  uintptr_t begin = 0, end = 0;
};
CodeRange find_onednn() {
  CodeRange range;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (std::strstr(info->dlpi_name, "libdnnl") == nullptr) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          *static_cast<CodeRange*>(out) = {begin, begin + segment.p_memsz};
        }
        return 1;
      },
      &range);
  return range;
}
const CodeRange onednn = find_onednn();

void count(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  if (address < onednn.begin || address >= onednn.end) allocations.fetch_add(1, std::memory_order_relaxed);
}
void* allocate(size_t bytes) {
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* allocate(size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) {
  count(__builtin_return_address(0));
  return allocate(bytes);
}
void* operator new[](size_t bytes) {
  count(__builtin_return_address(0));
  return allocate(bytes);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  count(__builtin_return_address(0));
  return allocate(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  count(__builtin_return_address(0));
  return allocate(bytes, alignment);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  count(__builtin_return_address(0));
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  count(__builtin_return_address(0));
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace tendon::test {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Param {
  const char* model;
  DType precision;
  bool f32() const { return precision == DType::kF32; }
  // What another order of sums may change, on the tiny models, whose actions are about 1.
  double order_tolerance() const { return f32() ? 1e-5 : precision == DType::kE4m3 ? 0.3 : 0.05; }
};

std::string param_name(const testing::TestParamInfo<Param>& info) {
  return std::string(info.param.model) + "_" + std::string(precision_name(info.param.precision));
}

class EngineTest : public testing::TestWithParam<Param> {
 protected:
  EngineTest() : backend_(make_backend("cpu", {.threads = 1, .device = 0})), model_(load()) {}

  std::filesystem::path directory() const { return data_dir() / GetParam().model; }
  LoadedModel load(std::optional<int64_t> horizon = {}) const { return load_tiny(directory(), horizon); }
  EngineOptions options(int64_t steps = 3) const {
    EngineOptions options;
    options.precision = GetParam().precision;
    options.steps = steps;
    return options;
  }
  Engine make(const LoadedModel& model, const EngineOptions& engine_options) {
    return {*backend_, model.config, model.weights, engine_options};
  }
  Engine make() { return make(model_, options()); }
  Engine make_unpacked() {
    EngineOptions unpacked = options();
    unpacked.folds.pack_valid_tokens = false;
    return make(model_, unpacked);
  }
  bool pi05() const { return model_.config.pi05(); }

  std::unique_ptr<Backend> backend_;
  LoadedModel model_;
};

INSTANTIATE_TEST_SUITE_P(Tiny, EngineTest,
                         testing::Values(Param{"tiny_pi0", DType::kF32}, Param{"tiny_pi0", DType::kBf16},
                                         Param{"tiny_pi0", DType::kE4m3}, Param{"tiny_pi05", DType::kF32},
                                         Param{"tiny_pi05", DType::kBf16}, Param{"tiny_pi05", DType::kI8}),
                         param_name);

using Pi05Test = EngineTest;
INSTANTIATE_TEST_SUITE_P(Tiny, Pi05Test,
                         testing::Values(Param{"tiny_pi05", DType::kF32}, Param{"tiny_pi05", DType::kBf16}),
                         param_name);
using Bf16Test = EngineTest;
INSTANTIATE_TEST_SUITE_P(Tiny, Bf16Test,
                         testing::Values(Param{"tiny_pi0", DType::kBf16}, Param{"tiny_pi05", DType::kBf16}),
                         param_name);

// --- determinism ----------------------------------------------------------------------------------------------------

TEST_P(EngineTest, SameInputGivesSameBytes) {
  const Request request(model_.config, 1);
  Engine engine = make();
  const std::vector<float> first = infer(engine, request);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(same_bytes(first, infer(engine, request))) << "call " << i;

  const LoadedModel again = load();
  const std::unique_ptr<Backend> other_backend = make_backend("cpu", {.threads = 1, .device = 0});
  Engine restarted(*other_backend, again.config, again.weights, options());
  EXPECT_TRUE(same_bytes(first, infer(restarted, request)));
  EXPECT_FALSE(same_bytes(first, infer(engine, Request(model_.config, 2))));
}

TEST_P(EngineTest, EveryInputMatters) {
  Engine engine = make();
  const Request base(model_.config, 1);
  const std::vector<float> actions = infer(engine, base);
  for (size_t camera = 0; camera < 3; ++camera) {
    Request changed = base;
    for (uint8_t& value : changed.images[camera]) value = static_cast<uint8_t>(255 - value);
    EXPECT_FALSE(same_bytes(actions, infer(engine, changed))) << "camera " << camera;
  }
  Request changed = base;
  changed.tokens.back() = changed.tokens.back() == 7 ? 8 : 7;
  EXPECT_FALSE(same_bytes(actions, infer(engine, changed))) << "tokens";
  changed = base;
  changed.noise.back() += 0.5F;
  EXPECT_FALSE(same_bytes(actions, infer(engine, changed))) << "noise";
  changed = base;
  changed.state[0] += 0.5F;
  EXPECT_EQ(same_bytes(actions, infer(engine, changed)), pi05()) << "state";
}

TEST_P(Pi05Test, DoesNotReadTheState) {
  Engine engine = make();
  Request request(model_.config, 1);
  const std::vector<float> actions = infer(engine, request);
  for (const std::vector<float>& state :
       {std::vector<float>{}, std::vector<float>{kNan}, std::vector<float>(7, 1e6F)}) {
    request.state = state;
    EXPECT_TRUE(same_bytes(actions, infer(engine, request))) << state.size() << " values";
  }
}

// Plans of many buckets push each other out; a plan made again is the same plan.
TEST_P(EngineTest, PlansThatWereDroppedComeBackTheSame) {
  Engine engine = make();
  std::vector<Request> requests;
  for (int64_t prompt = 1; prompt <= 6; ++prompt) {
    requests.emplace_back(model_.config, prompt, 3, prompt);
    requests.emplace_back(model_.config, prompt, 3, prompt).mask({true, false, prompt % 2 == 0});
  }
  std::vector<std::vector<float>> first;
  for (const Request& request : requests) first.push_back(infer(engine, request));
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(same_bytes(first[i], infer(engine, requests[i]))) << "bucket " << i << ", round " << round;
    }
  }
  for (size_t i = requests.size(); i-- > 0;) ASSERT_TRUE(same_bytes(first[i], infer(engine, requests[i]))) << i;
}

// --- batches and masks ----------------------------------------------------------------------------------------------

TEST_P(EngineTest, BatchEqualsSingleCalls) {
  Engine engine = make();
  const std::vector<std::vector<bool>> masks = {
      {true, true, true}, {true, false, false}, {false, true, true}, {true, false, true}, {false, false, true}};
  std::vector<Request> requests;
  std::vector<std::vector<float>> single;
  for (int64_t b = 0; b < 5; ++b) {
    requests.emplace_back(model_.config, b, 3, 1 + (b * 5) % model_.config.max_token_len)
        .mask(masks[static_cast<size_t>(b)]);
    single.push_back(infer(engine, requests.back()));
  }
  for (size_t batch = 1; batch <= 5; ++batch) {
    for (const bool backwards : {false, true}) {
      std::vector<Sample> samples;
      const auto index = [&](size_t i) { return backwards ? 4 - i : i; };
      for (size_t i = 0; i < batch; ++i) samples.push_back(requests[index(i)].sample());
      const std::vector<float> actions = infer(engine, samples);
      for (size_t i = 0; i < batch; ++i) {
        const std::vector<float>& want = single[index(i)];
        const double difference = max_abs_difference(std::span(actions).subspan(i * want.size(), want.size()), want);
        EXPECT_LE(difference, GetParam().order_tolerance()) << "sample " << i << " of " << batch;
      }
    }
  }
}

TEST_P(EngineTest, PixelsOfAMaskedCameraNeverMatter) {
  const Request request = Request(model_.config, 1).mask({true, false, true});
  const Request other(model_.config, 2);
  const std::vector<float> nans(static_cast<size_t>(model_.config.vision.pixels()), kNan);
  for (const bool packed : {true, false}) {
    Engine engine = packed ? make() : make_unpacked();
    const std::vector<float> actions = infer(engine, request);
    Sample sample = request.sample();
    sample.cameras[1].pixels = nullptr;
    EXPECT_TRUE(same_bytes(actions, infer(engine, std::span(&sample, 1)))) << "no pixels, packed " << packed;
    sample.cameras[1].pixels = other.images[1].data();
    EXPECT_TRUE(same_bytes(actions, infer(engine, std::span(&sample, 1)))) << "other pixels, packed " << packed;
    sample.cameras[1] = {nans.data(), DType::kF32, false};
    EXPECT_TRUE(same_bytes(actions, infer(engine, std::span(&sample, 1)))) << "NaN pixels, packed " << packed;
    sample.cameras[1].active = true;
    sample.cameras[1] = {other.images[1].data(), DType::kU8, true};
    EXPECT_FALSE(same_bytes(actions, infer(engine, std::span(&sample, 1)))) << "unmasked, packed " << packed;
  }
}

// With the active pictures in f32, a masked one in f32 is not copied either.
TEST_P(EngineTest, FloatPixelsOfAMaskedCameraNeverMatter) {
  const Request request(model_.config, 1);
  const auto pixels = static_cast<size_t>(model_.config.vision.pixels());
  const std::vector<float> picture(pixels, 0.25F);
  const std::vector<float> nans(pixels, kNan);
  for (const bool packed : {true, false}) {
    Engine engine = packed ? make() : make_unpacked();
    Sample sample = request.sample();
    sample.cameras = {{picture.data(), DType::kF32, true}, {picture.data(), DType::kF32, false}};
    const std::vector<float> actions = infer(engine, std::span(&sample, 1));
    sample.cameras[1].pixels = nans.data();
    EXPECT_TRUE(same_bytes(actions, infer(engine, std::span(&sample, 1)))) << "packed " << packed;
  }
}

TEST_P(EngineTest, SkippingAndMaskingAgree) {
  Engine packed = make();
  Engine unpacked = make_unpacked();
  for (const std::vector<bool>& mask : {std::vector<bool>{true},
                                        {true, false},
                                        {false, true},
                                        {true, true, true},
                                        {true, false, true},
                                        {false, false, true},
                                        {true, false, false, true},
                                        {false, true, true, false, true},
                                        {true, true, true, true, true}}) {
    const Request request =
        Request(model_.config, 3, mask.size(), 1 + static_cast<int64_t>(mask.size()) * 2).mask(mask);
    const std::vector<float> skipped = infer(packed, request);
    const std::vector<float> masked = infer(unpacked, request);
    EXPECT_LE(max_abs_difference(skipped, masked), std::max(1e-4, GetParam().order_tolerance()))
        << testing::PrintToString(mask);
  }
}

// A masked camera takes no position: leaving its slot out altogether gives the same bytes.
TEST_P(EngineTest, MaskedSlotEqualsNoSlot) {
  Engine engine = make();
  const Request request = Request(model_.config, 1, 5).mask({false, true, false, true, false});
  Sample sample = request.sample();
  const std::vector<float> masked = infer(engine, std::span(&sample, 1));
  sample.cameras = {sample.cameras[1], sample.cameras[3]};
  EXPECT_TRUE(same_bytes(masked, infer(engine, std::span(&sample, 1))));
  std::swap(sample.cameras[0], sample.cameras[1]);
  EXPECT_FALSE(same_bytes(masked, infer(engine, std::span(&sample, 1)))) << "order of cameras must matter";
}

TEST_P(EngineTest, PlanesEqualInterleavedPictures) {
  Engine engine = make();
  const Request request(model_.config, 1);
  const std::vector<float> expected = infer(engine, request);
  std::vector<std::vector<uint8_t>> planes;
  for (const auto& picture : request.images) {
    std::vector<uint8_t>& one = planes.emplace_back();
    for (size_t channel = 0; channel < 3; ++channel) {
      for (size_t i = channel; i < picture.size(); i += 3) one.push_back(picture[i]);
    }
  }
  Sample sample = request.sample();
  for (size_t camera = 0; camera < 3; ++camera) {
    CameraView& view = sample.cameras[camera];
    view.pixels = planes[camera].data();
    view.planar = true;
  }
  EXPECT_TRUE(same_bytes(expected, infer(engine, std::span(&sample, 1))));
  std::vector<float> floats;
  for (const uint8_t value : request.images[0]) floats.push_back(static_cast<float>(value) / 255.0F * 2.0F - 1.0F);
  sample.cameras[0] = {floats.data(), DType::kF32, true};
  EXPECT_TRUE(same_bytes(expected, infer(engine, std::span(&sample, 1)))) << "mixed with f32";
}

TEST_P(EngineTest, FloatPicturesEqualBytePictures) {
  Engine engine = make();
  const Request request(model_.config, 1);
  const std::vector<float> from_bytes = infer(engine, request);
  std::vector<std::vector<float>> pictures;
  Sample sample = request.sample();
  for (size_t camera = 0; camera < 3; ++camera) {
    std::vector<float>& picture = pictures.emplace_back();
    for (const uint8_t value : request.images[camera])
      picture.push_back(static_cast<float>(value) / 255.0F * 2.0F - 1.0F);
  }
  for (size_t camera = 0; camera < 3; ++camera) sample.cameras[camera] = {pictures[camera].data(), DType::kF32, true};
  EXPECT_TRUE(same_bytes(from_bytes, infer(engine, std::span(&sample, 1)))) << "all f32";
  sample.cameras[1] = {request.images[1].data(), DType::kU8, true};
  EXPECT_TRUE(same_bytes(from_bytes, infer(engine, std::span(&sample, 1)))) << "mixed";
}

// --- bad input ------------------------------------------------------------------------------------------------------

struct BadInput {
  const char* what;
  std::function<void(Request&, Sample&)> spoil;
  std::vector<std::string> message;
  bool pi0_only = false;
};

TEST_P(EngineTest, BadInputIsRefusedByName) {
  std::vector<float> nan_picture(static_cast<size_t>(model_.config.vision.pixels()), 0.0F);
  nan_picture[777] = kNan;
  const auto budget = static_cast<size_t>(model_.config.max_token_len);
  const std::vector<BadInput> cases = {
      {"no active camera",
       [](Request&, Sample& s) {
         for (CameraView& c : s.cameras) c.active = false;
       },
       {"no camera is active"}},
      {"no cameras at all", [](Request&, Sample& s) { s.cameras.clear(); }, {"no camera is active"}},
      {"too many cameras", [](Request&, Sample& s) { s.cameras.resize(17, s.cameras[0]); }, {"cameras", "17", "16"}},
      {"no pixels", [](Request&, Sample& s) { s.cameras[2].pixels = nullptr; }, {"camera 2", "no pixels"}},
      {"NaN picture",
       [&](Request&, Sample& s) {
         s.cameras[1] = {nan_picture.data(), DType::kF32, true};
       },
       {"camera 1", "not finite", "777"}},
      {"planes of floats",
       [&](Request&, Sample& s) {
         s.cameras[1] = {nan_picture.data(), DType::kF32, true, nullptr, true};
       },
       {"camera 1", "planes", "u8"}},
      {"token too large", [](Request& r, Sample&) { r.tokens[3] = 512; }, {"token 3", "512"}},
      {"token negative", [](Request& r, Sample&) { r.tokens[0] = -1; }, {"token 0", "-1", "512"}},
      {"empty prompt", [](Request&, Sample& s) { s.tokens = {}; }, {"prompt", "0 tokens", std::to_string(budget)}},
      {"long prompt",
       [&](Request& r, Sample& s) {
         r.tokens.assign(budget + 1, 5);
         s.tokens = r.tokens;
       },
       {"prompt", std::to_string(budget + 1) + " tokens", std::to_string(budget)}},
      {"short noise", [](Request&, Sample& s) { s.noise = s.noise.first(159); }, {"noise", "159", "160"}},
      {"long noise",
       [](Request& r, Sample& s) {
         r.noise.push_back(0);
         s.noise = r.noise;
       },
       {"noise", "161", "160"}},
      {"NaN noise",
       [](Request& r, Sample&) {
         r.noise[42] = kNan;
         r.noise[77] = kNan;
       },
       {"noise", "not finite", "42"}},
      {"infinite noise", [](Request& r, Sample&) { r.noise[159] = -kInfinity; }, {"noise", "not finite", "159"}},
      {"short state", [](Request&, Sample& s) { s.state = s.state.first(14); }, {"state", "14", "32"}, true},
      {"no state", [](Request&, Sample& s) { s.state = {}; }, {"state", "0", "32"}, true},
      {"NaN state", [](Request& r, Sample&) { r.state[31] = kNan; }, {"state", "not finite", "31"}, true},
      {"infinite state", [](Request& r, Sample&) { r.state[7] = kInfinity; }, {"state", "not finite", "7"}, true},
  };
  Engine engine = make();
  const Request good(model_.config, 1);
  const std::vector<float> actions = infer(engine, good);
  for (const BadInput& bad : cases) {
    if (bad.pi0_only && pi05()) continue;
    SCOPED_TRACE(bad.what);
    Request request = good;
    Sample sample = request.sample();
    bad.spoil(request, sample);
    // As the second sample of a batch, so that the message must say which.
    const std::vector<Sample> samples = {good.sample(), sample};
    std::vector<float> out(2 * actions.size());
    const Status status = engine.infer(samples, out);
    EXPECT_EQ(status.code(), StatusCode::kBadInput);
    EXPECT_THAT(status.message(), HasSubstr("sample 1"));
    for (const std::string& part : bad.message) EXPECT_THAT(status.message(), HasSubstr(part));
    ASSERT_TRUE(same_bytes(actions, infer(engine, good))) << "the engine must go on as before";
  }
}

TEST_P(EngineTest, RoomForTheActionsMustFit) {
  Engine engine = make();
  const Request request(model_.config, 1);
  const Sample sample = request.sample();
  for (const size_t room : {size_t{0}, size_t{159}, size_t{161}, size_t{320}}) {
    std::vector<float> out(room, 4.0F);
    const Status status = engine.infer({&sample, 1}, out);
    EXPECT_EQ(status.code(), StatusCode::kBadInput);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(room)));
    EXPECT_EQ(out, std::vector<float>(room, 4.0F)) << "nothing may be written";
  }
  EXPECT_EQ(engine.infer({}, {}).code(), StatusCode::kBadInput);
}

TEST_P(EngineTest, NonFiniteWeightsGiveAnErrorNotActions) {
  for (const auto& [name, at] : std::vector<std::pair<std::string, size_t>>{
           {"action_out_proj.bias", 3},
           {"action_in_proj.weight", 5},
           {"paligemma_with_expert.gemma_expert.model.layers.1.mlp.down_proj.weight", 0},
           {"paligemma_with_expert.paligemma.model.vision_tower.vision_model.embeddings.patch_embedding.bias", 1}}) {
    for (const float value : {kNan, kInfinity}) {
      SCOPED_TRACE(name);
      TempDir temp;
      StoredMap weights = read_weights(directory());
      std::vector<float> values = weights.at(name).floats();
      values[at] = value;
      set_weight(weights, name, values, DType::kBf16);
      write_checkpoint(temp.path(), weights, directory());
      const LoadedModel broken = load_tiny(temp.path());
      Engine engine = make(broken, options());
      const Request request(broken.config, 1);
      const Sample sample = request.sample();
      std::vector<float> actions(160);
      const Status status = engine.infer({&sample, 1}, actions);
      EXPECT_EQ(status.code(), StatusCode::kNonFinite);
      EXPECT_THAT(status.message(), HasSubstr("non-finite action"));
    }
  }
}

TEST_P(EngineTest, HugeStateStaysFinite) {
  Engine engine = make();
  Request request(model_.config, 1);
  for (const float value : {1e6F, -1e6F}) {
    request.state.assign(32, value);
    for (const float action : infer(engine, request)) ASSERT_TRUE(std::isfinite(action));
  }
}

// --- shapes ---------------------------------------------------------------------------------------------------------

TEST_P(EngineTest, AnyHorizonAndStepCount) {
  for (const int64_t horizon : {1, 10, 15, 16, 50}) {
    const LoadedModel model = load(horizon);
    const Request request(model.config, 1);
    std::vector<float> previous;
    for (const int64_t steps : {1, 2, 5, 20}) {
      Engine engine = make(model, options(steps));
      const std::vector<float> actions = infer(engine, request);
      ASSERT_EQ(std::ssize(actions), horizon * 32);
      for (const float action : actions) ASSERT_TRUE(std::isfinite(action)) << horizon << ", " << steps;
      EXPECT_FALSE(same_bytes(actions, previous)) << "the number of steps must matter";
      // Each step count integrates the same field: the answers stay close to one another.
      if (!previous.empty()) {
        EXPECT_LE(max_abs_difference(actions, previous), 3.0) << horizon << ", " << steps;
      }
      previous = actions;
    }
  }
}

TEST_P(EngineTest, StageTimesCoverTheCall) {
  Engine engine = make();
  const Request request(model_.config, 1);
  const Sample sample = request.sample();
  std::vector<float> actions(160);
  OpTimes times;
  ASSERT_TRUE(engine.infer({&sample, 1}, actions, &times).is_ok());
  ASSERT_EQ(times.duration_us.size(), engine.plan().ops().size());
  ASSERT_EQ(times.start_us.size(), engine.plan().ops().size());
  double total = 0;
  for (size_t i = 0; i < times.duration_us.size(); ++i) {
    EXPECT_GE(times.duration_us[i], 0);
    if (i > 0) {
      EXPECT_GE(times.start_us[i], times.start_us[i - 1]);
    }
    total += times.duration_us[i];
  }
  const std::vector<StageTime> stages = stage_times(engine.plan(), times);
  std::vector<std::string> names;
  double sum = 0;
  for (const StageTime& stage : stages) {
    names.push_back(stage.name);
    EXPECT_GT(stage.us, 0) << stage.name;
    sum += stage.us;
  }
  EXPECT_NEAR(sum, total, 1e-6 * total);
  for (const char* stage : {"vision", "prefix", "denoise"}) EXPECT_THAT(names, testing::Contains(stage));
  std::vector<float> untimed(160);
  ASSERT_TRUE(engine.infer({&sample, 1}, untimed).is_ok());
  EXPECT_TRUE(same_bytes(actions, untimed)) << "timing must not change the answer";
}

// --- memory ---------------------------------------------------------------------------------------------------------

TEST_P(EngineTest, WarmCallsAllocateNothing) {
  Engine engine = make();
  const Request one(model_.config, 1);
  const Request two = Request(model_.config, 2, 3, 7).mask({true, false, true});
  const std::vector<Sample> single = {one.sample()};
  const std::vector<Sample> pair = {one.sample(), two.sample()};
  std::vector<float> actions(320);
  FrameStream stream(engine, pair);
  const auto call = [&] {
    const bool ok = engine.infer(single, std::span(actions).first(160)).is_ok() && engine.infer(pair, actions).is_ok();
    const bool refused = !engine.infer(single, actions).is_ok();
    const bool streamed = stream.submit(pair).is_ok() && stream.submit(pair).is_ok() && !stream.submit(pair).is_ok() &&
                          stream.wait(actions).is_ok() && stream.wait(actions).is_ok();
    return ok && refused && streamed;
  };
  ASSERT_TRUE(call());
  ASSERT_TRUE(call());
  allocations = 0;
  counting = true;
  const bool ok = call() && call();
  counting = false;
  EXPECT_TRUE(ok);
  EXPECT_EQ(allocations.load(), 0);

  counting = true;  // the counter counts
  const Request fresh = Request(model_.config, 3, 3, 4);
  counting = false;
  EXPECT_GT(allocations.load(), 0);
}

// --- stored precision -----------------------------------------------------------------------------------------------

// The checkpoint with every value so small that a half cannot hold it set to zero: exact in F32, BF16 and F16.
StoredMap representable(const std::filesystem::path& directory) {
  StoredMap weights = read_weights(directory);
  for (auto& [name, stored] : weights) {
    std::vector<float> values = stored.floats();
    for (float& value : values) {
      value = round_to_bf16(value);
      if (std::abs(value) < 0x1.0p-14F) value = 0;
    }
    stored = store(values, stored.shape, DType::kBf16);
  }
  return weights;
}

TEST_P(EngineTest, CodesAreWhereTheyAreAskedFor) {
  for (int bits = 0; bits < 16; ++bits) {
    EngineOptions coded = options();
    coded.coded = {.vision_normed = (bits & 8) != 0,
                   .vision_rest = (bits & 1) != 0,
                   .prefix = (bits & 2) != 0,
                   .expert = (bits & 4) != 0};
    const Engine engine = make(model_, coded);
    const Weights& weights = engine.store().weights();
    const DType others = GetParam().precision == DType::kF32 ? weights.embedding.dtype : DType::kBf16;
    const auto expected = [&](bool has_codes) {
      return has_codes && is_scaled(GetParam().precision) ? GetParam().precision : others;
    };
    for (const Tensor* w :
         {&weights.vision.layers[0].q.w, &weights.vision.layers[1].fc1.w, &weights.vision.projector.w})
      EXPECT_EQ(w->dtype, expected(coded.coded.vision_normed)) << bits;
    for (const Tensor* w : {&weights.vision.layers[0].out.w, &weights.vision.layers[1].fc2.w})
      EXPECT_EQ(w->dtype, expected(coded.coded.vision_rest)) << bits;
    for (const Tensor* w : {&weights.prefix.layers[0].q, &weights.prefix.layers[0].down})
      EXPECT_EQ(w->dtype, expected(coded.coded.prefix)) << bits;
    for (const Tensor* w : {&weights.expert.layers[0].gate, &weights.expert.layers[1].o})
      EXPECT_EQ(w->dtype, expected(coded.coded.expert)) << bits;
    EXPECT_EQ(weights.embedding.dtype, others);
  }
}

// The expert's weights alone: bf16 numbers, of which each row holds multiples of a 127th of its largest.
TEST_P(EngineTest, ExpertWeightsAreRoundedToCodes) {
  if (GetParam().precision == DType::kF32) GTEST_SKIP() << "f32 has no codes";
  EngineOptions plain = options();
  EngineOptions rounded = options();
  plain.coded.prefix = rounded.coded.prefix = false;
  rounded.coded.expert_weights = true;
  Engine before = make(model_, plain);
  Engine after = make(model_, rounded);
  const bool has_codes = is_scaled(GetParam().precision);
  EXPECT_EQ(after.store().weights().expert.rounded_to_i8, has_codes);
  EXPECT_FALSE(before.store().weights().expert.rounded_to_i8);
  const auto numbers = [](const Tensor& t) { return to_doubles(t); };
  double most = 0.0;
  for (const auto member : {&GemmaLayerWeights::q, &GemmaLayerWeights::o, &GemmaLayerWeights::down}) {
    const Tensor& from = before.store().weights().expert.layers[1].*member;
    const Tensor& to = after.store().weights().expert.layers[1].*member;
    ASSERT_EQ(to.dtype, DType::kBf16);
    const std::vector<double> old = numbers(from);
    const std::vector<double> now = numbers(to);
    if (!has_codes) {
      EXPECT_EQ(old, now);
      continue;
    }
    for (int64_t row = 0; row < from.rows(); ++row) {
      double largest = 0.0;
      for (int64_t col = 0; col < from.cols(); ++col)
        largest = std::max(largest, std::abs(old[static_cast<size_t>(row * from.cols() + col)]));
      for (int64_t col = 0; col < from.cols(); ++col) {
        const auto at = static_cast<size_t>(row * from.cols() + col);
        const double code = std::round(old[at] / largest * 127);
        EXPECT_NEAR(now[at], code * largest / 127, std::abs(now[at]) * 0x1p-8) << row << " " << col;
        most = std::max(most, std::abs(now[at] - old[at]));
      }
    }
  }
  EXPECT_EQ(most > 0.0, has_codes);
  const std::vector<float> actions = infer(after, Request(model_.config, 1));
  const std::vector<float> unrounded = infer(before, Request(model_.config, 1));
  EXPECT_EQ(same_bytes(actions, unrounded), !has_codes);
  EXPECT_LT(max_abs_difference(actions, unrounded), 0.1);
}

TEST_P(EngineTest, StoredPrecisionDoesNotMatter) {
  const StoredMap base = representable(directory());
  const std::vector<std::pair<std::string, std::vector<DType>>> ways = {
      {"bf16", {DType::kBf16}},
      {"f32", {DType::kF32}},
      {"f16", {DType::kF16}},
      {"mixed", {DType::kF32, DType::kBf16, DType::kF16}},
      {"mixed otherwise", {DType::kF16, DType::kF32, DType::kBf16, DType::kBf16, DType::kF32}}};
  std::vector<float> first;
  for (const auto& [what, dtypes] : ways) {
    SCOPED_TRACE(what);
    StoredMap weights;
    size_t number = 0;
    for (const auto& [name, stored] : base) {
      weights[name] = store(stored.floats(), stored.shape, dtypes[number++ % dtypes.size()]);
    }
    TempDir temp;
    write_checkpoint(temp.path(), weights, directory());
    const LoadedModel model = load_tiny(temp.path());
    Engine engine = make(model, options());
    const std::vector<float> actions = infer(engine, Request(model.config, 1));
    if (first.empty()) first = actions;
    EXPECT_TRUE(same_bytes(first, actions)) << "off by " << max_abs_difference(first, actions);
  }
}

TEST_P(Bf16Test, IsCloseToF32) {
  Engine low = make(model_, options(10));
  EngineOptions high_options = options(10);
  high_options.precision = DType::kF32;
  Engine high = make(model_, high_options);
  for (int64_t number = 0; number < 4; ++number) {
    const Request request(model_.config, number);
    const std::vector<float> got = infer(low, request);
    const std::vector<float> want = infer(high, request);
    EXPECT_FALSE(same_bytes(got, want)) << "bf16 must really be another precision";
    double dot = 0, got2 = 0, want2 = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      dot += double{got[i]} * want[i];
      got2 += double{got[i]} * got[i];
      want2 += double{want[i]} * want[i];
    }
    EXPECT_GE(dot / std::sqrt(got2 * want2), 0.999) << "request " << number;
  }
}

// --- noise ----------------------------------------------------------------------------------------------------------

TEST(Noise, IsStandardNormal) {
  std::vector<float> noise(1'000'000);
  fill_noise(7, 3, noise);
  double sum = 0, square = 0, cube = 0, fourth = 0, lag = 0;
  for (size_t i = 0; i < noise.size(); ++i) {
    const double x = noise[i];
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    cube += x * x * x;
    fourth += x * x * x * x;
    if (i > 0) lag += x * noise[i - 1];
  }
  const auto n = static_cast<double>(noise.size());  // five standard errors each
  EXPECT_NEAR(sum / n, 0, 5e-3);
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(cube / n, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(lag / n, 0, 5e-3);
}

TEST(Noise, SeedAndRequestDecide) {
  const auto draw = [](uint64_t seed, uint64_t request, size_t count = 64) {
    std::vector<float> noise(count);
    fill_noise(seed, request, noise);
    return noise;
  };
  EXPECT_EQ(draw(0, 0), draw(0, 0));
  EXPECT_NE(draw(0, 0), draw(0, 1));
  EXPECT_NE(draw(0, 0), draw(1, 0));
  EXPECT_NE(draw(0, 1), draw(1, 0));
  const std::vector<float> odd = draw(5, 9, 7);
  const std::vector<float> even = draw(5, 9, 8);
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), even.begin())) << "an odd count is a prefix of the next even one";
  // Neighbouring requests are not shifts of one another.
  const std::vector<float> a = draw(0, 0, 4096);
  const std::vector<float> b = draw(0, 1, 4096);
  for (size_t shift = 0; shift < 64; ++shift) EXPECT_NE(a[shift + 2], b[0]) << shift;
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += double{a[i]} * b[i];
  EXPECT_NEAR(dot / 4096, 0, 5.0 / 64);
}

// What a seed gives must not change: values of the rule in noise.h, computed by another program.
TEST(Noise, FirstValuesAreFrozen) {
  const auto expect = [](uint64_t seed, uint64_t request, const std::vector<float>& want) {
    std::vector<float> noise(want.size());
    fill_noise(seed, request, noise);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(noise[i], want[i], 1e-6F) << seed << ", element " << i;
  };
  expect(0, 0, {-0.103178842F, 1.9849691F, 0.422110228F, -0.963923477F, 0.261189047F, -3.20270946F});
  expect(42, 7, {-2.15751198F, -0.618973576F, -0.7296101F, 0.300313869F, 0.489851908F, 2.47286001F});
}

}  // namespace
}  // namespace tendon::test
