// resize_frames: pictures of any size to one size, along rows and then along columns, in whole numbers.
//   images, out (N, side, side, 3) u8, frames (N) i32, pool (rows, 16) u8 with the frames (ops/frame.h), in host
//   memory. Sums are i32: pixels of 8 bits times weights of 22 that are 1 together.
// First the tables of every frame are copied into the workspace, since all blocks read them. Then a block makes a tile
// of kTileRows rows and as many columns as a wave has lanes. Each wave takes every kWaves-th source row that the tile
// needs: it reads the row's part with 16-byte loads into a strip of shared memory, a lane sums it for its column, and
// adds it, weighted, to its sums for the rows of the tile; sums of whole numbers do not depend on their order. Last,
// the sums of the waves are added. Bytes moved: of 1080p at side 224, 1.2 times the frames, which come from the host:
// that is what limits it.
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/kernels.h"
#include "ops/frame.h"

namespace tendon::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWaves = kThreads / kWarpSize;
constexpr int kTileRows = 8;
constexpr int kChunk = 320;  // source pixels of a row in shared memory at a time
constexpr int kPlaneBytes = kChunk + 32;
constexpr int kTileBytes = kTileRows * 3 * kWarpSize;
constexpr int kHalf = 1 << (kFrameFractionBits - 1);
constexpr unsigned kTableBlocks = 8;

struct alignas(16) Words {
  uint32_t word[4];
};

TENDON_DEVICE int smaller(int a, int b) { return a < b ? a : b; }
TENDON_DEVICE int to_byte(int sum) { return smaller(sum >> kFrameFractionBits, 255); }

TENDON_KERNEL void __launch_bounds__(kThreads)
    copy_tables_kernel(const uint8_t* pool, const int32_t* frames, uint8_t* tables, int64_t table_bytes) {
  const int64_t frame = frames[blockIdx.y];
  if (frame == 0) return;
  const uint8_t* const from = pool + frame * kFrameAlignment;
  uint8_t* const to = tables + blockIdx.y * table_bytes;
  const int64_t bytes = reinterpret_cast<const FrameHeader*>(from)->pixels_at;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 16; at < bytes;
       at += static_cast<int64_t>(kTableBlocks) * kThreads * 16) {
    *reinterpret_cast<Words*>(to + at) = *reinterpret_cast<const Words*>(from + at);
  }
}

// Source pixels begin..end of a row, all channels, as a wave has them in shared memory: byte c of pixel `begin + i` is
// at strip[lead[c] + i · pixel_step].
struct StripLayout {
  int pixel_step;
  int lead[3];
};

TENDON_DEVICE StripLayout load_strip(const uint8_t* pixels, const FrameHeader& header, int row, int begin, int end,
                                     uint8_t* strip) {
  const bool planar = header.planar != 0;
  StripLayout layout{planar ? 1 : 3, {}};
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    if (c > 0 && !planar) {
      layout.lead[c] = layout.lead[0] + c;
      continue;
    }
    const uint8_t* const first =
        pixels + ((static_cast<int64_t>(c) * header.height + row) * header.width + begin) * layout.pixel_step;
    const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(first) % 16);
    const uint8_t* const from = first - lead;
    uint8_t* const to = strip + c * kPlaneBytes;
    const int bytes = lead + (end - begin) * layout.pixel_step;
    for (int at = lane() * 16; at < bytes; at += kWarpSize * 16) {
      *reinterpret_cast<Words*>(to + at) = *reinterpret_cast<const Words*>(from + at);
    }
    layout.lead[c] = c * kPlaneBytes + lead;
  }
  return layout;
}

