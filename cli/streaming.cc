#include "streaming.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "engine/frame_stream.h"
#include "version.h"

namespace tendon::cli {
namespace {

using Json = nlohmann::ordered_json;
using Actions = std::vector<float>;

// Raised when a field changes its name or meaning. docs/bench.md lists the fields.
constexpr int kStreamingSchema = 1;
constexpr int64_t kFrames = 3;  // that differ, in turn: more than may be under way
constexpr int64_t kWarmUps = 20;
constexpr int64_t kCallsAlone = 100;

constexpr std::pair<const char*, PreferredHalf> kPreferred[] = {{"neither", PreferredHalf::kNeither},
                                                                {"back", PreferredHalf::kBack}};

double rate(const Times& times, double seconds) { return static_cast<double>(times.count()) / seconds; }

struct Row {
  const char* loop = "";  // "as planned", "parts"
  const char* preferred = "";
  bool overlaps = false;
  Times alone;         // one frame at a time
  Times latency;       // two under way
  double seconds = 0;  // that all of `latency` took
  int64_t different = 0;
};

bool same_bytes(const Actions& a, const Actions& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class Streaming {
 public:
  Streaming(const ModelOptions& model, const WorkloadOptions& workload, const MeasureOptions& measure)
      : model_(model), workload_options_(workload), measure_(measure), session_(open_session(model)) {
    for (int64_t i = 0; i < kFrames; ++i) frames_.emplace_back(session_.model.config, workload, i);
    actions_.resize(frames_[0].samples().size() *
                    static_cast<size_t>(session_.model.config.horizon * session_.model.config.action_dim));
  }

  int run(const std::string& json) {
    measure_plain();
    const bool quiet = json == "-";
    if (!quiet) print_head();
    measure_all(quiet);
    if (!json.empty()) write_json(this->json(), json);
    const bool all_alike = std::ranges::all_of(rows_, [](const Row& row) { return row.different == 0; });
    return all_alike ? kExitOk : kExitCheckFailed;
  }

 private:
  // Whether `done` timed frames since `start` are enough.
  bool enough(int64_t done, double start) const {
    return measure_.iters > 0 ? done >= measure_.iters : done >= 3 && now_s() - start >= measure_.seconds;
  }
  int64_t at_most(int64_t calls) const {
    if (session_.backend->uses_host_memory()) return 1;
    return measure_.iters > 0 ? std::min(calls, measure_.iters) : calls;
  }
  const Workload& frame(int64_t number) const { return frames_[static_cast<size_t>(number % kFrames)]; }

  // The frames' actions by ordinary calls, and how long these take.
  void measure_plain() {
    for (int64_t i = 0; i < kFrames; ++i) call(*session_.engine, frame(i), plain_actions_.emplace_back());
    for (int64_t i = 0; i < at_most(kWarmUps); ++i) call(*session_.engine, frame(i), actions_);
    std::vector<double> ms;
    const double start = now_s();
    for (int64_t i = 0; !enough(i, start); ++i) {
      const double begin = now_s();
      call(*session_.engine, frame(i), actions_);
      ms.push_back((now_s() - begin) * 1e3);
    }
    plain_seconds_ = now_s() - start;
    plain_ = Times(std::move(ms));
  }

  // All that can differ here: the loop as its parts where a kernel runs it whole, priorities where halves overlap.
  void measure_all(bool quiet) {
    const auto is_loop = [](const Op& op) { return op_name(op) == DenoiseLoop::kName; };
    const bool has_loop = std::ranges::any_of(session_.engine->plan().ops(), is_loop);
    for (const bool parts : {false, true}) {
      if (parts && !has_loop) continue;
      for (const auto& [name, preferred] : kPreferred) {
        StreamOptions options{.preferred = preferred};
        if (parts) options.expand.emplace_back(DenoiseLoop::kName);
        rows_.push_back(measure_row(options));
        rows_.back().loop = parts ? "parts" : "as planned";
        rows_.back().preferred = name;
        if (!quiet) print(rows_.back());
        if (!rows_.back().overlaps) break;
      }
    }
  }

  Row measure_row(const StreamOptions& options) {
    FrameStream stream(*session_.engine, frame(0).samples(), options);
    Row row;
    row.overlaps = stream.overlaps();
    std::vector<Actions> expected = plain_actions_;
    int64_t next = 0;
    const auto submit = [&] { require(stream.submit(frame(next++).samples())); };
    const auto finish = [&] {
      const int64_t oldest = next - static_cast<int64_t>(stream.frames_under_way());
      require(stream.wait(actions_));
      if (!same_bytes(actions_, expected[static_cast<size_t>(oldest % kFrames)])) ++row.different;
    };

    std::vector<double> alone;
    // Other kernels may round differently: their frames are compared with themselves.
    for (; next < kFrames && !options.expand.empty(); expected[static_cast<size_t>(next - 1)] = actions_) {
      submit();
      require(stream.wait(actions_));
    }
    for (int64_t i = -at_most(kWarmUps); i < at_most(kCallsAlone); ++i) {
      const double begin = now_s();
      submit();
      finish();
      if (i >= 0) alone.push_back((now_s() - begin) * 1e3);
    }
    row.alone = Times(std::move(alone));

    // Frames come as fast as they are taken, so that two are always under way.
    std::vector<double> latency;
    double start = 0;
    double submitted = now_s();  // the oldest frame
    submit();
    for (int64_t done = -at_most(kWarmUps); !enough(done, start); ++done) {
      const double begin = now_s();
      if (done <= 0) start = begin;
      submit();
      finish();
      if (done >= 0) latency.push_back((now_s() - submitted) * 1e3);
      submitted = begin;
    }
    row.seconds = now_s() - start;
    finish();
    row.latency = Times(std::move(latency));
    return row;
  }

  void print_head() const {
    const DeviceInfo device = session_.backend->info();
    fmt::print(
        "{}: {} ({}), commit {}\n{} {}, batch {}, {} views, {} prompt tokens (prefix {}), horizon {}, {} steps\n",
        session_.backend->name(), device.name, device.architecture, TENDON_COMMIT, model_.checkpoint,
        model_.precision_text(), workload_options_.batch, workload_options_.views, frames_[0].prompt_tokens(),
        session_.engine->bucket().prefix_rows, session_.model.config.horizon, session_.engine->schedule().times.size());
    fmt::print("\n{:<12} {:<10} {:>8} {:>10} {:>9} {:>10} {:>9} {:>8}\n", "loop", "preferred", "Hz", "latency p50",
               "p99", "alone p50", "p99", "frames");
    fmt::print("{:<12} {:<10} {:>8.2f} {:>8.2f} ms {:>9.2f} {:>10} {:>9} {:>8}\n", "plain call", "",
               rate(plain_, plain_seconds_), plain_.percentile(50), plain_.percentile(99), "", "", plain_.count());
    std::fflush(stdout);
  }

  void print(const Row& row) const {
    fmt::print("{:<12} {:<10} {:>8.2f} {:>8.2f} ms {:>9.2f} {:>10.2f} {:>9.2f} {:>8}{}{}\n", row.loop, row.preferred,
               rate(row.latency, row.seconds), row.latency.percentile(50), row.latency.percentile(99),
               row.alone.percentile(50), row.alone.percentile(99), row.latency.count(),
               row.overlaps ? "" : "   one after the other: nothing overlaps here",
               row.different > 0 ? fmt::format("   OTHER BYTES in {} frames", row.different) : "");
    std::fflush(stdout);
  }

  Json json() const {
    Json json = {
        {"schema", kStreamingSchema},
        {"kind", "streaming"},
        {"version", TENDON_VERSION},
        {"commit", TENDON_COMMIT},
        {"device", describe_device(*session_.backend)},
        {"checkpoint", model_.checkpoint},
        {"precision", model_.precision_text()},
        {"views", workload_options_.views},
        {"prompt_tokens", frames_[0].prompt_tokens()},
        {"prefix_rows", session_.engine->bucket().prefix_rows},
        {"horizon", session_.model.config.horizon},
        {"steps", session_.engine->schedule().times.size()},
        {"batch", workload_options_.batch},
        {"depth", FrameStream::kDepth},
        {"plain", {{"calls", plain_.count()}, {"hz", rate(plain_, plain_seconds_)}, {"wall_ms", percentiles(plain_)}}},
        {"rows", Json::array()}};
    for (const Row& row : rows_) {
      json["rows"].push_back({{"loop", row.loop},
                              {"preferred", row.preferred},
                              {"overlaps", row.overlaps},
                              {"frames", row.latency.count()},
                              {"hz", rate(row.latency, row.seconds)},
                              {"latency_ms", percentiles(row.latency)},
                              {"alone_ms", percentiles(row.alone)},
                              {"different", row.different}});
    }
    return json;
  }

  const ModelOptions& model_;
  const WorkloadOptions& workload_options_;
  const MeasureOptions& measure_;
  Session session_;
  std::vector<Workload> frames_;
  std::vector<Actions> plain_actions_;
  Actions actions_;
  Times plain_;
  double plain_seconds_ = 0;
  std::vector<Row> rows_;
};

}  // namespace

int streaming(const ModelOptions& model, const WorkloadOptions& workload, const MeasureOptions& measure,
              const std::string& json) {
  return Streaming(model, workload, measure).run(json);
}

}  // namespace tendon::cli
