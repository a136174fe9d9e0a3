#include "backend/sim/sim_library.h"

#include <cmath>

#include "backend/sim/sim_stream.h"

namespace tendon::sim {
namespace {

float at(const Tensor& t, int64_t row, int64_t col) {
  const int64_t i = row * t.row_stride + col;
  return t.dtype == DType::kBf16 ? to_float(t.as<Bf16>()[i]) : t.as<float>()[i];
}

void multiply(const gpu::GemmArgs& a) {
  for (int64_t m = 0; m < a.out.rows(); ++m) {
    for (int64_t n = 0; n < a.out.cols(); ++n) {
      float sum = 0;
      for (int64_t k = 0; k < a.x.cols(); ++k) sum += at(a.x, m, k) * at(a.w, n, k);
      if (a.bias.defined()) sum += at(a.bias, 0, n);
      if (a.gelu) sum = sum / (1.0F + std::exp(-2.0F * 0.7978845608028654F * (sum + 0.044715F * sum * sum * sum)));
      if (a.residual.defined()) sum += at(a.residual, m, n);
      const int64_t i = m * a.out.row_stride + n;
      if (a.out.dtype == DType::kBf16) {
        a.out.as<Bf16>()[i] = to_bf16(sum);
      } else {
        a.out.as<float>()[i] = sum;
      }
    }
  }
}

class SimGemm final : public gpu::Gemm {
 public:
  explicit SimGemm(const gpu::GemmArgs& args) : args_(args) {}
  void launch(gpu::Stream stream) const override {
    submit(stream, [args = args_] { multiply(args); });
  }

 private:
  gpu::GemmArgs args_;
};

class SimLibrary final : public gpu::LibraryGemm {
 public:
  std::string version() const override { return "simulated library"; }
  std::string_view name() const override { return "sim_library"; }
  std::unique_ptr<gpu::Gemm> prepare(const gpu::GemmArgs& args, std::string_view algorithm) const override {
    if (!algorithm.empty() && algorithm != kLoops) return nullptr;
    return std::make_unique<SimGemm>(args);
  }
  std::vector<std::string> algorithms(const gpu::GemmArgs&) const override { return {std::string(kLoops)}; }

 private:
  static constexpr std::string_view kLoops = "loops";
};

}  // namespace

std::unique_ptr<gpu::LibraryGemm> make_sim_library() { return std::make_unique<SimLibrary>(); }

}  // namespace tendon::sim
