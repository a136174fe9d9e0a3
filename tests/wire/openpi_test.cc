// The released openpi client (openpi/robots.py, run by an environment of openpi/environments.txt) against `tendon
// serve`.
#include <gmock/gmock.h>

#include <cstdlib>

#include <nlohmann/json.hpp>

#include "policy/preset/presets.h"
#include "process.h"

namespace tendon::test {
namespace {

// One server and what robots.py has to know of it.
struct Case {
  const char* name;
  const char* preset;
  bool constant;  // the network's output is noise - bias
  Args more;
};

const char* const kKey = "a key of the tests";

class Server {
 public:
  explicit Server(const Case& wanted) : preset_(find_preset(wanted.preset)) {
    StoredMap weights = read_weights(data_dir() / "tiny_pi0");
    add_embeddings(weights, 576);
    if (wanted.constant) {
      for (int i = 0; i < kModelActionDim; ++i) bias_.push_back(0.03F * static_cast<float>(i) - 0.4F);
      const auto elements = static_cast<size_t>(weights["action_out_proj.weight"].shape.elements());
      set_weight(weights, "action_out_proj.weight", std::vector<float>(elements, 0.0F));
      set_weight(weights, "action_out_proj.bias", bias_);
    }
    write_checkpoint(temp_.path(), weights, data_dir() / "tiny_pi0");
    for (int i = 0; i < preset_.robot->action_width; ++i) {
      mean_.push_back(0.1 - 0.02 * i);
      std_.push_back(0.2 + 0.01 * i);
    }
    const nlohmann::json entry = {{"mean", mean_}, {"std", std_}};
    write_text(temp_.path() / "stats.json",
               nlohmann::json{{"norm_stats", {{"state", entry}, {"actions", entry}}}}.dump());
    write_text(temp_.path() / "key", kKey);
    Args args = {"serve",
                 "--checkpoint",
                 temp_.path(),
                 "--preset",
                 wanted.preset,
                 "--tokenizer",
                 data_dir() / "policy" / "tiny_tokenizer.model",
                 "--norm-stats",
                 temp_.path() / "stats.json",
                 "--host",
                 "127.0.0.1",
                 "--port",
                 "0",
                 "--threads",
                 "1",
                 "--steps",
                 "2"};
    args.insert(args.end(), wanted.more.begin(), wanted.more.end());
    if (std::string(wanted.name) == "keyed") args.insert(args.end(), {"--api-key-file", temp_.path() / "key"});
    process_ = std::make_unique<Process>(args);
  }

  nlohmann::json facts() const {
    return {{"port", process_->port()},
            {"preset", preset_.name},
            {"horizon", preset_.horizon},
            {"mean", mean_},
            {"std", std_},
            {"bias", bias_},
            {"image_size", 28},
            {"api_key", kKey}};
  }
  void stop() {
    EXPECT_EQ(process_->stop(SIGTERM), 0) << process_->err();
    EXPECT_THAT(process_->err(), testing::HasSubstr("event=stopped"));
  }

 private:
  TempDir temp_;
  const Preset& preset_;
  std::vector<float> bias_;
  std::vector<double> mean_, std_;
  std::unique_ptr<Process> process_;
};

// Field cases 8, 14, 15, 17, 23 and 24, pitfalls 1 to 3, 6 and 7, as a robot's program meets them.
TEST(OpenpiClient, DrivesRobots) {
  const char* const python = std::getenv("TENDON_OPENPI_PYTHON");
  ASSERT_NE(python, nullptr) << "run by scripts/openpi_clients.sh NAME";
  const TempDir temp;
  nlohmann::json facts;
  std::vector<std::unique_ptr<Server>> servers;
  for (const Case& wanted :
       {Case{"droid", "pi0_droid_jointpos_polaris", true, {}}, Case{"keyed", "pi0_droid_jointpos_polaris", true, {}},
        Case{"aloha", "pi0_aloha", true, {"--default-prompt", "fold the towel"}},
        Case{"whole", "pi0_droid", false, {}}}) {
    servers.push_back(std::make_unique<Server>(wanted));
    facts[wanted.name] = servers.back()->facts();
  }
  write_text(temp.path() / "cases.json", facts.dump());
  const std::string command = "NO_PROXY=127.0.0.1 OPENBLAS_NUM_THREADS=1 '" + std::string(python) +
                              "' -B " TENDON_SOURCE_DIR "/tests/wire/openpi/robots.py " +
                              (temp.path() / "cases.json").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
  for (const auto& server : servers) server->stop();
}

}  // namespace
}  // namespace tendon::test
