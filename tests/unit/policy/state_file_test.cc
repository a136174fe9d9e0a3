#include "policy/files/state_file.h"

#include <clocale>

#include "policy_test.h"

namespace tendon {
namespace {

const std::vector<double> kThree = {0.5, -1.25, 3000.0};

TEST(StateFile, AcceptsInlineListsInEveryForm) {
  for (const char* text : {"0.5,-1.25,3e3", "[0.5, -1.25, 3000]", " 0.5 -1.25\t3000\n", "+.5;-1.25;+3E+3",
                           "[\n 0.5,\n -1.25,\n 3000.0\n]\n", "0.5 , -1.25 , 3000", "\xef\xbb\xbf[0.5,-1.25,3000]"}) {
    EXPECT_EQ(parse_numbers(text, "test"), kThree) << text;
  }
  EXPECT_EQ(parse_state("0.5,-1.25,3e3", 3), kThree);
  EXPECT_TRUE(parse_numbers("[]", "test").empty());
}

TEST(StateFile, AcceptsFiles) {
  const TempFile json("state.json", "[0.5, -1.25, 3000.0]\n");
  EXPECT_EQ(parse_state(json.path(), 3), kThree);
  const TempFile csv("state.csv", "0.5,-1.25,3000\r\n");
  EXPECT_EQ(parse_state(csv.path(), 3), kThree);
}

TEST(StateFile, IgnoresTheLocale) {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  for (const char* locale : {"de_DE.UTF-8", "fr_FR.UTF-8"}) {
    std::setlocale(LC_ALL, locale);  // where it is not installed this changes nothing
    EXPECT_EQ(parse_state("0.5,-1.25,3e3", 3), kThree);
  }
  std::setlocale(LC_ALL, before.c_str());
}

TEST(StateFile, RefusesWrongCounts) {
  expect_bad_input({"state '1,2'", "8 numbers", "2 were given"}, [] { parse_state("1,2", 8); });
  const TempFile file("short.json", "[1, 2, 3]");
  expect_bad_input({file.path(), "14 numbers", "3 were given"}, [&] { parse_state(file.path(), 14); });
  expect_bad_input({"0 were given"}, [] { parse_state("[]", 14); });
}

TEST(StateFile, RefusesWhatIsNotAFiniteNumber) {
  expect_bad_input({"element 1 is nan"}, [] { parse_state("1,nan,2", 3); });
  expect_bad_input({"element 2 is -inf"}, [] { parse_state("[1,2,-Infinity]", 3); });
  expect_bad_input({"element 1 is inf"}, [] { parse_state("1,inf,2", 3); });
  expect_bad_input({"element 0", "outside the range"}, [] { parse_state("1e999", 1); });
  expect_bad_input({"element 1", "'x'", "not a number"}, [] { parse_state("1,x,2", 3); });
  expect_bad_input({"element 1", "'2.5.1'"}, [] { parse_state("1,2.5.1", 2); });
  expect_bad_input({"element 1", "'null'"}, [] { parse_state("[1,null]", 2); });
  expect_bad_input({"element 0", "'0x10'"}, [] { parse_state("0x10", 1); });
  expect_bad_input({"element 0", "'+-1'"}, [] { parse_state("+-1", 1); });
}

TEST(StateFile, RefusesMalformedLists) {
  expect_bad_input({"element 1 is missing"}, [] { parse_state("1,,2", 2); });
  expect_bad_input({"element 0 is missing"}, [] { parse_state("[,1]", 2); });
  expect_bad_input({"ends with a separator"}, [] { parse_state("1,2,", 2); });
  expect_bad_input({"one side"}, [] { parse_state("[1,2", 2); });
  expect_bad_input({"one side"}, [] { parse_state("1,2]", 2); });
  expect_bad_input({"one side"}, [] { parse_state("[", 2); });
  expect_bad_input({"nested"}, [] { parse_state("[[1,2]]", 2); });
  expect_bad_input({"state is empty"}, [] { parse_state("", 2); });
  expect_bad_input({"state is empty"}, [] { parse_state("  ", 2); });
}

TEST(StateFile, RefusesMissingFiles) {
  expect_bad_input({"state 'no/such/state.json'", "neither an existing file nor a list"},
                   [] { parse_state("no/such/state.json", 2); });
  expect_bad_input({"neither an existing file"}, [] { parse_state("state.json", 2); });
  expect_bad_input({"neither an existing file"}, [] { parse_state("./0.json", 2); });
  expect_bad_input({"no such regular file"}, [] { parse_state("/tmp", 2); });
}

TEST(StateFile, ParsesTokens) {
  EXPECT_EQ(parse_tokens("2, 18075 ,108", 257152), (std::vector<int32_t>{2, 18075, 108}));
  EXPECT_EQ(parse_tokens("[0, 257151]", 257152), (std::vector<int32_t>{0, 257151}));
  const TempFile file("tokens.json", "[2, 5]");
  EXPECT_EQ(parse_tokens(file.path(), 10), (std::vector<int32_t>{2, 5}));
}

TEST(StateFile, RefusesWrongTokens) {
  expect_bad_input({"element 1", "'257152'", "0 to 257151"}, [] { parse_tokens("2,257152", 257152); });
  expect_bad_input({"element 0", "'-1'"}, [] { parse_tokens("-1", 257152); });
  expect_bad_input({"element 1", "'1.5'"}, [] { parse_tokens("2,1.5", 257152); });
  expect_bad_input({"element 0", "'99999999999999999999'"}, [] { parse_tokens("99999999999999999999", 257152); });
  expect_bad_input({"no token ids"}, [] { parse_tokens("[]", 257152); });
  expect_bad_input({"token list 'tokens.txt'"}, [] { parse_tokens("tokens.txt", 257152); });
}

}  // namespace
}  // namespace tendon
