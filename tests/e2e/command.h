// Runs the built command and looks at what it answers.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <optional>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tiny.h"

extern char** environ;

namespace tendon::test {

using Args = std::vector<std::string>;

struct Result {
  int code = -1;  // 128 + signal when it was killed
  std::string out, err;
};

// Starts the built command in the source directory, with its two outputs in files; 0 when that fails.
inline pid_t start_tendon(Args args, const std::string& out, const std::string& err) {
  args.insert(args.begin(), TENDON_COMMAND);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int failed = posix_spawn(&child, TENDON_COMMAND, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed == 0 ? child : 0;
}

// Runs it to its end.
inline Result tendon(const Args& args) {
  const TempDir temp;
  const std::string out = temp.path() / "out";
  const std::string err = temp.path() / "err";
  const pid_t child = start_tendon(args, out, err);
  Result result;
  int status = 0;
  if (child == 0 || waitpid(child, &status, 0) != child) {
    ADD_FAILURE() << "cannot run " << TENDON_COMMAND;
    return result;
  }
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_text(out);
  result.err = read_text(err);
  return result;
}

// An environment variable for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

inline std::string shown(const Args& args) {
  std::string text = "tendon";
  for (const std::string& arg : args) text += " " + arg;
  return text;
}

// Runs, expects this exit code and every part of `message` on standard error, and nothing on standard output.
inline void expect_refused(const Args& args, int code, const std::vector<std::string>& message) {
  SCOPED_TRACE(shown(args));
  const Result result = tendon(args);
  EXPECT_EQ(result.code, code) << result.err;
  for (const std::string& part : message) EXPECT_THAT(result.err, testing::HasSubstr(part));
  EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("Please report this as a bug")));
  EXPECT_EQ(result.out, "");
}

inline nlohmann::json run_json(const Args& args) {
  SCOPED_TRACE(shown(args));
  const Result result = tendon(args);
  EXPECT_EQ(result.code, 0) << result.err;
  const auto parsed = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out;
  return parsed;
}

}  // namespace tendon::test
