// Which keys a preset reads from a client's message, and what is refused.
#include "server/policy/observation.h"

#include <cmath>

#include <gmock/gmock.h>

#include "base/check.h"
#include "policy/preset/preset_file.h"
#include "server/policy/example_request.h"
#include "wire/message.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

constexpr int kSide = 4;
constexpr int64_t kHorizon = 2, kActionDim = 3;

template <class T>
struct Array {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<T> values;
  void write(WireWriter& writer) const { writer.array(dtype, shape, std::as_bytes(std::span(values))); }
};

uint8_t pixel(int camera, int y, int x, int channel) {
  return static_cast<uint8_t>(50 * camera + 10 * y + 3 * x + channel);
}

Array<uint8_t> hwc(int camera) {
  Array<uint8_t> array{"|u1", {kSide, kSide + 1, 3}, {}};
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide + 1; ++x) {
      for (int c = 0; c < 3; ++c) array.values.push_back(pixel(camera, y, x, c));
    }
  }
  return array;
}

Array<uint8_t> chw(int camera) {
  Array<uint8_t> array{"|u1", {3, kSide, kSide + 1}, {}};
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide + 1; ++x) array.values.push_back(pixel(camera, y, x, c));
    }
  }
  return array;
}

RequestDefaults defaults() { return {.prompt = {}, .tokens = {}, .horizon = kHorizon, .action_dim = kActionDim}; }

// A message put together of written values by key.
class Builder {
 public:
  template <class Write>
  Builder& add(const std::string& key, const Write& write) {
    entries_.emplace_back(key, [write](WireWriter& writer) { write(writer); });
    return *this;
  }
  Builder& drop(const std::string& key) {
    std::erase_if(entries_, [&](const auto& entry) { return entry.first == key; });
    return *this;
  }
  template <class T>
  Builder& array(const std::string& key, const Array<T>& value) {
    return add(key, [value](WireWriter& writer) { value.write(writer); });
  }
  Builder& text(const std::string& key, const std::string& value) {
    return add(key, [value](WireWriter& writer) { writer.text(value); });
  }
  std::string bytes() const {
    WireWriter writer;
    writer.map(entries_.size());
    for (const auto& [key, write] : entries_) {
      writer.text(key);
      write(writer);
    }
    return writer.take();
  }
  RobotRequest read(const char* preset, const RequestDefaults& with = defaults()) const {
    const std::string message = bytes();
    return read_request(decode_message(std::as_bytes(std::span(message))), find_preset(preset), with);
  }
  std::string refused(const char* preset, const RequestDefaults& with = defaults()) const {
    try {
      read(preset, with);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      return error.what();
    }
    ADD_FAILURE() << "accepted";
    return {};
  }

 private:
  std::vector<std::pair<std::string, std::function<void(WireWriter&)>>> entries_;
};

Array<double> numbers(int count, double first = 0.5) {
  Array<double> array{"<f8", {count}, {}};
  for (int i = 0; i < count; ++i) array.values.push_back(first + 0.25 * i);
  return array;
}

Builder droid() {
  Builder builder;
  builder.array("observation/exterior_image_1_left", hwc(0)).array("observation/wrist_image_left", hwc(1));
  builder.array("observation/joint_position", numbers(7)).array("observation/gripper_position", numbers(1, 9.0));
  return builder.text("prompt", "pick up");
}

Builder libero() {
  Builder builder;
  builder.array("observation/image", hwc(0)).array("observation/wrist_image", hwc(1));
  return builder.array("observation/state", numbers(8)).text("prompt", "pick up");
}

Builder aloha(const std::vector<std::string>& cameras = {"cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist"},
              bool planar = true) {
  Builder builder;
  builder.add("images", [cameras, planar](WireWriter& writer) {
    writer.map(cameras.size());
    for (size_t i = 0; i < cameras.size(); ++i) {
      writer.text(cameras[i]);
      (planar ? chw(static_cast<int>(i)) : hwc(static_cast<int>(i))).write(writer);
    }
  });
  return builder.array("state", numbers(14)).text("prompt", "fold");
}

void expect_camera(const std::optional<Image>& image, int camera) {
  ASSERT_TRUE(image.has_value());
  EXPECT_EQ(image->height, kSide);
  EXPECT_EQ(image->width, kSide + 1);
  EXPECT_EQ(image->rgb, hwc(camera).values);
}

