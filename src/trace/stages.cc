#include "trace/stages.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <fmt/format.h>

namespace tendon::trace {
namespace {

// A piece that occurs once a layer.
struct Marker {
  size_t piece;
  uint64_t signature;  // equal for the layers of one stage
};

// Consecutive markers of one signature.
struct Run {
  size_t first, count;  // markers
  uint64_t signature;
};

// The markers of one call: [vision, prefix), [prefix, denoise), [denoise, end).
struct Call {
  size_t vision, prefix, denoise, end;
};

struct Candidate {
  const char* what;
  std::vector<Marker> markers;
};

std::vector<Run> runs_of(const std::vector<Marker>& markers) {
  std::vector<Run> runs;
  for (size_t i = 0; i < markers.size(); ++i) {
    if (runs.empty() || runs.back().signature != markers[i].signature) runs.push_back({i, 0, markers[i].signature});
    ++runs.back().count;
  }
  return runs;
}

const Event& event_of(const Trace& trace, const Piece& piece) { return trace.events[piece.event]; }

uint32_t shape_of(const Trace& trace, const Piece& piece) {
  return piece.op < 0 ? 0 : trace.events[static_cast<size_t>(piece.op)].shape;
}

// The second product of the MLPs of the published sizes.
uint64_t known_mlp(const Product& p) {
  constexpr std::array<std::array<int64_t, 2>, 3> kSizes = {{{1152, 4304}, {2048, 16384}, {1024, 4096}}};
  for (size_t i = 0; i < kSizes.size(); ++i) {
    if (p.n == kSizes[i][0] && p.k == kSizes[i][1]) return i + 1;
  }
  return 0;
}

std::vector<Candidate> candidates(const Trace& trace, const Work& work) {
  std::vector<Candidate> found = {
      {"the MLP's second product, by its shape", {}}, {"the attention", {}}, {"the softmax of the attention", {}}};
  std::map<std::array<uint32_t, 3>, uint64_t> signatures;
  std::map<uint32_t, std::array<bool, 2>> names;  // is attention, is softmax
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> products;
  int64_t last_product_op = -1;
  for (size_t i = 0; i < work.pieces.size(); ++i) {
    const Piece& piece = work.pieces[i];
    const Event& event = event_of(trace, piece);
    if (piece.op_class == OpClass::kGemm && piece.op >= 0 && piece.op != last_product_op) {
      const Event& op = trace.events[static_cast<size_t>(piece.op)];
      const auto [place, is_new] = products.try_emplace({op.name, op.shape}, 0);
      if (is_new) place->second = known_mlp(product_of(trace.name(op), trace.strings[op.shape]));
      if (place->second != 0) {
        found[0].markers.push_back({i, place->second});
        last_product_op = piece.op;
      }
    }
    if (piece.op_class != OpClass::kAttention) continue;
    const auto [place, is_new] = names.try_emplace(event.name);
    if (is_new) place->second = {is_main_attention(trace.name(event)), is_softmax(trace.name(event))};
    const std::array<uint32_t, 3> key = {event.name, event.grid, shape_of(trace, piece)};
    const uint64_t signature = signatures.try_emplace(key, signatures.size()).first->second;
    // Operators nest: aten::scaled_dot_product_attention takes no time of its own beside what it calls.
    if (place->second[0] && !trace.name(event).ends_with("scaled_dot_product_attention")) {
      found[1].markers.push_back({i, signature});
    }
    if (place->second[1]) found[2].markers.push_back({i, signature});
  }
  return found;
}

// All whole calls among the runs, in order.
std::vector<Call> find_calls(const std::vector<Run>& runs, const LayerCounts& layers) {
  const auto vision = static_cast<size_t>(layers.vision);
  const auto prefix = static_cast<size_t>(layers.prefix);
  std::vector<Call> calls;
  for (size_t i = 0; i + 1 < runs.size(); ++i) {
    const Run& first = runs[i];
    const Run& second = runs[i + 1];
    if (first.count % vision != 0) continue;
    Call call{first.first, second.first, 0, 0};
    size_t next = i + 2;
    if (second.count == prefix || second.count + 1 == prefix) {
      call.denoise = second.first + second.count;
    } else if (second.count > prefix) {  // one kernel for prefix and expert
      call.denoise = second.first + prefix;
    } else {
      continue;
    }
    while (next < runs.size() && runs[next].signature != first.signature) ++next;
    call.end = next < runs.size() ? runs[next].first : runs.back().first + runs.back().count;
    const size_t expert = call.end - call.denoise;
    if (expert == 0 || expert % prefix != 0) continue;
    calls.push_back(call);
    i = next - 1;
  }
  return calls;
}

class Splitter {
 public:
  Splitter(const Trace& trace, const Work& work, const std::vector<Marker>& markers, Stages& stages)
      : trace_(trace), work_(work), markers_(markers), stages_(stages) {}

