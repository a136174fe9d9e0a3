#include <algorithm>
#include <array>
#include <variant>

#include "tendon/client.hpp"
#include "wire/message.h"

namespace tendon {
namespace {

struct Picture {
  std::vector<uint8_t> rgb;
  std::array<int64_t, 3> shape{};
};
struct Rows {
  std::vector<double> values;
  std::vector<int64_t> shape;
};
struct Item;
using Content = std::variant<Picture, Rows, std::string, int64_t, std::vector<Item>>;
struct Item {
  std::string key;
  Content content;
};

void set(std::vector<Item>& items, std::string_view key, Content content) {
  const auto found = std::ranges::find(items, key, &Item::key);
  if (found != items.end()) {
    found->content = std::move(content);
  } else {
    items.push_back({std::string(key), std::move(content)});
  }
}

Picture make_picture(std::string_view key, std::span<const uint8_t> rgb, int height, int width, bool planar) {
  if (height < 1 || width < 1 || rgb.size() != 3 * static_cast<size_t>(height) * static_cast<size_t>(width)) {
    throw std::invalid_argument("picture '" + std::string(key) + "' of " + std::to_string(height) + " x " +
                                std::to_string(width) + " pixels has " + std::to_string(rgb.size()) + " bytes");
  }
  const std::array<int64_t, 3> shape =
      planar ? std::array<int64_t, 3>{3, height, width} : std::array<int64_t, 3>{height, width, 3};
  return {{rgb.begin(), rgb.end()}, shape};
}

void write(WireWriter& writer, const std::vector<Item>& items);

struct Write {
  WireWriter& writer;
  void operator()(const Picture& picture) const {
    writer.array("|u1", picture.shape, std::as_bytes(std::span(picture.rgb)));
  }
  void operator()(const Rows& rows) const { writer.array(rows.shape, rows.values); }
  void operator()(const std::string& text) const { writer.text(text); }
  void operator()(int64_t number) const { writer.integer(number); }
  void operator()(const std::vector<Item>& items) const { write(writer, items); }
};

void write(WireWriter& writer, const std::vector<Item>& items) {
  writer.map(items.size());
  for (const Item& item : items) {
    writer.text(item.key);
    std::visit(Write{writer}, item.content);
  }
}

}  // namespace

struct PolicyRequest::Entries {
  std::vector<Item> items;
};

PolicyRequest::PolicyRequest() : entries_(std::make_unique<Entries>()) {}
PolicyRequest::~PolicyRequest() = default;
PolicyRequest::PolicyRequest(PolicyRequest&&) noexcept = default;
PolicyRequest& PolicyRequest::operator=(PolicyRequest&&) noexcept = default;

PolicyRequest& PolicyRequest::picture(std::string_view key, std::span<const uint8_t> rgb, int height, int width,
                                      bool planar) {
  set(entries_->items, key, make_picture(key, rgb, height, width, planar));
  return *this;
}

PolicyRequest& PolicyRequest::picture_in(std::string_view map, std::string_view name, std::span<const uint8_t> rgb,
                                         int height, int width, bool planar) {
  Picture picture = make_picture(name, rgb, height, width, planar);
  std::vector<Item>& items = entries_->items;
  auto found = std::ranges::find(items, map, &Item::key);
  if (found == items.end() || !std::holds_alternative<std::vector<Item>>(found->content)) {
    set(items, map, std::vector<Item>{});
    found = std::ranges::find(items, map, &Item::key);
  }
  set(std::get<std::vector<Item>>(found->content), name, std::move(picture));
  return *this;
}

PolicyRequest& PolicyRequest::numbers(std::string_view key, std::span<const double> values) {
  set(entries_->items, key, Rows{{values.begin(), values.end()}, {static_cast<int64_t>(values.size())}});
  return *this;
}

PolicyRequest& PolicyRequest::text(std::string_view key, std::string_view value) {
  set(entries_->items, key, std::string(value));
  return *this;
}

PolicyRequest& PolicyRequest::continue_from(const PolicyReply& last, int64_t start, int64_t delay) {
  set(entries_->items, "prev_actions", Rows{last.actions, {last.horizon, last.width}});
  set(entries_->items, "prev_actions_start", start);
  set(entries_->items, "prev_actions_d", delay);
  return *this;
}

std::string PolicyRequest::encode() const {
  WireWriter writer;
  write(writer, entries_->items);
  return writer.take();
}

}  // namespace tendon
