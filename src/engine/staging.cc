#include "engine/staging.h"

#include <algorithm>
#include <cstring>

#include "base/convert.h"
#include "engine/frame_pool.h"

namespace tendon {
namespace {

template <class T>
void bind(std::span<T>& values, const Plan& plan, const char* name) {
  if (!plan.has(name)) return;
  const Tensor host = plan.host(name);
  values = {host.as<T>(), host.bytes() / sizeof(T)};
}

}  // namespace

HostInputs::HostInputs(const ForwardSpec& spec, const Plan& plan)
    : config_(spec.config),
      bucket_(spec.bucket),
      pack_(spec.folds.pack_valid_tokens),
      first_step_differs_(spec.first_step_differs()),
      capacity_(spec.cache_capacity()),
      suffix_rows_(spec.suffix_rows(1)) {
  bind(images_, plan, "images");
  bind(frames_, plan, "frames");
  bind(prefix_mask_, plan, "prefix_mask");
  bind(prefix_sources_, plan, "prefix_sources");
  bind(prefix_positions_, plan, "prefix_positions");
  bind(prefix_cache_rows_, plan, "prefix_cache_rows");
  bind(prefix_len_, plan, "prefix_len");
  bind(suffix_len_, plan, "suffix_len");
  bind(suffix_positions_, plan, "suffix_positions");
  bind(suffix_cache_rows_, plan, "suffix_cache_rows");
  bind(first_positions_, plan, "first_positions");
  bind(first_cache_rows_, plan, "first_cache_rows");
  bind(state_suffix_rows_, plan, "state_suffix_rows");
  bind(action_suffix_rows_, plan, "action_suffix_rows");
  bind(state_, plan, "state");
  bind(noise_, plan, "noise");
  bind(previous_, plan, "previous");
  bind(guidance_, plan, "guidance");
  bind(frozen_, plan, "frozen");
}

void HostInputs::add_image(const CameraView& view) {
  const auto pixels = static_cast<size_t>(config_.vision.pixels());
  const size_t image_bytes = pixels * dtype_bytes(bucket_.image_dtype);
  const auto number = static_cast<size_t>(images_filled_++);
  const bool is_frame = view.active && view.frame != nullptr;
  if (!frames_.empty()) frames_[number] = is_frame ? view.frame->number() : 0;
  if (is_frame) return;
  std::byte* const out = images_.data() + number * image_bytes;
  if (view.pixels == nullptr) {
    std::memset(out, 0, image_bytes);
  } else if (view.dtype == bucket_.image_dtype) {
    if (view.planar) {
      interleave_planes(static_cast<const uint8_t*>(view.pixels), pixels / 3, reinterpret_cast<uint8_t*>(out));
    } else {
      std::memcpy(out, view.pixels, image_bytes);
    }
  } else if (bucket_.image_dtype == DType::kF32) {
    const auto* const bytes = static_cast<const uint8_t*>(view.pixels);
    auto* const floats = reinterpret_cast<float*>(out);
    const size_t plane = pixels / 3;
    for (size_t i = 0; i < pixels; ++i) {
      const size_t from = view.planar ? i % 3 * plane + i / 3 : i;
      floats[i] = static_cast<float>(bytes[from]) / 255.0F * 2.0F - 1.0F;
    }
  } else {
    std::memset(out, 0, image_bytes);  // a masked f32 picture in a u8 bucket
  }
}

void HostInputs::fill_prefix(const Sample& sample, int64_t b) {
  const int64_t tokens_per_image = config_.vision.tokens();
  const int64_t first_row = b * bucket_.prefix_rows;
  int64_t row = 0;
  int32_t valid = 0;
  const auto put = [&](int32_t source, bool is_valid) {
    const auto at = static_cast<size_t>(first_row + row);
    if (is_valid) ++valid;
    prefix_sources_[at] = source;
    prefix_positions_[at] = std::max(valid - 1, 0);
    prefix_cache_rows_[at] = static_cast<int32_t>(b * capacity_ + row);
    if (!pack_) prefix_mask_[static_cast<size_t>(b * capacity_ + row)] = is_valid ? 1 : 0;
    ++row;
  };
  for (const CameraView& camera : sample.cameras) {
    if (pack_ && !camera.active) continue;
    const int64_t first_feature = images_filled_ * tokens_per_image;
    add_image(camera);
    for (int64_t t = 0; t < tokens_per_image; ++t) put(static_cast<int32_t>(first_feature + t), camera.active);
  }
  for (const int32_t token : sample.tokens) put(-1 - token, true);
  const int32_t len = static_cast<int32_t>(row);
  while (row < bucket_.prefix_rows) {
    put(-1, false);
    if (pack_) prefix_cache_rows_[static_cast<size_t>(first_row + row - 1)] = -1;
  }
  prefix_len_[static_cast<size_t>(b)] = pack_ ? len : static_cast<int32_t>(bucket_.prefix_rows);
  fill_suffix(b, valid);
}

void HostInputs::fill_suffix(int64_t b, int64_t valid) {
  const auto at = static_cast<size_t>(b);
  auto position = static_cast<int32_t>(valid);
  int32_t cache_row = static_cast<int32_t>(b * capacity_) + prefix_len_[at];
  suffix_len_[at] = prefix_len_[at];
  if (!pack_) {
    const auto begin = prefix_mask_.begin() + (b * capacity_ + bucket_.prefix_rows);
    std::fill(begin, prefix_mask_.begin() + (b + 1) * capacity_, uint8_t{1});
  }
  const auto fill_rows = [&](std::span<int32_t> positions, std::span<int32_t> cache_rows, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      positions[static_cast<size_t>(b * rows + i)] = position + static_cast<int32_t>(i);
      cache_rows[static_cast<size_t>(b * rows + i)] = cache_row + static_cast<int32_t>(i);
    }
  };
  const int64_t horizon = config_.horizon;
  if (first_step_differs_) {
    fill_rows(first_positions_, first_cache_rows_, horizon + 1);
    ++position, ++cache_row, ++suffix_len_[at];  // later the state counts as a key in front of the suffix
  }
  fill_rows(suffix_positions_, suffix_cache_rows_, suffix_rows_);
  if (config_.pi05()) return;
  state_suffix_rows_[at] = static_cast<int32_t>(b * (horizon + 1));
  for (int64_t i = 0; i < horizon; ++i) {
    action_suffix_rows_[static_cast<size_t>(b * horizon + i)] = static_cast<int32_t>(b * (horizon + 1) + 1 + i);
  }
}

