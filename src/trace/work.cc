#include "trace/work.h"

#include <algorithm>
#include <unordered_map>

namespace tendon::trace {
namespace {

// Of every event of a kind, the time not spent in events of that kind inside it on the same lane.
std::vector<Piece> own_times(const Trace& trace, Kind kind) {
  std::vector<Piece> pieces;
  struct Open {
    size_t piece;
    int64_t end_ns;
  };
  std::unordered_map<uint32_t, std::vector<Open>> open;  // by lane
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (event.kind != kind) continue;
    std::vector<Open>& stack = open[event.lane];
    while (!stack.empty() && stack.back().end_ns <= event.start_ns) stack.pop_back();
    const double us = static_cast<double>(event.duration_ns) * 1e-3;
    if (!stack.empty()) pieces[stack.back().piece].us -= us;
    stack.push_back({pieces.size(), event.end_ns()});
    pieces.push_back({.event = i, .op = static_cast<int64_t>(i), .us = us});
  }
  for (Piece& piece : pieces) piece.us = std::max(0.0, piece.us);  // children that stand out of their parents
  return pieces;
}

// Kernels find their operator by the operator's number, their own or that of the launch.
void join_operators(const Trace& trace, std::vector<Piece>& kernels) {
  std::unordered_map<int64_t, int64_t> operators, launches;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (event.kind == Kind::kOperator && event.external >= 0) operators.emplace(event.external, i);
    if (event.kind == Kind::kApi && event.correlation >= 0) launches.emplace(event.correlation, i);
  }
  const auto find = [](const auto& map, int64_t key) {
    const auto found = map.find(key);
    return found == map.end() ? int64_t{-1} : found->second;
  };
  for (Piece& piece : kernels) {
    const Event& event = trace.events[piece.event];
    if (event.external >= 0) piece.op = find(operators, event.external);
    if (piece.op >= 0 || event.correlation < 0) continue;
    const int64_t launch = find(launches, event.correlation);
    if (launch < 0) continue;
    const int64_t external = trace.events[static_cast<size_t>(launch)].external;
    if (external >= 0) piece.op = find(operators, external);
  }
}

bool contains_kind(const Trace& trace, Kind kind) {
  return std::ranges::any_of(trace.events, [&](const Event& event) { return event.kind == kind; });
}

OpClass class_of(const Trace& trace, const Piece& piece) {
  const Event& event = trace.events[piece.event];
  const OpClass by_kernel = classify(trace.name(event));
  if (event.op != 0 && (event.kind == Kind::kOperator || by_kernel == OpClass::kOther)) {
    return classify_operation(trace.strings[event.op]);
  }
  if (by_kernel != OpClass::kOther || piece.op < 0) return by_kernel;
  return classify(trace.name(trace.events[static_cast<size_t>(piece.op)]));  // "elementwise_kernel" of aten::gelu
}

}  // namespace

Work find_work(const Trace& trace) {
  Work work;
  if (contains_kind(trace, Kind::kKernel)) {
    work.kind = WorkKind::kKernels;
    for (size_t i = 0; i < trace.events.size(); ++i) {
      const Event& event = trace.events[i];
      if (event.kind == Kind::kKernel) {
        work.pieces.push_back({.event = i, .us = static_cast<double>(event.duration_ns) * 1e-3});
      }
    }
    join_operators(trace, work.pieces);
  } else if (contains_kind(trace, Kind::kOperator)) {
    work.kind = trace.tool == Tool::kTendon ? WorkKind::kOperations : WorkKind::kOperators;
    work.pieces = own_times(trace, Kind::kOperator);
  }
  std::unordered_map<uint64_t, OpClass> known;  // by name and operator's name
  for (Piece& piece : work.pieces) {
    const Event& event = trace.events[piece.event];
    const uint32_t op = event.op != 0 ? event.op : piece.op >= 0 ? trace.events[static_cast<size_t>(piece.op)].name : 0;
    const uint64_t key = (uint64_t{event.name} << 32) | op;
    const auto found = known.find(key);
    piece.op_class = found != known.end() ? found->second : known.emplace(key, class_of(trace, piece)).first->second;
  }
  return work;
}

uint32_t label(const Trace& trace, const Piece& piece) {
  const Event& event = trace.events[piece.event];
  return event.kind == Kind::kOperator && event.op != 0 ? event.op : event.name;
}

std::vector<std::vector<int64_t>> parse_shapes(const std::string& text) {
  std::vector<std::vector<int64_t>> shapes;
  int depth = 0;
  int64_t number = -1;
  const auto finish_number = [&] {
    if (number >= 0 && depth == 2) shapes.back().push_back(number);
    number = -1;
  };
  for (const char c : text) {
    if (c == '[') {
      if (++depth == 2) shapes.emplace_back();
    } else if (c == ']') {
      finish_number();
      --depth;
    } else if (c == ',') {
      finish_number();
    } else if (c >= '0' && c <= '9') {
      constexpr int64_t kLargest = int64_t{1} << 40;
      number = std::min(kLargest, (number < 0 ? 0 : number * 10) + (c - '0'));
    } else if (c != ' ') {
      return {};
    }
  }
  return shapes;
}

Product product_of(const std::string& op, const std::string& text) {
  size_t first = 0;  // of the two factors
  bool transposed = false;
  if (op == "aten::addmm" || op == "aten::baddbmm" || op == "aten::_addmm_activation") {
    first = 1;
  } else if (op == "aten::linear" || op == "aten::mkldnn_linear") {
    transposed = true;
  } else if (op != "aten::mm" && op != "aten::bmm" && op != "aten::matmul" && op != "aten::_scaled_mm") {
    return {};
  }
  const std::vector<std::vector<int64_t>> shapes = parse_shapes(text);
  if (shapes.size() < first + 2) return {};
  const std::vector<int64_t>& x = shapes[first];
  const std::vector<int64_t>& w = shapes[first + 1];
  if (x.size() < 2 || w.size() < 2 || w.size() > 3) return {};
  Product product;
  product.k = x.back();
  product.m = 1;
  const bool batched = w.size() == 3;
  for (size_t i = batched ? 1 : 0; i + 1 < x.size(); ++i) product.m *= x[i];
  if (batched) product.batch = w[0];
  product.n = transposed ? w[w.size() - 2] : w.back();
  const int64_t inner = transposed ? w.back() : w[w.size() - 2];
  return inner == product.k ? product : Product{};
}

}  // namespace tendon::trace
