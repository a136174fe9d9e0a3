#include "backend/gpu/cards.h"

#include <charconv>

#include "base/check.h"

namespace tendon::gpu {
namespace {

constexpr int kOldest = 80;  // mma.sync on bf16 and cp.async

std::string list_of(const std::vector<Card>& cards) {
  std::string text;
  for (size_t i = 0; i < cards.size(); ++i)
    text += fmt::format("{}{} {} (sm_{})", i == 0 ? "" : ", ", i, cards[i].name, cards[i].architecture);
  return text;
}

}  // namespace

bool is_built_for(std::string_view list, int architecture) {
  while (!list.empty()) {
    const size_t end = list.find_first_of(";,");
    const std::string_view item = list.substr(0, end);
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
    int built = 0;
    const auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), built);
    if (error != std::errc()) continue;
    const std::string_view suffix(rest, static_cast<size_t>(item.data() + item.size() - rest));
    const bool exact = suffix.starts_with("a");
    const bool real = suffix.find("-virtual") == std::string_view::npos;
    const bool portable = suffix.find("-real") == std::string_view::npos;
    if (exact ? built == architecture
              : (real && built / 10 == architecture / 10 && built <= architecture) ||
                    (portable && built <= architecture)) {
      return true;
    }
  }
  return false;
}

void check_card(const Machine& machine, int index) {
  if (machine.driver == Driver::kTooOld) {
    throw_device(
        "The {} driver is too old: it knows {}, this build needs {}. Install a newer driver, or choose "
        "--backend cpu.",
        machine.vendor, machine.driver_version, machine.needed_version);
  }
  if (machine.driver == Driver::kMissing) {
    throw_device("There is no usable {} driver: {}. Install it (nvidia-smi must list a card), or choose --backend cpu.",
                 machine.vendor, machine.detail);
  }
  if (machine.cards.empty()) {
    throw_device("No {} card is visible to this program. Check nvidia-smi and {}, or choose --backend cpu.",
                 machine.vendor, machine.visibility);
  }
  if (index < 0 || static_cast<size_t>(index) >= machine.cards.size()) {
    throw_device("There is no card {}; this program sees {}: {}. Choose one of these with --device.", index,
                 machine.cards.size(), list_of(machine.cards));
  }
  const Card& card = machine.cards[static_cast<size_t>(index)];
  if (card.architecture < kOldest) {
    throw_device(
        "Card {}, {}, is sm_{}; tendon needs sm_{} or later. Choose another card with --device ({}), or "
        "--backend cpu.",
        index, card.name, card.architecture, kOldest, list_of(machine.cards));
  }
  if (!is_built_for(machine.built_for, card.architecture)) {
    throw_device(
        "Card {}, {}, is sm_{}; this build holds kernels for {} only. Choose another card with --device ({}), "
        "build with -DTENDON_CUDA_ARCHITECTURES={}-real, or choose --backend cpu.",
        index, card.name, card.architecture, machine.built_for, list_of(machine.cards), card.architecture);
  }
}

}  // namespace tendon::gpu
