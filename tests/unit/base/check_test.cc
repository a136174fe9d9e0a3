#include "base/check.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace tendon {
namespace {

template <class F>
Error caught(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::kBadUse, "nothing thrown"};
}

TEST(Error, EveryThrowerHasItsKindAndText) {
  const Error input = caught([] { throw_bad_input("file {} is {} bytes", "a.json", 3); });
  EXPECT_EQ(input.kind(), ErrorKind::kBadInput);
  EXPECT_STREQ(input.what(), "file a.json is 3 bytes");
  const Error use = caught([] { throw_bad_use("no option {}", "--x"); });
  EXPECT_EQ(use.kind(), ErrorKind::kBadUse);
  EXPECT_STREQ(use.what(), "no option --x");
  const Error device = caught([] { throw_device("{} MB short", 12); });
  EXPECT_EQ(device.kind(), ErrorKind::kDevice);
  EXPECT_STREQ(device.what(), "12 MB short");
}

TEST(Check, SaysWhereWhatAndWhy) {
  const Error error = caught([] {
    const int rows = 3;
    TENDON_CHECK(rows == 4, "rows are {}", rows);
  });
  const std::string text = error.what();
  EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  EXPECT_NE(text.find("check_test.cc:"), std::string::npos) << text;
  EXPECT_NE(text.find("rows are 3"), std::string::npos) << text;
  EXPECT_NE(text.find("rows == 4"), std::string::npos) << text;
}

TEST(Check, EvaluatesItsConditionOnceAndItsMessageOnlyOnFailure) {
  int conditions = 0;
  int messages = 0;
  const auto condition = [&] { return ++conditions > 0; };
  const auto message = [&] { return ++messages; };
  TENDON_CHECK(condition(), "{}", message());
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(messages, 0);
}

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_STREQ(status.message(), "");
  EXPECT_TRUE(Status::ok().is_ok());
}

TEST(Status, CarriesCodeAndFormattedText) {
  const Status status = Status::error(StatusCode::kNonFinite, "value %d of %s", 7, "noise");
  EXPECT_FALSE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_STREQ(status.message(), "value 7 of noise");
  const Status copy = status;  // owns its text
  EXPECT_STREQ(copy.message(), "value 7 of noise");
  EXPECT_NE(copy.message(), status.message());
}

TEST(Status, LongTextIsCutAndTerminated) {
  const std::string text(2000, 'x');
  const Status status = Status::error(StatusCode::kBadInput, "ab%s", text.c_str());
  const std::string kept = status.message();
  EXPECT_LT(kept.size(), 512U);
  EXPECT_GT(kept.size(), 400U);
  EXPECT_EQ(kept, "ab" + std::string(kept.size() - 2, 'x'));
  static_assert(std::is_trivially_copyable_v<Status>, "reporting an error must not allocate");
}

TEST(Log, SinkGetsLevelAndText) {
  std::vector<std::string> seen;
  const LogSink sink = [&](LogLevel level, const std::string& text) {
    seen.push_back((level == LogLevel::kWarning ? "warning: " : "info: ") + text);
  };
  log_info(sink, "{} tensors", 3);
  log_warning(sink, "no {}", "config");
  EXPECT_EQ(seen, (std::vector<std::string>{"info: 3 tensors", "warning: no config"}));
  log_info({}, "dropped {}", 1);  // an empty sink is fine
}

}  // namespace
}  // namespace tendon
