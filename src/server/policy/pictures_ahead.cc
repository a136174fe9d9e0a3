#include "server/policy/pictures_ahead.h"

#include <algorithm>

#include "wire/message.h"

namespace tendon {

void PicturesAhead::look(std::span<const std::byte> begun) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (is_ended_) return;
    ++looking_;
  }
  try {
    make_ready_all(begun.data(), decode_begun(begun));
  } catch (const std::exception&) {  // what is wrong with the message is told when it is whole
  }
  const std::lock_guard lock(mutex_);
  --looking_;
  changed_.notify_all();
}

void PicturesAhead::end() noexcept {
  std::unique_lock lock(mutex_);
  is_ended_ = true;
  changed_.wait(lock, [&] { return looking_ == 0; });
}

void PicturesAhead::finish(std::span<const std::byte> message, const WireValue& decoded) {
  message_ = message.data();
  make_ready_all(message_, decoded);
}

std::optional<ReadyPicture> PicturesAhead::take(const ImageView& picture) {
  const auto offset = static_cast<size_t>(reinterpret_cast<const std::byte*>(picture.bytes) - message_);
  std::unique_lock lock(mutex_);
  const auto entry = std::ranges::find(entries_, offset, &Entry::offset);
  if (entry == entries_.end()) return {};
  changed_.wait(lock, [&] { return entry->is_done; });
  return std::exchange(entry->picture, {});
}

// Several threads may be here: each takes the next picture that nobody has begun.
void PicturesAhead::make_ready_all(const std::byte* begin, const WireValue& decoded) {
  for (const ImageView& picture : pictures_in(decoded, preset_)) {
    if (picture.height == defaults_.image_side && picture.width == defaults_.image_side) continue;  // ready as it is
    Entry* entry = nullptr;
    {
      const auto offset = static_cast<size_t>(reinterpret_cast<const std::byte*>(picture.bytes) - begin);
      const std::lock_guard lock(mutex_);
      if (std::ranges::find(entries_, offset, &Entry::offset) != entries_.end()) continue;
      entry = &entries_.emplace_back(Entry{offset});
    }
    std::optional<ReadyPicture> ready;
    try {
      ready = make_ready(picture, defaults_);
    } catch (const std::exception&) {  // whoever reads the request meets it again, and knows the key
    }
    const std::lock_guard lock(mutex_);
    entry->picture = std::move(ready);
    entry->is_done = true;
    changed_.notify_all();
  }
}

}  // namespace tendon
