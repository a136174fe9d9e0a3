#include "estimate.h"

#include <fmt/format.h>

#include "base/check.h"
#include "cards.h"
#include "floor.h"
#include "shape_backend.h"

namespace tendon::cli {
namespace {

constexpr int kEstimateSchema = 1;

}  // namespace

void estimate(const std::string& name, const ModelOptions& model, const WorkloadOptions& options,
              const std::string& json) {
  const CardData& card = find_card(name);
  if (model.precision != "bf16") {
    throw_bad_use("--estimate knows rates of bf16 products only; --precision {} was given", model.precision);
  }
  const ModelConfig config = load_config(model);
  const std::unique_ptr<Backend> cpu = make_backend("cpu", {});
  ShapeBackend shapes(*cpu);
  ZeroMemory memory;
  const Weights weights = zero_weights(config, memory);
  Engine engine(shapes, config, weights, model.engine_options(config));
  const Workload workload(config, options);
  const Plan& plan = engine.prepare(workload.samples());
  const DeviceLimits hoped = attainable(card);
  const Floor stated = floor_of(plan, card.stated, DType::kBf16);
  const Floor attained = floor_of(plan, hoped, DType::kBf16);
  const bool measured = card.measured.bf16_flops_per_s > 0;

  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  const bool print = json != "-";
  if (print) {
    fmt::print("{} ({}): {:.0f} TFLOP/s bf16, {:.0f} GB/s, {:.0f} GB by the vendor's sheet{}{}\n", card.name,
               card.device, card.stated.bf16_flops_per_s * 1e-12, card.stated.read_bytes_per_s * 1e-9, card.memory_gb,
               card.note.empty() ? "" : "; ", card.note);
    fmt::print("source: {} ({})\n", card.source, card.checked);
    fmt::print("attainable: {:.0f} TFLOP/s, {:.0f} GB/s, {}\n", hoped.bf16_flops_per_s * 1e-12,
               hoped.read_bytes_per_s * 1e-9, measured ? "measured" : "by the shares that an H100 attains of its own");
    fmt::print("\n{:<10} {:>8} {:>12} {:>14} {:>12} {:>14}\n", "stage", "TFLOP", "weights GB", "bound by", "sheet ms",
               "attainable ms");
  }
  for (size_t i = 0; i < stated.stages.size(); ++i) {
    const StageFloor& one = stated.stages[i];
    const bool arithmetic = one.cost.flops / hoped.bf16_flops_per_s > one.cost.weight_bytes / hoped.read_bytes_per_s;
    const char* const bound = arithmetic ? "arithmetic" : "weights";
    if (print) {
      fmt::print("{:<10} {:>8.3f} {:>12.3f} {:>14} {:>12.3f} {:>14.3f}\n", one.name, one.cost.flops * 1e-12,
                 one.cost.weight_bytes * 1e-9, bound, one.ms, attained.stages[i].ms);
    }
    stages.push_back({{"stage", one.name},
                      {"tflop", one.cost.flops * 1e-12},
                      {"weight_gb", one.cost.weight_bytes * 1e-9},
                      {"bound_by", bound},
                      {"sheet_ms", one.ms},
                      {"attainable_ms", attained.stages[i].ms}});
  }
  if (print) {
    fmt::print("{:<10} {:>8} {:>12} {:>14} {:>12.3f} {:>14.3f}\n", "call", "", "", "", *stated.ms, *attained.ms);
    fmt::print("\nLimits, not times: no launch, no activation, no attention kernel below its peak is in them.\n");
  }
  if (json.empty()) return;
  write_json(
      {{"schema", kEstimateSchema},
       {"card", card.name},
       {"device", card.device},
       {"note", card.note},
       {"source", card.source},
       {"checked", card.checked},
       {"measured_limits", measured},
       {"stated",
        {{"bf16_tflop_per_s", card.stated.bf16_flops_per_s * 1e-12},
         {"read_gb_per_s", card.stated.read_bytes_per_s * 1e-9}}},
       {"attainable",
        {{"bf16_tflop_per_s", hoped.bf16_flops_per_s * 1e-12}, {"read_gb_per_s", hoped.read_bytes_per_s * 1e-9}}},
       {"checkpoint", model.checkpoint},
       {"batch", options.batch},
       {"views", options.views},
       {"prefix_rows", engine.bucket().prefix_rows},
       {"horizon", config.horizon},
       {"steps", engine.schedule().times.size()},
       {"stages", stages},
       {"sheet_ms", *stated.ms},
       {"attainable_ms", *attained.ms}},
      json);
}

}  // namespace tendon::cli
