// Real-time chunking between the steps of a denoise loop: guidance, select_rows. Formulas and shapes: ops/basic_ops.h.
// guidance: all f32, every operation rounded on its own, as on the CPU. select_rows: bf16 or f32, moved as they are.
// Both are limited by their bytes.
#include "backend/gpu/elementwise.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

struct Guided {
  Matrix<float> x, v, target, weight;
  float time, scale;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    const float velocity = v.at(row, col);
    const float end = __fsub_rn(x.at(row, col), __fmul_rn(time, velocity));
    const float missing = __fsub_rn(target.at(row, col), end);
    return __fsub_rn(velocity, __fmul_rn(scale, __fmul_rn(weight.at(row, col), missing)));
  }
};

template <class T>
struct ChosenRow {
  Matrix<T> x, y;
  const int32_t* chosen;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    return chosen[row] != 0 ? y.at(row, col) : x.at(row, col);
  }
};

}  // namespace

// --- launchers -------------------------------------------------------------------------------------------------------

void launch_guidance(const Guidance& a, Stream stream) {
  launch_elementwise(a.out, stream,
                     Guided{Matrix<float>(a.x), Matrix<float>(a.v), Matrix<float>(a.target), Matrix<float>(a.weight),
                            a.time, a.scale});
}

void launch_select_rows(const SelectRows& a, Stream stream) {
  with_float_type(a.x.dtype, [&]<class T>(T) {
    launch_elementwise(a.out, stream, ChosenRow<T>{Matrix<T>(a.x), Matrix<T>(a.y), a.chosen.as<int32_t>()});
  });
}

}  // namespace tendon::gpu