  // `from`: the first piece that may belong to the call. Returns the first piece behind it.
  size_t split(const Call& call, const LayerCounts& layers, size_t from) {
    const auto prefix = static_cast<size_t>(layers.prefix);
    const size_t period = at(call.vision + 1) - at(call.vision);
    const size_t layer_start = at(call.vision) - agreeing_before(call.vision, call.vision + 1);
    // In front of the first layer stand the patch embedding and, in the first call of a trace, anything.
    const size_t vision = layer_start <= from + 2 * period ? from : layer_start;
    const size_t prefix_start = at(call.prefix) - agreeing_before(call.prefix, call.prefix + 1);
    const size_t denoise = at(call.denoise - 1) + agreeing_after(call.denoise - 1, call.denoise - 2) + 1;
    const size_t steps = (call.end - call.denoise) / prefix;
    const size_t before_last = steps > 1 ? call.end - 1 - prefix : call.end - 2;
    const size_t end = at(call.end - 1) + agreeing_after(call.end - 1, before_last) + 1;
    fill(vision, prefix_start, Stage::kVision);
    fill(prefix_start, denoise, Stage::kPrefix);
    fill(denoise, end, Stage::kDenoise);
    for (size_t step = 0; step < steps; ++step) {
      const auto start = [&](size_t s) {
        if (s == 0) return denoise;
        if (s == steps) return end;
        const size_t marker = call.denoise + s * prefix;
        return at(marker) - agreeing_before(marker, marker + 1);
      };
      for (size_t i = start(step); i < start(step + 1); ++i) stages_.step[i] = static_cast<int32_t>(step);
    }
    return end;
  }

 private:
  size_t at(size_t marker) const { return markers_[marker].piece; }
  uint32_t name(size_t piece) const { return event_of(trace_, work_.pieces[piece]).name; }

  // Pieces just in front of a marker that have the names of those in front of another, later one.
  size_t agreeing_before(size_t marker, size_t other) const {
    const size_t room = std::min(at(marker) - (marker == 0 ? 0 : at(marker - 1) + 1), at(other) - at(other - 1) - 1);
    size_t count = 0;
    while (count < room && name(at(marker) - 1 - count) == name(at(other) - 1 - count)) ++count;
    return count;
  }
  // The same behind a marker and another, earlier one.
  size_t agreeing_after(size_t marker, size_t other) const {
    const size_t until = marker + 1 < markers_.size() ? at(marker + 1) : work_.pieces.size();
    const size_t room = std::min(until - at(marker) - 1, at(other + 1) - at(other) - 1);
    size_t count = 0;
    while (count < room && name(at(marker) + 1 + count) == name(at(other) + 1 + count)) ++count;
    return count;
  }
  void fill(size_t begin, size_t end, Stage stage) {
    for (size_t i = begin; i < end; ++i) stages_.of_piece[i] = stage;
  }