TEST(ReadRequest, DroidJoinsJointsAndGripper) {
  const RobotRequest request = droid().read("pi05_droid");
  expect_camera(request.observation.cameras[0], 0);
  expect_camera(request.observation.cameras[1], 1);
  EXPECT_FALSE(request.observation.cameras[2].has_value());
  EXPECT_EQ(request.observation.state, (std::vector<double>{0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 9}));
  EXPECT_EQ(request.observation.prompt, "pick up");
  EXPECT_FALSE(request.noise.has_value());
}

// Pitfall 10 and field case 9: HWC and CHW alike for DROID and LIBERO, CHW only for ALOHA.
TEST(ReadRequest, Layouts) {
  Builder planar = libero().drop("observation/image").array("observation/image", chw(0));
  expect_camera(planar.read("pi05_libero").observation.cameras[0], 0);
  const RobotRequest request = aloha().read("pi0_aloha");
  expect_camera(request.observation.cameras[0], 0);
  expect_camera(request.observation.cameras[1], 2);
  expect_camera(request.observation.cameras[2], 3);
  const std::string message = aloha({"cam_high"}, false).refused("pi0_aloha");
  EXPECT_THAT(message, HasSubstr("images/cam_high"));
  EXPECT_THAT(message, HasSubstr("(4, 5, 3)"));
  EXPECT_THAT(message, HasSubstr("(3, height, width)"));
}

// Field case 10.
TEST(ReadRequest, AlohaCameras) {
  const RobotRequest only = aloha({"cam_high"}).read("pi0_aloha");
  EXPECT_TRUE(only.observation.cameras[0].has_value());
  EXPECT_FALSE(only.observation.cameras[1].has_value());
  EXPECT_FALSE(only.observation.cameras[2].has_value());
  std::string message = aloha({"cam_low", "cam_left_wrist"}).refused("pi0_aloha");
  EXPECT_THAT(message, HasSubstr("images/cam_high"));
  EXPECT_THAT(message, HasSubstr("cam_low, cam_left_wrist"));
  message = aloha({"cam_high", "cam_top"}).refused("pi0_aloha");
  EXPECT_THAT(message, HasSubstr("cam_top"));
  EXPECT_THAT(message, HasSubstr("cam_left_wrist"));
  message = aloha().drop("images").text("images", "none").refused("pi0_aloha");
  EXPECT_THAT(message, HasSubstr("map of cameras"));
}

// Field case 15: the key, the keys got, the keys wanted.
TEST(ReadRequest, MissingKeys) {
  for (const char* key : {"observation/exterior_image_1_left", "observation/wrist_image_left",
                          "observation/joint_position", "observation/gripper_position"}) {
    const std::string message = droid().drop(key).refused("pi05_droid");
    EXPECT_THAT(message, HasSubstr(fmt::format("lacks the key '{}'", key)));
    EXPECT_THAT(message, HasSubstr("Keys got: observation/"));
    EXPECT_THAT(message, HasSubstr("wants: observation/exterior_image_1_left, observation/wrist_image_left, "
                                   "observation/joint_position, observation/gripper_position, prompt"));
  }
  // Nested maps in place of keys with a slash.
  Builder nested;
  nested.add("observation", [](WireWriter& writer) {
    writer.map(1).text("image");
    hwc(0).write(writer);
  });
  const std::string message = nested.refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("lacks the key 'observation/image'"));
  EXPECT_THAT(message, HasSubstr("Keys got: observation."));
  EXPECT_THAT(Builder().refused("pi05_libero"), HasSubstr("Keys got: none."));
}

TEST(ReadRequest, MessageIsNoMap) {
  const std::string bytes = WireWriter().list(0).take();
  EXPECT_THROW(read_request(decode_message(std::as_bytes(std::span(bytes))), find_preset("pi0_aloha"), defaults()),
               Error);
}

// Pitfall 21: client, then command line or preset; an empty text counts as given.
TEST(ReadRequest, PromptPrecedence) {
  RequestDefaults with = defaults();
  with.prompt = "default";
  EXPECT_EQ(libero().read("pi05_libero", with).observation.prompt, "pick up");
  EXPECT_EQ(libero().drop("prompt").read("pi05_libero", with).observation.prompt, "default");
  EXPECT_EQ(libero().drop("prompt").text("prompt", "").read("pi05_libero", with).observation.prompt, "");
  const std::string message = libero().drop("prompt").refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("prompt is missing"));
  EXPECT_THAT(message, HasSubstr("--default-prompt"));
  with.tokens = {2, 7};
  EXPECT_EQ(libero().drop("prompt").read("pi05_libero", with).observation.tokens, with.tokens);
}

