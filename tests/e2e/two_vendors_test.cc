// Two vendors' launchers in one program, as TENDON_CUDA and TENDON_HIP together have them: the simulated card, whose
// functions have the names of CUDA's, and the HIP backend on the fake libamdhip64.
#include "backend/hip/hip_backend.h"
#include "backend/sim/sim_backend.h"
#include "tiny.h"

namespace tendon::test {
namespace {

std::vector<float> actions(Backend& backend) {
  const LoadedModel model = load_tiny(data_dir() / "tiny_pi0");
  EngineOptions options;
  options.precision = DType::kF32;
  options.steps = 1;
  Engine engine(backend, model.config, model.weights, options);
  return infer(engine, Request(model.config, 1));
}

TEST(TwoVendors, WorkSideBySide) {
  const std::vector<float> exact = actions(*make_backend("cpu"));
  const auto sim = sim::make_sim_backend({}, {});
  const auto hip = make_hip_backend({});
  for (Backend* const backend : {sim.get(), hip.get()}) {
    EXPECT_LE(max_abs_difference(actions(*backend), exact), 3e-5) << backend->name();
  }
  EXPECT_EQ(sim->info().architecture, "sm_90");
  EXPECT_EQ(hip->info().architecture, "gfx942");
}

}  // namespace
}  // namespace tendon::test
