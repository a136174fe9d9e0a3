#include "checkpoint/json_text.h"

#include "test_files.h"

namespace tendon {
namespace {

using test::expect_refusal;

TEST(JsonText, KeepsOrderOfKeys) {
  const auto json = parse_json(R"({"b": 1, "a": 2, "c": 3})", "x.json");
  std::string order;
  for (const auto& [key, value] : json.items()) order += key;
  EXPECT_EQ(order, "bac");
}

TEST(JsonText, NonFiniteLiteralsBecomeStrings) {
  const auto json = parse_json(R"({"a": [NaN, -Infinity, Infinity, "NaN \" Infinity", 1]})", "x.json");
  EXPECT_EQ(json["a"][0], "NaN");
  EXPECT_EQ(json["a"][1], "-Infinity");
  EXPECT_EQ(json["a"][2], "Infinity");
  EXPECT_EQ(json["a"][3], "NaN \" Infinity");
}

TEST(JsonText, Refusals) {
  const struct {
    std::string text;
    std::vector<std::string> parts;
  } cases[] = {
      {"", {"x.json", "not valid JSON"}},
      {"{\"a\": }", {"x.json", "not valid JSON"}},
      {"{\"a\": 1} {", {"x.json", "not valid JSON"}},
      {"{\"a\": 1, \"a\": 2}", {"x.json", "'a'", "twice"}},
      {"[{\"k\": {\"a\": 1, \"b\": 2, \"a\": 3}}]", {"'a'", "twice"}},
      {"{\"a\": 1e999}", {"x.json", "overflow"}},
      {"{\"a\": \"\xff\"}", {"x.json", "UTF-8"}},
      {std::string(1000, '['), {"x.json", "nested deeper than 64"}},
      {"\"open", {"not valid JSON"}},
      {"\"back\\", {"not valid JSON"}},
  };
  for (const auto& [text, parts] : cases) {
    expect_refusal([&] { parse_json(text, "x.json"); }, parts);
  }
}

TEST(JsonText, SameKeyInDifferentObjectsIsFine) {
  EXPECT_EQ(parse_json(R"({"a": {"k": 1}, "b": {"k": 2}})", "x")["b"]["k"], 2);
}

TEST(JsonText, TooManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 20'001; ++i) text += fmt::format("{}\"k{}\":0", i == 0 ? "" : ",", i);
  expect_refusal([&] { parse_json(text + "}", "x.json"); }, {"x.json", "more than 20000 keys"});
}

TEST(JsonText, ReadTextFileNamesThePath) {
  test::TempDir dir;
  expect_refusal([&] { read_text_file(dir / "absent.json"); }, {"absent.json", "no such file"});
  expect_refusal([&] { read_text_file(dir.path()); }, {dir.path().string(), "not a regular file"});
  test::write_text(dir / "a.json", "hello");
  EXPECT_EQ(read_text_file(dir / "a.json"), "hello");
  test::write_text(dir / "empty.json", "");
  EXPECT_EQ(read_text_file(dir / "empty.json"), "");
  test::write_text(dir / "big.json", std::string(kMaxJsonFileBytes + 1, ' '));
  expect_refusal([&] { read_text_file(dir / "big.json"); }, {"big.json", "at most"});
}

}  // namespace
}  // namespace tendon