// Field case 14: one prompt in every form.
TEST(ReadRequest, PromptForms) {
  const std::string text = "cup";
  const auto prompt_of = [](const std::function<void(WireWriter&)>& write) {
    return libero().drop("prompt").add("prompt", write).read("pi05_libero").observation.prompt;
  };
  EXPECT_EQ(prompt_of([&](WireWriter& w) { w.bytes(std::as_bytes(std::span(text))); }), "cup");
  const Array<uint32_t> unicode{"<U5", {}, {'c', 'u', 'p', 0, 0}};
  EXPECT_EQ(prompt_of([&](WireWriter& w) { unicode.write(w); }), "cup");
  const Array<char> bytes{"|S3", {1}, {'c', 'u', 'p'}};
  EXPECT_EQ(prompt_of([&](WireWriter& w) { bytes.write(w); }), "cup");
  const Array<uint32_t> two{"<U1", {2}, {'c', 'u'}};
  EXPECT_THAT(libero().drop("prompt").array("prompt", two).refused("pi05_libero"), HasSubstr("prompt"));
  EXPECT_THAT(libero().drop("prompt").array("prompt", numbers(1)).refused("pi05_libero"), HasSubstr("prompt"));
}

// Field case 12 and 14: the state in every numeric form.
TEST(ReadRequest, StateForms) {
  const std::vector<double> want = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto state_of = [](Builder builder) { return builder.read("pi05_libero").observation.state; };
  const Array<float> f4{"<f4", {8}, {0, 1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(state_of(libero().drop("observation/state").array("observation/state", f4)), want);
  const Array<int64_t> i8{"<i8", {8}, {0, 1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(state_of(libero().drop("observation/state").array("observation/state", i8)), want);
  const Array<uint8_t> u1{"|u1", {8}, {0, 1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(state_of(libero().drop("observation/state").array("observation/state", u1)), want);
  const Array<uint16_t> f2{"<f2", {8}, {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700}};
  EXPECT_EQ(state_of(libero().drop("observation/state").array("observation/state", f2)), want);
  const Array<uint16_t> big{">f2", {8}, {0, 0x003c, 0x0040, 0x0042, 0x0044, 0x0045, 0x0046, 0x0047}};
  EXPECT_EQ(state_of(libero().drop("observation/state").array("observation/state", big)), want);
  EXPECT_EQ(state_of(libero()
                         .drop("observation/state")
                         .add("observation/state",
                              [](WireWriter& w) {
                                w.list(8);
                                for (int i = 0; i < 8; ++i) i % 2 == 0 ? w.integer(i) : w.number(i);
                              })),
            want);
  // A gripper as plain number and without dimensions.
  Builder scalar = droid().drop("observation/gripper_position");
  scalar.add("observation/gripper_position", [](WireWriter& w) { w.number(9); });
  EXPECT_EQ(scalar.read("pi05_droid").observation.state.back(), 9);
  const Array<double> bare{"<f8", {}, {9}};
  EXPECT_EQ(droid()
                .drop("observation/gripper_position")
                .array("observation/gripper_position", bare)
                .read("pi05_droid")
                .observation.state.back(),
            9);
}

TEST(ReadRequest, StateErrors) {
  std::string message =
      libero().drop("observation/state").array("observation/state", numbers(7)).refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("observation/state holds 7 numbers"));
  EXPECT_THAT(message, HasSubstr("takes 8"));
  Array<double> batched = numbers(8);
  batched.shape = {1, 8};
  message = libero().drop("observation/state").array("observation/state", batched).refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("(1, 8)"));
  EXPECT_THAT(message, HasSubstr("(8,)"));
  EXPECT_THAT(message, HasSubstr("one observation per request"));
  // Field case 18: the key and the first index.
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    Array<double> state = numbers(8);
    state.values[5] = state.values[6] = bad;
    message = libero().drop("observation/state").array("observation/state", state).refused("pi05_libero");
    EXPECT_THAT(message, HasSubstr("'observation/state'"));
    EXPECT_THAT(message, HasSubstr("index 5"));
  }
  message = libero().drop("observation/state").text("observation/state", "0 0").refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("text"));
}

// Field case 9: floats in [0, 1] truncate as NumPy does in the type of the array; anything outside is refused.
TEST(ReadRequest, FloatPictures) {
  const std::vector<double> x = {0, 0.5, 0.999, 1, 0.1, 0.7};
  const auto rgb_of = [](Builder builder) { return builder.read("pi05_libero").observation.cameras[0]->rgb; };
  const std::vector<uint8_t> want = {0, 127, 254, 255, 25, 178};
  Array<double> f8{"<f8", {1, 2, 3}, x};
  EXPECT_EQ(rgb_of(libero().drop("observation/image").array("observation/image", f8)), want);
  Array<float> f4{"<f4", {1, 2, 3}, {x.begin(), x.end()}};
  EXPECT_EQ(rgb_of(libero().drop("observation/image").array("observation/image", f4)), want);
  // numpy: (255 * np.float16([0, .5, .999, 1, .1, .7])).astype(np.uint8)
  Array<uint16_t> f2{"<f2", {1, 2, 3}, {0, 0x3800, 0x3bfe, 0x3c00, 0x2e66, 0x399a}};
  EXPECT_EQ(rgb_of(libero().drop("observation/image").array("observation/image", f2)),
            (std::vector<uint8_t>{0, 127, 254, 255, 25, 178}));

  f8.values[3] = 255;
  f8.values[0] = -0.5;
  std::string message = libero().drop("observation/image").array("observation/image", f8).refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("observation/image"));
  EXPECT_THAT(message, HasSubstr("-0.5"));
  EXPECT_THAT(message, HasSubstr("255"));
  f8.values[0] = std::nan("");
  message = libero().drop("observation/image").array("observation/image", f8).refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("index 0"));
}

