#include "engine/observe_operands.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tendon {
namespace {

// Of each column; infinite where a number is not finite.
template <class T, class Widen>
void raise(const std::vector<std::byte>& rows, std::vector<float>& largest, const Widen& widen) {
  const auto* const numbers = reinterpret_cast<const T*>(rows.data());
  const size_t count = rows.size() / sizeof(T);
  for (size_t i = 0; i < count; i += largest.size()) {
    for (size_t col = 0; col < largest.size(); ++col) {
      const float size = std::abs(widen(numbers[i + col]));
      largest[col] = size <= largest[col] ? largest[col] : std::isfinite(size) ? size : HUGE_VALF;
    }
  }
}

}  // namespace

void observe_operands(const Plan& plan, OperandMaxima& maxima) {
  std::vector<std::byte> rows;
  visit_maxima(maxima, [&](const std::string& name, std::vector<float>& largest) {
    const Tensor& tensor = plan.tensor(name);
    TENDON_CHECK(tensor.cols() == std::ssize(largest), "'{}' is {}", name, to_string(tensor.shape));
    rows.resize(tensor.bytes());
    plan.read(name, rows.data(), rows.size());
    if (tensor.dtype == DType::kF32) {
      raise<float>(rows, largest, [](float value) { return value; });
    } else {
      raise<Bf16>(rows, largest, [](Bf16 value) { return to_float(value); });
    }
    if (!std::ranges::all_of(largest, [](float size) { return std::isfinite(size); }))
      throw_bad_input(
          "The operand '{}' of observation {} is not finite: the weights or inputs hold values that overflow.", name,
          maxima.observations + 1);
  });
  ++maxima.observations;
}

}  // namespace tendon
