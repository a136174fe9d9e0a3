// With a tiny model trained with PaliGemma's options; golden ids are SentencePiece's own
// (tools/make_policy_fixtures.py). TENDON_PALIGEMMA_TOKENIZER names the real file for one more test.
#include "policy/tokenizer.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "policy_test.h"

namespace tendon {
namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer(fixture("tiny_tokenizer.model"));
  return tokenizer;
}

std::vector<int32_t> joined(std::vector<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(Tokenizer, MatchesSentencePiece) {
  const auto golden = read_json("tokenizer.json");
  EXPECT_EQ(tiny().vocab_size(), golden["vocab_size"].get<int>());
  for (const auto& one : golden["cases"]) {
    EXPECT_EQ(tiny().encode(from_hex(one["hex"])), one["ids"].get<std::vector<int32_t>>()) << one["hex"];
  }
}

TEST(Tokenizer, CleansPromptsLikePython) {
  EXPECT_EQ(clean_prompt("  Pick_Up\nCube  "), "Pick Up Cube");
  EXPECT_EQ(clean_prompt("a  b"), "a  b");
  EXPECT_EQ(clean_prompt("\t\r\n\v\f\x1c\x1f x \n"), "x");
  EXPECT_EQ(clean_prompt("\xc2\xa0\xe3\x80\x80\xe2\x80\xa8pick\xc2\x85"), "pick");
  EXPECT_EQ(clean_prompt("_x_"), " x ");                      // stripped before the replacement
  EXPECT_EQ(clean_prompt("\xe2\x80\x8bx"), "\xe2\x80\x8bx");  // a zero-width space is no white space
  EXPECT_EQ(clean_prompt("a\rb\tc"), "a\rb\tc");
  EXPECT_EQ(clean_prompt(" \n "), "");
  EXPECT_EQ(clean_prompt(""), "");
  EXPECT_EQ(clean_prompt("\x80\xff"), "\x80\xff");
}

TEST(Tokenizer, StateBinsMatchTheirDefinition) {
  for (int i = 0; i < 256; ++i) {
    const double edge = -1.0 + i / 128.0;
    EXPECT_EQ(state_bin(edge), i);
    EXPECT_EQ(state_bin(std::nextafter(edge, -2.0)), i - 1);
    EXPECT_EQ(state_bin(std::nextafter(edge, 2.0)), i);
  }
}

TEST(Tokenizer, StateBinsOfKnownValues) {
  const std::vector<std::pair<double, int>> cases = {
      {-1.2, -1}, {-1.0, 0},  {-1e-9, 127}, {-1e-17, 127}, {0.0, 128},   {-0.0, 128},
      {0.5, 192}, {1.0, 255}, {7.0, 255},   {1e300, 255},  {-1e300, -1},
  };
  for (const auto& [x, bin] : cases) EXPECT_EQ(state_bin(x), bin) << x;
  EXPECT_EQ(state_bin(std::numeric_limits<double>::quiet_NaN()), 255);
  EXPECT_EQ(state_bin(std::numeric_limits<double>::infinity()), 255);
  EXPECT_EQ(state_bin(-std::numeric_limits<double>::infinity()), -1);
  // A value whose bin comes out wrong in single precision.
  const double q01 = -0.31361764669418335;
  const double q99 = 3.340132474899292;
  EXPECT_EQ(state_bin((3.197408676147461 - q01) / (q99 - q01 + 1e-6) * 2.0 - 1.0), 245);
}

TEST(Tokenizer, Pi05TextKeepsItsTemplate) {
  const std::vector<double> state = {0.0, 1.0, -1.0, -1.5};
  EXPECT_EQ(pi05_text("pick_up_cube", state), "Task: pick up cube, State: 128 255 0 -1;\nAction: ");
  EXPECT_EQ(pi05_text(" x ", {}), "Task: x, State: ;\nAction: ");
}

TEST(Tokenizer, Pi0FormEncodesTheNewlineApart) {
  const PromptTokens tokens = tiny().pi0_tokens("  pick_up\ncube  ");
  EXPECT_EQ(tokens.ids, joined({{2}, tiny().encode("pick up cube"), tiny().encode("\n")}));
  EXPECT_EQ(tokens.truncated_from, 0);
  EXPECT_EQ(tiny().pi0_tokens("").ids, joined({{2}, tiny().encode("\n")}));
  EXPECT_NE(tiny().pi0_tokens("Fold").ids, tiny().pi0_tokens("fold").ids);  // no lower-casing
}

TEST(Tokenizer, Pi05FormIsOneText) {
  std::vector<double> state;
  for (int i = 0; i < 14; ++i) state.push_back(-1.1 + i * 0.17);
  const PromptTokens tokens = tiny().pi05_tokens("fold the towel", state);
  EXPECT_EQ(tokens.ids, joined({{2}, tiny().encode(pi05_text("fold the towel", state))}));
  EXPECT_EQ(tokens.truncated_from, 0);
}

TEST(Tokenizer, CutsLongPromptsOnTheRight) {
  const PromptTokens whole = tiny().pi0_tokens("fold the towel and put away the pen", 1000);
  const int count = static_cast<int>(whole.ids.size());
  EXPECT_EQ(tiny().pi0_tokens("fold the towel and put away the pen", count).truncated_from, 0);
  const PromptTokens cut = tiny().pi0_tokens("fold the towel and put away the pen", count - 1);
  EXPECT_EQ(cut.truncated_from, count);
  EXPECT_EQ(cut.ids, std::vector<int32_t>(whole.ids.begin(), whole.ids.end() - 1));
  const PromptTokens state_cut = tiny().pi05_tokens(std::string(500, 'x'), std::vector<double>(8, 0.0));
  EXPECT_EQ(state_cut.ids.size(), 200U);
  EXPECT_GT(state_cut.truncated_from, 500);
}

TEST(Tokenizer, ControlPiecesCannotComeFromText) {
  for (const char* text : {"<bos>", "<s>", "</s>", "<pad>", "<unk>"}) {
    for (const int32_t id : tiny().encode(text)) EXPECT_GT(id, kUnknownToken) << text;
  }
}

TEST(Tokenizer, MegabytePromptIsAnsweredQuickly) {
  std::string prompt;
  while (prompt.size() < 1000000) prompt += "pick up the red cube ";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(tiny().pi0_tokens(prompt).ids.size(), 48U);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", fmt::format("{:.2f}", elapsed.count()));
  EXPECT_LT(elapsed.count(), 20.0);  // for slow and sanitized builds; about 0.5 s in a release build
}

// Writes protobuf fields: enough of a ModelProto for the settings check.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string number_field(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}
std::string bytes_field(int field, const std::string& value) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}