TEST(ReadRequest, IntegerPictures) {
  Array<int64_t> wide{"<i8", {1, 2, 3}, {0, 1, 2, 253, 254, 255}};
  EXPECT_EQ(libero()
                .drop("observation/image")
                .array("observation/image", wide)
                .read("pi05_libero")
                .observation.cameras[0]
                ->rgb,
            (std::vector<uint8_t>{0, 1, 2, 253, 254, 255}));
  wide.values[0] = 256;
  EXPECT_THAT(libero().drop("observation/image").array("observation/image", wide).refused("pi05_libero"),
              HasSubstr("256"));
}

TEST(ReadRequest, PictureShapes) {
  const std::vector<std::pair<std::vector<int64_t>, const char*>> cases = {
      {{1, 4, 5, 3}, "(1, 4, 5, 3)"}, {{4, 15}, "(4, 15)"},     {{4, 5, 3, 1}, "(4, 5, 3, 1)"},
      {{5, 4, 3, 1}, "(5, 4, 3, 1)"}, {{5, 6, 2}, "(5, 6, 2)"}, {{0, 20, 3}, "20 x 0 pixels"}};
  for (const auto& [shape, part] : cases) {
    Array<uint8_t> image{"|u1", shape, std::vector<uint8_t>(60)};
    const std::string message =
        libero().drop("observation/image").array("observation/image", image).refused("pi05_libero");
    EXPECT_THAT(message, HasSubstr("observation/image"));
    EXPECT_THAT(message, HasSubstr(part));
  }
  const Array<uint32_t> unicode{"<U1", {1, 1, 3}, {'c', 'u', 'p'}};
  EXPECT_THAT(libero().drop("observation/image").array("observation/image", unicode).refused("pi05_libero"),
              HasSubstr("picture"));
}

// Field case 19.
TEST(ReadRequest, Noise) {
  Array<float> noise{"<f4", {kHorizon, kActionDim}, {1, 2, 3, 4, 5, 6}};
  EXPECT_EQ(*libero().array("tendon/noise", noise).read("pi05_libero").noise, noise.values);
  noise.shape = {1, kHorizon, kActionDim};
  EXPECT_EQ(*libero().array("tendon/noise", noise).read("pi05_libero").noise, noise.values);
  noise.shape = {kActionDim, kHorizon};
  std::string message = libero().array("tendon/noise", noise).refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("(3, 2)"));
  EXPECT_THAT(message, HasSubstr("(2, 3)"));
  noise.shape = {kHorizon, kActionDim};
  noise.values[4] = INFINITY;
  message = libero().array("tendon/noise", noise).refused("pi05_libero");
  EXPECT_THAT(message, HasSubstr("index 4"));
}

