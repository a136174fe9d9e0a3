#include "compare.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/convert.h"

namespace tendon::cli {
namespace {

// A published network is deep, a tiny one is narrow: their bf16 noise differs.
bool is_full_size(const ModelConfig& config) { return config.prefix.width >= 1024; }

std::string limit(double value, double unlimited) { return value == unlimited ? "-" : fmt::format("{:.1e}", value); }

// How much further from f32 than bf16 a precision with 8-bit operands may be: 1.4 times what was measured, or more.
double times_bf16(DType precision) { return precision == DType::kE4m3 ? 13 : precision == DType::kI8 ? 3 : 1; }

Bound wider(const Bound& bound, double factor) {
  return {.relative = factor * bound.relative,
          .max_abs = factor * bound.max_abs,
          .cosine = bound.cosine == -1 ? -1 : 1 - factor * factor * (1 - bound.cosine)};
}

}  // namespace

void Distance::add(const float* got, const float* want, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = got[i];
    const double w = want[i];
    const double d = g - w;
    max_abs = std::isnan(d) || std::isnan(max_abs) ? std::numeric_limits<double>::quiet_NaN()
                                                   : std::max(max_abs, std::abs(d));
    dot += g * w;
    got2 += g * g;
    want2 += w * w;
    diff2 += d * d;
  }
  count += n;
}

double Distance::relative() const { return diff2 == 0 ? 0 : std::sqrt(diff2 / std::max(want2, 1e-300)); }
double Distance::cosine() const {
  return got2 == 0 && want2 == 0 ? 1 : dot / std::sqrt(std::max(got2 * want2, 1e-300));
}

Bound bound_for(Quantity quantity, DType precision, const ModelConfig& config) {
  if (is_scaled(precision)) return wider(bound_for(quantity, DType::kBf16, config), times_bf16(precision));
  const bool long_horizon = config.horizon > 16;
  if (precision == DType::kF32) {
    switch (quantity) {
      case Quantity::kVision:
        return {.max_abs = 5e-5};
      case Quantity::kKey:
        return {.max_abs = 3e-4};
      case Quantity::kValue:
        return {.max_abs = 1e-4};
      case Quantity::kHidden:
        return {.relative = 1e-4};
      case Quantity::kVelocity:
        return {.max_abs = 2e-4};
      case Quantity::kActions:
        return {.max_abs = 1e-4};
    }
  }
  if (!is_full_size(config)) {
    switch (quantity) {
      case Quantity::kActions:
        return {.relative = config.pi05() ? 0.015 : 0.04};
      case Quantity::kVelocity:
        return {.relative = 0.06};
      case Quantity::kHidden:
        return {.relative = 0.05};
      default:
        return {.relative = 0.03};
    }
  }
  switch (quantity) {
    case Quantity::kVision:
      return {.relative = 0.03, .max_abs = 0.2, .cosine = 0.9995};
    case Quantity::kKey:
    case Quantity::kValue:
      return {.relative = 0.035, .max_abs = 0.2, .cosine = 0.9994};
    case Quantity::kHidden:
      return {.relative = 0.05};
    case Quantity::kVelocity:
      return long_horizon ? Bound{.relative = 0.08, .max_abs = 0.35, .cosine = 0.9965}
                          : Bound{.relative = 0.045, .max_abs = 0.2, .cosine = 0.999};
    case Quantity::kActions:
      return long_horizon ? Bound{.relative = 0.03, .max_abs = 0.14, .cosine = 0.9995}
                          : Bound{.relative = 0.015, .max_abs = 0.06, .cosine = 0.9998};
  }
  return {};
}

bool ErrorRow::ok() const {
  return distance.count > 0 && distance.max_abs <= bound.max_abs && distance.relative() <= bound.relative &&
         distance.cosine() >= bound.cosine;
}

bool ErrorTable::ok() const {
  return !rows_.empty() && std::ranges::all_of(rows_, [](const ErrorRow& row) { return row.ok(); });
}

void ErrorTable::print(const std::string& title) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  fmt::print("\n{}\n{:<34} {:>10} {:>10} {:>12}   {:>9} {:>9} {:>9}\n", title, "quantity", "max abs", "relative",
             "1 - cosine", "≤ max", "≤ rel", "≥ cos");
  for (const ErrorRow& row : rows_) {
    fmt::print("{:<34} {:>10.2e} {:>10.2e} {:>12.2e}   {:>9} {:>9} {:>9}  {}\n", row.what, row.distance.max_abs,
               row.distance.relative(), 1 - row.distance.cosine(), limit(row.bound.max_abs, kInfinity),
               limit(row.bound.relative, kInfinity),
               row.bound.cosine == -1 ? "-" : fmt::format("{:.4f}", row.bound.cosine), row.ok() ? "ok" : "FAIL");
  }
}

nlohmann::ordered_json ErrorTable::json() const {
  nlohmann::ordered_json list = nlohmann::json::array();
  for (const ErrorRow& row : rows_) {
    list.push_back({{"quantity", row.what},
                    {"max_abs", row.distance.max_abs},
                    {"relative", row.distance.relative()},
                    {"one_minus_cosine", 1 - row.distance.cosine()},
                    {"values", row.distance.count},
                    {"ok", row.ok()}});
  }
  return list;
}

HostValue read_value(const Plan& plan, const std::string& name) {
  Tensor tensor = plan.tensor(name);
  std::vector<char> raw(tensor.bytes());
  plan.read(name, raw.data(), raw.size());
  tensor.data = raw.data();
  return {tensor.shape, widened(tensor)};
}

}  // namespace tendon::cli
