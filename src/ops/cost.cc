#include "ops/cost.h"

#include <algorithm>
#include <string_view>

namespace tendon {
namespace {

double product_flops(const Tensor& x, const Tensor& w) {
  return w.defined()
             ? 2.0 * static_cast<double>(x.rows()) * static_cast<double>(w.rows()) * static_cast<double>(w.cols())
             : 0.0;
}

double flops(const Linear& a) { return product_flops(a.x, a.w); }
double flops(const PatchEmbed& a) { return product_flops(a.out, a.w); }
double flops(const LayerNormQkv& a) {
  return product_flops(a.x, a.wq) + product_flops(a.x, a.wk) + product_flops(a.x, a.wv);
}
double flops(const LayerNormLinear& a) { return product_flops(a.x, a.w); }
double flops(const LinearResidual& a) { return product_flops(a.x, a.w); }
double flops(const NormQkvRope& a) {
  return product_flops(a.x, a.wq) + product_flops(a.x, a.wk) + product_flops(a.x, a.wv);
}
double flops(const NormGateUpGelu& a) { return product_flops(a.x, a.w_gate) + product_flops(a.x, a.w_up); }
double flops(const Attention& a) {
  return 4.0 * static_cast<double>(a.q.rows()) * static_cast<double>(a.q.cols()) * static_cast<double>(a.k.shape[1]);
}
double flops(const AttentionToCodes& a) { return flops(a.attention); }
// The remaining operations do a few operations per element and are limited by their bytes.
template <class Args>
double flops(const Args&) {
  return 0.0;
}

// Row look-ups touch as many rows as they return, not the whole table. What frames a call brings is not known: they
// count as large as their results.
double moved_bytes(std::string_view name, const Tensor& tensor, const Op& op) {
  if (const auto* resize = std::get_if<ResizeFrames>(&op.args); resize != nullptr && name == "pool") {
    return static_cast<double>(std::min(tensor.bytes(), resize->out.bytes()));
  }
  if (const auto* gather = std::get_if<GatherPrefix>(&op.args); gather != nullptr && name == "embedding") {
    return static_cast<double>(std::min(tensor.bytes(), gather->out.bytes()));
  }
  if (const auto* gather = std::get_if<GatherRows>(&op.args); gather != nullptr && name == "x") {
    return static_cast<double>(gather->out.bytes());
  }
  if (const auto* scatter = std::get_if<ScatterRows>(&op.args); scatter != nullptr && name == "out") {
    return static_cast<double>(scatter->x.bytes());
  }
  if (const auto* qkv = std::get_if<NormQkvRope>(&op.args); qkv != nullptr && name.ends_with("_cache")) {
    return static_cast<double>(qkv->x.rows() * tensor.cols()) * static_cast<double>(dtype_bytes(tensor.dtype));
  }
  const Tensor* positions = nullptr;  // of rotations: one row of the table each
  if (const auto* rope = std::get_if<Rope>(&op.args)) positions = &rope->positions;
  if (const auto* qkv = std::get_if<NormQkvRope>(&op.args)) positions = &qkv->positions;
  if (name == "table" && positions != nullptr) {
    return static_cast<double>(std::min(tensor.rows(), positions->elements()) * tensor.cols()) * sizeof(float);
  }
  return static_cast<double>(tensor.bytes());
}

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  flops += other.flops;
  read_bytes += other.read_bytes;
  write_bytes += other.write_bytes;
  weight_bytes += other.weight_bytes;
  return *this;
}

Cost cost(const Op& op) {
  Cost total;
  if (const auto* loop = std::get_if<DenoiseLoop>(&op.args)) {
    for (const Op& part : *loop->parts) total += cost(part);
    return total;
  }
  total.flops = std::visit([](const auto& args) { return flops(args); }, op.args);
  for_each_tensor(op, [&](const char* name, const Tensor& tensor, Access access) {
    const double bytes = moved_bytes(name, tensor, op);
    (access == Access::kRead ? total.read_bytes : total.write_bytes) += bytes;
    if (access == Access::kRead && tensor.value < 0) total.weight_bytes += bytes;
  });
  return total;
}

}  // namespace tendon