TENDON_KERNEL void __launch_bounds__(kThreads)
    resize_frames_kernel(const uint8_t* images, const int32_t* frames, const uint8_t* pool, const uint8_t* tables,
                         int64_t table_bytes, int side, uint8_t* out) {
  TENDON_SHARED(uint8_t, strips, kWaves * 3 * kPlaneBytes);
  TENDON_SHARED(int32_t, parts, kWaves * kTileBytes);
  const int64_t picture = blockIdx.z;
  const int first_x = static_cast<int>(blockIdx.x) * kWarpSize;
  const int first_y = static_cast<int>(blockIdx.y) * kTileRows;
  const int64_t frame = frames[picture];

  if (frame != 0) {
    const FrameHeader header = *reinterpret_cast<const FrameHeader*>(tables + picture * table_bytes);
    const auto* const x_firsts = reinterpret_cast<const int32_t*>(tables + picture * table_bytes + sizeof(FrameHeader));
    const int32_t* const x_weights = x_firsts + side;
    const int32_t* const y_firsts = x_weights + static_cast<int64_t>(side) * header.x_taps;
    const int32_t* const y_weights = y_firsts + side;
    const uint8_t* const pixels = pool + frame * kFrameAlignment + header.pixels_at;
    uint8_t* const strip = strips + wave() * 3 * kPlaneBytes;

    // --- the part of the source that the tile needs
    const int x = smaller(first_x + lane(), side - 1);
    const int x_first = x_firsts[x];
    const int last_y = smaller(first_y + kTileRows, side) - 1;
    const int rows_end = smaller(y_firsts[last_y] + header.y_taps, header.height);
    const int columns_begin = x_firsts[first_x];
    const int columns_end = smaller(x_firsts[smaller(first_x + kWarpSize, side) - 1] + header.x_taps, header.width);

    int sums[kTileRows][3] = {};
    for (int row = y_firsts[first_y] + wave(); row < rows_end; row += kWaves) {
      int weights[kTileRows];
      int any = 0;
#pragma unroll
      for (int j = 0; j < kTileRows; ++j) {
        const int y = smaller(first_y + j, last_y);
        const int tap = row - y_firsts[y];
        weights[j] = tap >= 0 && tap < header.y_taps ? y_weights[static_cast<int64_t>(tap) * side + y] : 0;
        any |= weights[j];
      }
      if (any == 0) continue;

      // --- along the row
      int pixel[3] = {kHalf, kHalf, kHalf};
      for (int begin = columns_begin; begin < columns_end; begin += kChunk) {
        const int end = smaller(begin + kChunk, columns_end);
        const StripLayout layout = load_strip(pixels, header, row, begin, end, strip);
        wave_sync();
        const int taps_end = smaller(header.x_taps, end - x_first);
        for (int tap = begin > x_first ? begin - x_first : 0; tap < taps_end; ++tap) {
          const int weight = x_weights[static_cast<int64_t>(tap) * side + x];
          const uint8_t* const source = strip + (x_first + tap - begin) * layout.pixel_step;
#pragma unroll
          for (int c = 0; c < 3; ++c) pixel[c] += source[layout.lead[c]] * weight;
        }
        wave_sync();
      }

      // --- along the columns
#pragma unroll
      for (int j = 0; j < kTileRows; ++j) {
#pragma unroll
        for (int c = 0; c < 3; ++c) sums[j][c] += to_byte(pixel[c]) * weights[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kTileRows; ++j) {
#pragma unroll
      for (int c = 0; c < 3; ++c) parts[(wave() * kTileRows + j) * 3 * kWarpSize + lane() * 3 + c] = sums[j][c];
    }
  }
  block_sync();

  // --- store
  for (int i = static_cast<int>(threadIdx.x); i < kTileBytes; i += kThreads) {
    const int y = first_y + i / (3 * kWarpSize);
    const int column = 3 * first_x + i % (3 * kWarpSize);
    if (y >= side || column >= 3 * side) continue;
    const int64_t at = (picture * side + y) * side * 3 + column;
    if (frame == 0) {
      out[at] = images[at];
      continue;
    }
    int sum = kHalf;
    for (int w = 0; w < kWaves; ++w) sum += parts[w * kTileBytes + i];
    out[at] = static_cast<uint8_t>(to_byte(sum));
  }
}

}  // namespace

// --- launchers -------------------------------------------------------------------------------------------------------

size_t resize_frames_workspace_bytes(const ResizeFrames& a) {
  return static_cast<size_t>(a.out.shape[0] * max_frame_table_bytes(a.out.shape[1]));
}

void launch_resize_frames(const ResizeFrames& a, void* workspace, Stream stream) {
  if (a.out.elements() == 0) return;
  const auto pictures = static_cast<unsigned>(a.out.shape[0]);
  const int64_t side = a.out.shape[1];
  const int64_t table_bytes = max_frame_table_bytes(side);
  auto* const tables = static_cast<uint8_t*>(workspace);
  launch<copy_tables_kernel>({.grid = dim3(kTableBlocks, pictures), .block = kThreads, .stream = stream},
                             a.pool.as<uint8_t>(), a.frames.as<int32_t>(), tables, table_bytes);
  const dim3 grid(static_cast<unsigned>(ceil_div(side, kWarpSize)), static_cast<unsigned>(ceil_div(side, kTileRows)),
                  pictures);
  launch<resize_frames_kernel>({.grid = grid, .block = kThreads, .stream = stream}, a.images.as<uint8_t>(),
                               a.frames.as<int32_t>(), a.pool.as<uint8_t>(), tables, table_bytes,
                               static_cast<int>(side), a.out.as<uint8_t>());
}

}  // namespace tendon::gpu
