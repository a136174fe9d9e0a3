#include "cards.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "backend/cuda/card_limits.h"
#include "base/check.h"
#include "cards_table.h"

namespace tendon::cli {
namespace {

// A line of the table: texts in quotes hold commas, never quotes.
std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> result(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      result.emplace_back();
    } else {
      result.back() += c;
    }
  }
  return result;
}

std::vector<CardData> read_table() {
  std::vector<CardData> cards;
  std::istringstream lines(kCardsTable);
  std::string line;
  std::getline(lines, line);  // titles
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    const std::vector<std::string> f = fields(line);
    TENDON_CHECK(f.size() == 8, "tuning/cards.csv: '{}' has {} fields", line, f.size());
    cards.push_back({.name = f[0],
                     .device = f[1],
                     .stated = {.bf16_flops_per_s = std::stod(f[2]) * 1e12, .read_bytes_per_s = std::stod(f[3]) * 1e9},
                     .memory_gb = std::stod(f[4]),
                     .note = f[5],
                     .source = f[6],
                     .checked = f[7],
                     .measured = card_limits(f[1])});
  }
  return cards;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

const std::vector<CardData>& known_cards() {
  static const std::vector<CardData> cards = read_table();
  return cards;
}

const CardData& find_card(std::string_view name) {
  std::string all;
  for (const CardData& card : known_cards()) {
    if (same_word(card.name, name)) return card;
    all += (all.empty() ? "" : ", ") + card.name;
  }
  throw_bad_use("'{}' is no card of tuning/cards.csv. Known: {}.", name, all);
}

double peak_tflops(std::string_view device) {
  const auto found = std::ranges::find(known_cards(), device, &CardData::device);
  if (found == known_cards().end()) return 0;
  return 1e-12 * (found->measured.bf16_flops_per_s > 0 ? found->measured : found->stated).bf16_flops_per_s;
}

DeviceLimits attainable(const CardData& card) {
  if (card.measured.bf16_flops_per_s > 0) return card.measured;
  const CardData& best = find_card("H100");
  return {
      .bf16_flops_per_s = card.stated.bf16_flops_per_s * best.measured.bf16_flops_per_s / best.stated.bf16_flops_per_s,
      .read_bytes_per_s = card.stated.read_bytes_per_s * best.measured.read_bytes_per_s / best.stated.read_bytes_per_s};
}

}  // namespace tendon::cli
