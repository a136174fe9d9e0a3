// The resize that openpi applies to every camera picture before the model.
#pragma once

#include "base/shared_work.h"
#include "engine/frame_pool.h"
#include "policy/files/image.h"

namespace tendon {

inline constexpr int kModelImageSide = 224;  // pixels; what the vision tower takes

// Scales `image` to fit (height, width) with its aspect ratio kept, centres it and fills the bars with 0. A picture
// that has this size already is returned unchanged. The scaled size is truncated from double arithmetic and can
// therefore fall one pixel short (225 x 225 becomes 223 x 223); the spare pixel goes to the right and bottom bars.
// Bit-exact with Pillow's antialiased Image.resize(..., BILINEAR) up to version 12, as openpi's
// image_tools.resize_with_pad uses it: along rows first, rounded to bytes in between. Pillow 13 scales tall pictures
// along columns first, which moves single pixels by one; landscape pictures are the same in all versions.
// `run`: who else works on it; else the threads of OpenMP do. The pixels do not depend on that.
// Throws kBadInput if the picture is empty or so narrow that it would shrink to nothing.
Image resize_with_pad(const ImageView& image, int height = kModelImageSide, int width = kModelImageSide,
                      const RunParts& run = {});
Image resize_with_pad(const Image& image, int height = kModelImageSide, int width = kModelImageSide);

// The picture as it is, with what resize_frames (ops/basic_ops.h) needs to make of it what resize_with_pad makes, bit
// for bit. Nothing when that has to do it: the pool has no room now, the picture has the model's size, or it would be
// refused.
PooledFrame put_frame(FramePool& pool, const ImageView& image, int side);

// A picture of our own as one of somebody else.
ImageView view_of(const Image& image);

// A copy, interleaved.
Image interleaved(const ImageView& image);

}  // namespace tendon
