#include "engine/frame_stream.h"

#include <algorithm>

#include "base/check.h"
#include "engine/slot.h"

namespace tendon {

FrameStream::FrameStream(Engine& engine, std::span<const Sample> like, const StreamOptions& options) : engine_(engine) {
  if (const Status status = engine.check_all(like); !status.is_ok()) throw_bad_input("{}", status.message());
  if (like.empty()) throw_bad_input("a stream of frames without samples was asked for");
  const Bucket bucket = engine.bucket_of(like);
  PlanOptions plan_options = engine.options().plan;
  plan_options.expand.insert(plan_options.expand.end(), options.expand.begin(), options.expand.end());
  slots_.reserve(kDepth);
  for (size_t i = 0; i < kDepth; ++i) {
    Plan& plan = *slots_.emplace_back(engine.plan_for(bucket, plan_options)).plan;
    const std::vector<StageRange> stages = stage_ranges(plan);
    TENDON_CHECK(stages.size() > 1, "a plan of one stage has no halves");
    overlaps_ = plan.split(stages.back().begin, options.preferred) && overlaps_;
  }
}

FrameStream::~FrameStream() {
  for (; under_way_ > 0; --under_way_, ++oldest_) static_cast<void>(slots_[oldest_ % kDepth].plan->finish());
  if (engine_.streaming_ == this) engine_.streaming_ = nullptr;
}

Status FrameStream::submit(std::span<const Sample> frame) noexcept {
  if (under_way_ == kDepth) {
    return Status::error(StatusCode::kBadInput, "%zu frames are under way; wait for the oldest one's actions first",
                         under_way_);
  }
  if (engine_.streaming_ != nullptr && engine_.streaming_ != this) {
    return Status::error(StatusCode::kBadInput, "frames of another stream of this engine are under way");
  }
  if (Status status = engine_.check_all(frame); !status.is_ok()) return status;
  const Bucket bucket = engine_.bucket_of(frame);
  Engine::Slot& slot = slots_[(oldest_ + under_way_) % kDepth];
  if (bucket != slot.bucket) {
    return Status::error(StatusCode::kBadInput,
                         "the frame has %ld samples, %ld pictures and at most %ld prefix rows; the stream is for %ld, "
                         "%ld and %ld, of %s "
                         "and %s a previous chunk",
                         static_cast<long>(bucket.batch), static_cast<long>(bucket.images),
                         static_cast<long>(bucket.prefix_rows), static_cast<long>(slot.bucket.batch),
                         static_cast<long>(slot.bucket.images), static_cast<long>(slot.bucket.prefix_rows),
                         dtype_name(slot.bucket.image_dtype).data(), slot.bucket.chunked ? "with" : "without");
  }
  slot.inputs.fill(frame);
  if (Status status = slot.plan->start(); !status.is_ok()) return status;
  engine_.streaming_ = this;
  ++under_way_;
  return Status::ok();
}

Status FrameStream::wait(std::span<float> actions) noexcept {
  if (under_way_ == 0) return Status::error(StatusCode::kBadInput, "no frame is under way");
  Engine::Slot& slot = slots_[oldest_];
  if (Status status = engine_.check_room(static_cast<size_t>(slot.bucket.batch), actions); !status.is_ok())
    return status;
  Status status = slot.plan->finish();
  oldest_ = (oldest_ + 1) % kDepth;
  if (--under_way_ == 0) engine_.streaming_ = nullptr;
  if (!status.is_ok()) return status;
  std::ranges::copy(slot.actions, actions.begin());
  return check_actions(actions);
}

const Plan& FrameStream::plan() const { return *slots_.front().plan; }

}  // namespace tendon