// A sample that continues nothing has no weight and no given row.
void HostInputs::fill_previous(const PreviousChunk& previous, int64_t b) {
  const auto put = [&](std::span<float> values, std::span<const float> given) {
    const auto count = static_cast<size_t>(config_.horizon * config_.action_dim);
    if (values.empty()) return;
    const std::span<float> own = values.subspan(static_cast<size_t>(b) * count, count);
    if (previous.actions.empty()) {
      std::ranges::fill(own, 0.0F);
    } else {
      std::ranges::copy(given, own.begin());
    }
  };
  put(previous_, previous.actions);
  put(guidance_, previous.guidance);
  if (frozen_.empty()) return;
  const int64_t given = previous.actions.empty() ? 0 : previous.frozen_rows;
  for (int64_t i = 0; i < config_.horizon; ++i)
    frozen_[static_cast<size_t>(b * config_.horizon + i)] = i < given ? 1 : 0;
}

void HostInputs::fill(std::span<const Sample> samples) {
  images_filled_ = 0;
  for (size_t b = 0; b < samples.size(); ++b) {
    fill_prefix(samples[b], static_cast<int64_t>(b));
    if (!config_.pi05())
      std::ranges::copy(samples[b].state, state_.begin() + static_cast<int64_t>(b) * config_.action_dim);
    std::ranges::copy(samples[b].noise,
                      noise_.begin() + static_cast<int64_t>(b) * config_.horizon * config_.action_dim);
    fill_previous(samples[b].previous, static_cast<int64_t>(b));
  }
}

}  // namespace tendon
