// tendon synth: writes a seeded checkpoint in openpi's layout.
#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "session.h"

namespace tendon::cli {
namespace {

struct SynthOptions {
  std::string model = "pi0", size = "full", out, dtype = "bf16";
  int64_t action_dim = 32;
  int64_t image_size = 0;
  bool json = false;
};

int run_synth(const SynthOptions& options) {
  const Variant variant = options.model == "pi05" ? Variant::kPi05 : Variant::kPi0;
  ModelConfig config = options.size == "tiny" ? tiny_config(variant) : full_config(variant);
  config.action_dim = options.action_dim;
  if (options.image_size > 0) {
    if (options.image_size % config.vision.patch != 0) {
      throw_bad_use("--image-size {} is no multiple of {}, the side of a patch.", options.image_size,
                    config.vision.patch);
    }
    config.vision.image_size = options.image_size;
  }
  const double start = now_s();
  write_synthetic_checkpoint(config, options.out, options.dtype == "f32" ? DType::kF32 : DType::kBf16,
                             stderr_progress("writing"));
  const double seconds = now_s() - start;
  const size_t tensors = stored_layout(config).size();
  if (options.json) {
    write_json({{"directory", options.out},
                {"model", options.model},
                {"size", options.size},
                {"dtype", options.dtype},
                {"tensors", tensors},
                {"seconds", seconds}},
               {});
  } else {
    fmt::print("{}: {} {} checkpoint, {} tensors in {}, written in {:.1f} s\n", options.out, options.size,
               options.model, tensors, options.dtype, seconds);
  }
  return kExitOk;
}

}  // namespace

Command add_synth(CLI::App& app) {
  auto options = std::make_shared<SynthOptions>();
  app.add_option("--model", options->model, "pi0 | pi05")->check(CLI::IsMember({"pi0", "pi05"}))->capture_default_str();
  app.add_option("--size", options->size, "full | tiny")->check(CLI::IsMember({"full", "tiny"}))->capture_default_str();
  app.add_option("--dtype", options->dtype, "bf16 | f32, of the stored weights")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--action-dim", options->action_dim, "padded action width")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--image-size", options->image_size,
                 "side of the pictures, pixels (default: 224; tiny: 28, of pi05 56)")
      ->check(CLI::Range(14, 1120));
  app.add_option("--out", options->out, "directory to write")->required();
  app.add_flag("--json", options->json, "machine-readable output");
  return [options] { return run_synth(*options); };
}

}  // namespace tendon::cli
