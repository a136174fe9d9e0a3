// guidance: out = v - scale · (weight · (target - (x - time · v))), every operation rounded in f32.
#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

bool can_guidance(const Guidance& a) { return all_float(a.x, a.v, a.target, a.weight, a.out); }

Status run_guidance(const Guidance& a, const char*) {
  parallel_for(a.out.rows(), row_grain(a.out.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const x = row_pointer<const float>(a.x, row, 0);
      const float* const v = row_pointer<const float>(a.v, row, 0);
      const float* const target = row_pointer<const float>(a.target, row, 0);
      const float* const weight = row_pointer<const float>(a.weight, row, 0);
      float* const out = row_pointer<float>(a.out, row, 0);
      for (int64_t i = 0; i < a.out.cols(); ++i)
        out[i] = v[i] - a.scale * (weight[i] * (target[i] - (x[i] - a.time * v[i])));
    }
  });
  return Status::ok();
}

}  // namespace

CpuOp cpu_guidance() { return plain_op<Guidance, can_guidance, run_guidance>(); }

}  // namespace tendon
