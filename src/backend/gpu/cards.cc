#include "backend/gpu/cards.h"

#include <charconv>

#include "base/check.h"

namespace tendon::gpu {
namespace {

std::string list_of(const Machine& machine) {
  std::string text;
  for (size_t i = 0; i < machine.cards.size(); ++i) {
    const Card& card = machine.cards[i];
    text += fmt::format("{}{} {} ({}{})", i == 0 ? "" : ", ", i, card.name, machine.prefix, card.architecture);
  }
  return text;
}

}  // namespace

bool is_built_for(std::string_view list, int architecture) {
  while (!list.empty()) {
    const size_t end = list.find_first_of(";,");
    std::string_view item = list.substr(0, end);
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
    const bool is_amd = item.starts_with("gfx");
    if (is_amd) item.remove_prefix(3);
    int built = 0;
    const auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), built);
    if (error != std::errc()) continue;
    const std::string_view suffix(rest, static_cast<size_t>(item.data() + item.size() - rest));
    const bool exact = is_amd || suffix.starts_with("a");
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
    throw_device("There is no usable {} driver: {}. Install it ({} must list a card), or choose --backend cpu.",
                 machine.vendor, machine.detail, machine.lister);
  }
  if (machine.cards.empty()) {
    throw_device("No {} card is visible to this program. Check {} and {}, or choose --backend cpu.", machine.vendor,
                 machine.lister, machine.visibility);
  }
  if (index < 0 || static_cast<size_t>(index) >= machine.cards.size()) {
    throw_device("There is no card {}; this program sees {}: {}. Choose one of these with --device.", index,
                 machine.cards.size(), list_of(machine));
  }
  const Card& card = machine.cards[static_cast<size_t>(index)];
  const std::string architecture = machine.prefix + std::to_string(card.architecture);
  if (card.architecture < machine.oldest) {
    throw_device(
        "Card {}, {}, is {}; tendon needs {}{} or later. Choose another card with --device ({}), or --backend cpu.",
        index, card.name, architecture, machine.prefix, machine.oldest, list_of(machine));
  }
  if (!is_built_for(machine.built_for, card.architecture)) {
    const std::string rebuild =
        machine.rebuild.empty()
            ? ""
            : fmt::format(" build with {},", fmt::vformat(machine.rebuild, fmt::make_format_args(card.architecture)));
    throw_device(
        "Card {}, {}, is {}; this build holds kernels for {} only. Choose another card with --device ({}),{} or choose "
        "--backend cpu.",
        index, card.name, architecture, machine.built_for, list_of(machine), rebuild);
  }
}

}  // namespace tendon::gpu