struct ModelText {
  std::string pieces;
  std::string trainer;
  std::string normalizer;

  ModelText() {
    for (const char* piece : {"<pad>", "</s>", "<s>", "<unk>", "a"}) pieces += bytes_field(1, bytes_field(1, piece));
    trainer =
        number_field(35, 1) + number_field(40, 3) + number_field(41, 2) + number_field(42, 1) + number_field(43, 0);
    normalizer = bytes_field(1, "identity") + number_field(3, 0) + number_field(4, 0);
  }
  std::string text() const { return pieces + bytes_field(2, trainer) + bytes_field(3, normalizer); }
};

void expect_setting_refused(const std::string& setting, const ModelText& model) {
  const TempFile file("wrong.model", model.text());
  expect_bad_input({file.path(), setting, "paligemma_tokenizer.model"}, [&] { Tokenizer{file.path()}; });
}

TEST(Tokenizer, RefusesOtherSettings) {
  const std::vector<std::tuple<std::string, int, uint64_t>> trainer_cases = {{"byte_fallback = 0", 35, 0},
                                                                             {"unk_id = 0", 40, 0},
                                                                             {"bos_id = 1,", 41, 1},
                                                                             {"eos_id = 2", 42, 2},
                                                                             {"pad_id = -1", 43, ~uint64_t{0}},
                                                                             {"treat_whitespace_as_suffix = 1", 24, 1}};
  for (const auto& [setting, field, value] : trainer_cases) {
    ModelText model;
    model.trainer += number_field(field, value);
    expect_setting_refused(setting, model);
  }
  const std::vector<std::tuple<std::string, int, uint64_t>> normalizer_cases = {
      {"add_dummy_prefix = 1", 3, 1}, {"remove_extra_whitespaces = 1", 4, 1}, {"escape_whitespaces = 0", 5, 0}};
  for (const auto& [setting, field, value] : normalizer_cases) {
    ModelText model;
    model.normalizer += number_field(field, value);
    expect_setting_refused(setting, model);
  }
  ModelText charsmap;
  charsmap.normalizer += bytes_field(2, "nfkc table");
  expect_setting_refused("precompiled_charsmap bytes (identity normalizer) = 10", charsmap);
}

