// The files of examples/observation are what its README says.
#include <algorithm>

#include "policy/files/state_file.h"
#include "policy/preset/presets.h"
#include "policy/resize.h"
#include "policy/tokenizer.h"
#include "policy_test.h"

namespace tendon {
namespace {

std::string example(const std::string& name) {
  return std::string(TENDON_SOURCE_DIR) + "/examples/observation/" + name;
}

TEST(Example, PicturesDecodeAndFit) {
  struct Case {
    const char* name;
    int height;
    int width;
  };
  for (const Case& one : {Case{"base.jpg", 480, 640}, {"left_wrist.jpg", 480, 640}, {"right_wrist.png", 240, 320}}) {
    const Image image = load_image(example(one.name));
    EXPECT_EQ(image.height, one.height) << one.name;
    EXPECT_EQ(image.width, one.width) << one.name;
    const auto [darkest, lightest] = std::ranges::minmax(image.rgb);
    EXPECT_GT(lightest - darkest, 100) << one.name;
    EXPECT_EQ(resize_with_pad(image).rgb.size(), 224U * 224U * 3U) << one.name;
  }
}

TEST(Example, NumbersFitThePreset) {
  const Preset& preset = find_preset("pi0_aloha");
  EXPECT_EQ(parse_state(example("state.json"), preset.robot->state_width).size(), 14U);
  const std::vector<int32_t> tokens = parse_tokens(example("tokens.json"), kPaliGemmaVocabSize);
  EXPECT_EQ(tokens.size(), 19U);
  EXPECT_EQ(tokens.front(), kBosToken);
  EXPECT_EQ(clean_prompt(read_text(example("prompt.txt"))), "pick up the red cube");
}

}  // namespace
}  // namespace tendon
