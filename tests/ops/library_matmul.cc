#include "library_matmul.h"

#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

namespace tendon::op_check {

std::function<void()> library_matmul(int64_t m, int64_t n, int64_t k, DType dtype, int copies) {
  const auto type = dtype == DType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::memory::desc x({m, k}, type, dnnl::memory::format_tag::ab);
  const dnnl::memory::desc w({k, n}, type, dnnl::memory::format_tag::ba);
  const dnnl::memory::desc out({m, n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, w, out), engine);

  struct State {
    dnnl::stream stream;
    dnnl::matmul product;
    dnnl::memory x, out;
    std::vector<dnnl::memory> weights;
    size_t next = 0;
  };
  auto state = std::make_unique<State>(State{
      dnnl::stream(engine), dnnl::matmul(description), dnnl::memory(x, engine), dnnl::memory(out, engine), {}, 0});
  const auto fill = [&](const dnnl::memory& memory) {
    auto* words = static_cast<uint32_t*>(memory.get_data_handle());
    const size_t count = memory.get_desc().get_size() / sizeof(uint32_t);
    for (size_t i = 0; i < count; ++i) words[i] = 0x3c003c00U + static_cast<uint32_t>(i % 97);
  };
  fill(state->x);
  for (int copy = 0; copy < copies; ++copy) {
    state->weights.emplace_back(w, engine);
    fill(state->weights.back());
  }
  return [shared = std::shared_ptr<State>(std::move(state))] {
    const dnnl::memory& weights = shared->weights[shared->next++ % shared->weights.size()];
    shared->product.execute(shared->stream,
                            {{DNNL_ARG_SRC, shared->x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, shared->out}});
    shared->stream.wait();
  };
}

}  // namespace tendon::op_check