  const Trace& trace_;
  const Work& work_;
  const std::vector<Marker>& markers_;
  Stages& stages_;
};

std::string shown_runs(const Trace& trace, const Work& work, const Candidate& candidate) {
  constexpr size_t kShownRuns = 6;
  constexpr size_t kShownName = 48;
  const std::vector<Run> runs = runs_of(candidate.markers);
  std::string text;
  for (size_t i = 0; i < runs.size() && i < kShownRuns; ++i) {
    const Piece& piece = work.pieces[candidate.markers[runs[i].first].piece];
    text += fmt::format("{}{} × {}", i == 0 ? "" : ", ", runs[i].count,
                        trace.name(event_of(trace, piece)).substr(0, kShownName));
  }
  if (runs.size() > kShownRuns) text += fmt::format(", and {} more runs", runs.size() - kShownRuns);
  return text;
}

// Our own traces.
bool stages_as_written(const Trace& trace, const Work& work, Stages& stages) {
  if (trace.tool != Tool::kTendon) return false;
  int32_t steps = 0;
  size_t told = 0;
  for (size_t i = 0; i < work.pieces.size(); ++i) {
    const std::string& text = trace.strings[event_of(trace, work.pieces[i]).stage];
    told += text.empty() ? 0 : 1;
    const std::string word = text.substr(0, text.find('.'));
    stages.of_piece[i] = word == "vision"    ? Stage::kVision
                         : word == "prefix"  ? Stage::kPrefix
                         : word == "denoise" ? Stage::kDenoise
                                             : Stage::kOther;
    const std::string rest = word.size() < text.size() ? text.substr(word.size() + 1) : "";
    if (rest.empty() || rest.find_first_not_of("0123456789") != std::string::npos || rest.size() > 6) continue;
    stages.step[i] = std::stoi(rest);
    steps = std::max(steps, stages.step[i] + 1);
  }
  if (told == 0) return false;
  stages.calls = 1;
  stages.steps = steps;
  stages.evidence.emplace_back("what the trace says of every operation");
  return true;
}

}  // namespace

std::string_view stage_name(Stage stage) {
  constexpr std::array<std::string_view, kStages> kNames = {"vision", "prefix", "denoise", "other", "unknown"};
  return kNames[static_cast<size_t>(stage)];
}

Stages find_stages(const Trace& trace, const Work& work, const LayerCounts& layers) {
  Stages stages;
  stages.of_piece.assign(work.pieces.size(), Stage::kUnknown);
  stages.step.assign(work.pieces.size(), -1);
  if (stages_as_written(trace, work, stages)) return stages;

  const std::string wanted = fmt::format("a multiple of {}, then {} or {}, then a multiple of {}", layers.vision,
                                         layers.prefix, layers.prefix - 1, layers.prefix);
  for (const Candidate& candidate : candidates(trace, work)) {
    if (candidate.markers.empty()) {
      stages.evidence.push_back(fmt::format("{}: none found", candidate.what));
      continue;
    }
    const std::string runs = shown_runs(trace, work, candidate);
    const std::vector<Call> calls = find_calls(runs_of(candidate.markers), layers);
    if (calls.empty()) {
      stages.evidence.push_back(fmt::format("{}: {}; not {}", candidate.what, runs, wanted));
      continue;
    }
    std::ranges::fill(stages.of_piece, Stage::kOther);
    Splitter splitter(trace, work, candidate.markers, stages);
    size_t from = 0;
    std::optional<size_t> steps;
    for (const Call& call : calls) {
      from = splitter.split(call, layers, from);
      const size_t now = (call.end - call.denoise) / static_cast<size_t>(layers.prefix);
      steps = !steps || *steps == now ? now : 0;
    }
    stages.calls = std::ssize(calls);
    stages.steps = static_cast<int64_t>(*steps);
    stages.evidence = {fmt::format("{}: {}", candidate.what, runs)};
    const Call& call = calls.front();
    if (candidate.markers[call.denoise - 1].signature == candidate.markers[call.denoise].signature) {
      stages.evidence.push_back(fmt::format(
          "prefix and expert use the same kernel and grid there: the first {} count as prefix", layers.prefix));
    }
    return stages;
  }
  return stages;
}

}  // namespace tendon::trace
