// What is wrong with a machine, or could be better, for the latency of a call.
#pragma once

#include <string>
#include <vector>

#include "doctor/machine.h"

namespace tendon::doctor {

enum class Severity {
  kOk,      // looked at, and well
  kAdvice,  // may cost something, or cannot be told
  kWrong,   // costs latency, or keeps a card from working
};

struct Finding {
  Severity severity = Severity::kOk;
  std::string subject;  // "CPU governor"
  std::string found;    // "powersave on 16 of 16 CPUs"
  std::string reason;   // why it matters; empty when all is well
  std::string remedy;   // what to do, as a command where there is one
};

std::vector<Finding> check_host(const Machine& machine);
std::vector<Finding> check_nvidia(const Machine& machine);
std::vector<Finding> check_amd(const Machine& machine);
// Variables of the environment that slow programs down.
std::vector<Finding> check_environment(const Machine& machine);

// All of these.
std::vector<Finding> check(const Machine& machine);

}  // namespace tendon::doctor