TEST(Tokenizer, AbsentSettingsHaveSentencePieceDefaults) {
  ModelText model;
  model.normalizer = bytes_field(1, "identity");
  expect_setting_refused("add_dummy_prefix = 1", model);
  ModelText no_ids;
  no_ids.trainer = number_field(35, 1);
  expect_setting_refused("pad_id = -1", no_ids);
}

TEST(Tokenizer, RefusesGarbage) {
  const std::string tiny_model = read_text(fixture("tiny_tokenizer.model"));
  const std::vector<std::string> contents = {"",
                                             "hello, this is not a model",
                                             "{\"model\": {\"type\": \"BPE\"}}",
                                             std::string(1000, '\xff'),
                                             std::string(1000, '\0'),
                                             tiny_model.substr(0, tiny_model.size() / 2),
                                             tiny_model.substr(0, tiny_model.size() - 1),
                                             tiny_model + "\x0a\x7f",
                                             tiny_model.substr(1)};
  for (const std::string& content : contents) {
    const TempFile file("garbage.model", content);
    expect_bad_input({file.path(), "not a SentencePiece model"}, [&] { Tokenizer{file.path()}; });
  }
  expect_bad_input({"no such regular file"}, [] { Tokenizer{"no/such.model"}; });
  // Settings as wanted, but no byte pieces behind the byte fallback.
  const TempFile hollow("hollow.model", ModelText().text());
  expect_bad_input({hollow.path()}, [&] { Tokenizer{hollow.path()}; });
}

TEST(Tokenizer, TruncatedModelsAreRefused) {
  const std::string model = read_text(fixture("tiny_tokenizer.model"));
  for (size_t length = 0; length < model.size(); length += 7) {
    const TempFile file("cut.model", model.substr(0, length));
    expect_bad_input({file.path()}, [&] { Tokenizer{file.path()}; });
  }
}

TEST(Tokenizer, RealPaliGemmaFile) {
  const char* path = std::getenv("TENDON_PALIGEMMA_TOKENIZER");
  if (path == nullptr) GTEST_SKIP() << "TENDON_PALIGEMMA_TOKENIZER is not set";
  const Tokenizer tokenizer(path);
  EXPECT_EQ(tokenizer.vocab_size(), kPaliGemmaVocabSize);
  EXPECT_EQ(tokenizer.pi0_tokens("  pick_up\ncube  ").ids, (std::vector<int32_t>{2, 18075, 908, 28660, 108}));
  const std::vector<int32_t> wanted = {2,      7071,   235292, 4788,   908,    28660,  235269, 3040,
                                       235292, 235248, 235276, 235248, 235274, 235284, 235321, 235248,
                                       235284, 235308, 235308, 235289, 108,    4022,   235292, 235248};
  EXPECT_EQ(tokenizer.pi05_tokens("pick up cube", std::vector<double>{-1.0, 0.0, 1.0}).ids, wanted);
}

}  // namespace
}  // namespace tendon
