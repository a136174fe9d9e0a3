// The built command as a process of its own: start, signals, what it printed.
#pragma once

#include <csignal>
#include <thread>

#include "../e2e/command.h"

namespace tendon::test {

class Process {
 public:
  explicit Process(const Args& args) {
    out_ = temp_.path() / "out";
    err_ = temp_.path() / "err";
    pid_ = start_tendon(args, out_, err_);
    EXPECT_GT(pid_, 0);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
  }
  // Exit code, or 128 + signal.
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int stop(int signal) {
    kill(pid_, signal);
    return wait();
  }
  std::string out() const { return read_text(out_); }
  std::string err() const { return read_text(err_); }
  // The port in the line that says it listens; 0 when it ended instead.
  int port() const {
    for (int i = 0; i < 6000; ++i) {
      const std::string text = err();
      const size_t at = text.find("event=listening");
      if (at != std::string::npos && text.find('\n', at) != std::string::npos)
        return std::stoi(text.substr(text.find("port=", at) + 5));
      siginfo_t ended{};
      if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid != 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << err();
    return 0;
  }

 private:
  TempDir temp_;
  std::string out_, err_;
  pid_t pid_ = 0;
};

}  // namespace tendon::test