// A robot of one's own: of the joints six numbers are read, the wrist may be missing; the load generator's messages
// fit.
TEST(ReadRequest, PresetFile) {
  const PresetChoice choice(std::string(TENDON_SOURCE_DIR) + "/examples/preset/my_arm.json");
  const auto read = [&](const std::string& message) {
    return read_request(decode_message(std::as_bytes(std::span(message))), choice.preset(), defaults()).observation;
  };
  const auto message = [](int joints) {
    Builder builder;
    builder.array("observation/front", hwc(0)).array("observation/joints", numbers(joints));
    return builder.array("observation/gripper", numbers(1, 9.0)).text("prompt", "go");
  };
  const Observation observation = read(message(8).bytes());
  std::vector<double> state = numbers(6).values;
  state.push_back(9.0);
  EXPECT_EQ(observation.state, state);
  EXPECT_TRUE(observation.cameras[0]);
  EXPECT_FALSE(observation.cameras[1]);
  EXPECT_FALSE(observation.cameras[2]);
  try {
    read(message(5).bytes());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("'observation/joints' holds 5 numbers, but preset my_arm takes those from 0 to 5"));
  }
  const Observation example = read(example_request(choice.preset(), {.height = 4, .width = 4}));
  EXPECT_EQ(example.state.size(), 7U);
  EXPECT_TRUE(example.cameras[1]);
}

// Field case 25: the keys of real-time chunking, where it is offered.
TEST(ReadRequest, PreviousChunk) {
  RequestDefaults offered = defaults();
  offered.chunking = true;
  const auto with = [](const std::vector<std::pair<std::string, int>>& numbers, std::vector<int64_t> shape = {2, 7}) {
    Builder message = libero();
    Array<double> rows{"<f8", shape, {}};
    for (int64_t i = 0; i < shape[0] * shape[1]; ++i) rows.values.push_back(static_cast<double>(i));
    if (shape[0] > 0) message.array("prev_actions", rows);
    for (const auto& [key, number] : numbers) message.add(key, [number](WireWriter& w) { w.integer(number); });
    return message;
  };
  const auto read = [&](const Builder& message) { return message.read("pi05_libero", offered).observation.previous; };
  const auto refused = [&](const Builder& message) { return message.refused("pi05_libero", offered); };
  const std::optional<PreviousActions> whole = read(with({{"prev_actions_start", 1}, {"prev_actions_d", 0}}));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->rows, 2);
  EXPECT_EQ(whole->start, 1);
  EXPECT_EQ(whole->delay, 0);
  EXPECT_EQ(whole->actions.size(), 14U);
  const std::optional<PreviousActions> tail = read(with({{"inference_delay", 2}}));
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->start, 0);
  EXPECT_EQ(tail->delay, 2);
  EXPECT_FALSE(read(libero()));

  EXPECT_THAT(refused(with({})), HasSubstr("prev_actions_start"));
  EXPECT_THAT(refused(with({{"prev_actions_d", 1}})), HasSubstr("has the keys prev_actions, prev_actions_d"));
  EXPECT_THAT(refused(with({{"prev_actions_start", 1}, {"prev_actions_d", 0}, {"inference_delay", 1}})),
              HasSubstr("inference_delay"));
  EXPECT_THAT(refused(with({{"inference_delay", 1}}, {0, 7})), HasSubstr("has the keys inference_delay"));
  EXPECT_THAT(refused(with({{"rtc", 1}}, {0, 7})), HasSubstr("prev_actions"));
  EXPECT_THAT(refused(with({{"inference_delay", 1}}, {2, 6})), HasSubstr("(2, 6); expected (rows, 7)"));
  Builder fraction = with({{"prev_actions_start", 0}});
  fraction.add("prev_actions_d", [](WireWriter& w) { w.number(1.5); });
  EXPECT_THAT(refused(fraction), HasSubstr("'prev_actions_d' must be a whole number"));
  Builder text = with({{"prev_actions_start", 0}});
  text.text("prev_actions_d", "two");
  EXPECT_THAT(refused(text), HasSubstr("prev_actions_d"));
}

// Field case 25, where chunking is not offered; other unknown keys are ignored.
TEST(ReadRequest, UnknownKeys) {
  EXPECT_NO_THROW(libero().text("session", "x").array("observation/extra", numbers(3)).read("pi05_libero"));
  EXPECT_THAT(libero().array("prev_actions", numbers(3)).refused("pi05_libero"), HasSubstr("prev_actions"));
}

}  // namespace
}  // namespace tendon::test
