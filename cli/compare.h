// Error tables: how far results are from a reference, and whether that is within bounds.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "plan/plan.h"

namespace tendon::cli {

struct Distance {
  double max_abs = 0, dot = 0, got2 = 0, want2 = 0, diff2 = 0;
  int64_t count = 0;

  void add(const float* got, const float* want, int64_t n);
  double relative() const;  // ‖got - want‖ / ‖want‖
  double cosine() const;
};

// All that are finite must hold.
struct Bound {
  double relative = std::numeric_limits<double>::infinity();
  double max_abs = std::numeric_limits<double>::infinity();
  double cosine = -1;
};

// The kinds of quantity that bounds are known for; docs/numerics.md says where the numbers come from.
enum class Quantity { kVision, kKey, kValue, kHidden, kVelocity, kActions };
Bound bound_for(Quantity quantity, DType precision, const ModelConfig& config);

struct ErrorRow {
  std::string what;
  Distance distance;
  Bound bound;
  bool ok() const;
};

class ErrorTable {
 public:
  void add(std::string what, const Distance& distance, const Bound& bound) {
    rows_.push_back({std::move(what), distance, bound});
  }
  bool ok() const;
  void print(const std::string& title) const;
  nlohmann::ordered_json json() const;

 private:
  std::vector<ErrorRow> rows_;
};

// A named value of a plan as f32.
struct HostValue {
  Shape shape;
  std::vector<float> values;
  int64_t cols() const { return shape[-1]; }
};
HostValue read_value(const Plan& plan, const std::string& name);

}  // namespace tendon::cli
