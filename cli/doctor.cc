// tendon doctor: what of this machine costs latency. Reads only.
#include <cstdlib>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "doctor/checks.h"
#include "session.h"

extern char** environ;

namespace tendon::cli {
namespace {

using doctor::Finding;
using doctor::Severity;

constexpr int kDoctorSchema = 1;

struct DoctorOptions {
  std::string root = "/", cards;
  bool json = false;
};

const char* word(Severity severity) {
  switch (severity) {
    case Severity::kWrong:
      return "wrong";
    case Severity::kAdvice:
      return "advice";
    case Severity::kOk:
      break;
  }
  return "ok";
}

doctor::Machine look_at(const DoctorOptions& options) {
  doctor::Machine machine = doctor::read_machine(options.root);
  if (!options.cards.empty()) {
    doctor::read_nvidia_cards(machine, options.cards);
  } else if (options.root == "/") {
    doctor::read_nvidia_cards(machine);
    doctor::read_amd_cards(machine);
  }
  if (options.root != "/") return machine;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string text = *one;
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      machine.environment[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return machine;
}

void print(const std::vector<Finding>& findings) {
  for (const Finding& one : findings) {
    fmt::print("{:<7} {}: {}\n", word(one.severity), one.subject, one.found);
    if (one.severity == Severity::kOk) continue;
    if (!one.reason.empty()) fmt::print("        why: {}\n", one.reason);
    if (!one.remedy.empty()) fmt::print("        do:  {}\n", one.remedy);
  }
}

int run_doctor(const DoctorOptions& options) {
  const std::vector<Finding> findings = doctor::check(look_at(options));
  int64_t wrong = 0;
  int64_t advice = 0;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    wrong += one.severity == Severity::kWrong;
    advice += one.severity == Severity::kAdvice;
    list.push_back({{"severity", word(one.severity)},
                    {"subject", one.subject},
                    {"found", one.found},
                    {"reason", one.reason},
                    {"remedy", one.remedy}});
  }
  if (options.json) {
    write_json({{"schema", kDoctorSchema}, {"wrong", wrong}, {"advice", advice}, {"findings", list}}, "-");
  } else {
    print(findings);
    fmt::print("{} wrong, {} to think about. Nothing was changed.\n", wrong, advice);
  }
  return wrong > 0 ? kExitCheckFailed : kExitOk;
}

}  // namespace

Command add_doctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  app.add_flag("--json", options->json, "findings as JSON");
  app.add_option("--root", options->root, "read /sys and /proc below this directory")->group("");  // for tests
  app.add_option("--cards", options->cards, "take the cards from this file")->group("");           // for tests
  return [options] { return run_doctor(*options); };
}

}  // namespace tendon::cli
