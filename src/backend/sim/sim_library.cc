#include "backend/sim/sim_library.h"

#include "backend/sim/library_product.h"
#include "backend/sim/sim_stream.h"

namespace tendon::sim {
namespace {

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
  bool multiplies(DType) const override { return true; }
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
