#include "backend/gemm/desc.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

namespace tendon::gemm {

bool Desc::same_but_rows(const Desc& other) const {
  Desc same = other;
  same.m = m;
  return *this == same;
}

std::string to_string(const Desc& desc) {
  return fmt::format("{}x{}x{} {} {} {} {}", desc.m, desc.n, desc.k, dtype_name(desc.x), dtype_name(desc.w),
                     dtype_name(desc.out), desc.epilogue);
}

bool known_epilogue(const std::string& text) {
  if (text == "none" || text == "gelu_mul" || text == "rope") return true;
  // Each word's place in the order; words of one place exclude each other.
  constexpr std::array<std::pair<std::string_view, int>, 6> kWords = {
      {{"bias", 0}, {"gelu", 1}, {"silu", 1}, {"table", 2}, {"residual", 3}, {"gated", 3}}};
  int last = -1;
  std::istringstream words(text);
  std::string word;
  while (std::getline(words, word, '+')) {
    const auto* const found = std::ranges::find(kWords, std::string_view(word), [](const auto& w) { return w.first; });
    if (found == kWords.end() || found->second <= last) return false;
    last = found->second;
  }
  return last >= 0 && !text.ends_with('+');
}

Desc without_rope(Desc desc) {
  if (desc.epilogue == "rope") desc.epilogue = "none";
  return desc;
}

double flops(const Desc& desc) {
  const double one = 2.0 * static_cast<double>(desc.m) * static_cast<double>(desc.n) * static_cast<double>(desc.k);
  return desc.epilogue == "gelu_mul" ? 2 * one : one;
}

}  // namespace tendon::gemm
