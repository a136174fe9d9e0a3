// Pictures of a message that are made ready while the rest of it is still on its way.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>

#include "server/inference_queue.h"
#include "server/policy/observation.h"

namespace tendon {

class PicturesAhead final : public Intake {
 public:
  // Both must outlive it.
  PicturesAhead(const Preset& preset, const RequestDefaults& defaults) : preset_(preset), defaults_(defaults) {}

  void look(std::span<const std::byte> begun) noexcept override;
  void end() noexcept override;

  // The whole message: its pictures that nobody is at are made ready here, and take() finds pictures by where they lie
  // in it.
  void finish(std::span<const std::byte> message, const WireValue& decoded);
  // A picture of the message of finish(), at most once; waits for a thread that is at it. Nothing when it could not be
  // made ready.
  std::optional<ReadyPicture> take(const ImageView& picture);

 private:
  struct Entry {
    size_t offset;  // in the message
    bool is_done = false;
    std::optional<ReadyPicture> picture = {};
  };
  void make_ready_all(const std::byte* begin, const WireValue& decoded);

  const Preset& preset_;
  const RequestDefaults& defaults_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> entries_;
  int looking_ = 0;  // threads in look()
  bool is_ended_ = false;
  const std::byte* message_ = nullptr;
};

}  // namespace tendon
