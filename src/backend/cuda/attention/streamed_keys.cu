// attention with many keys: softmax(scale · q·kᵀ) · v, keys and values streaming through shared memory; formula in
// ops/basic_ops.h. The prefix's: eight query heads share one K/V head.
//   q, out (B, T, heads·256), k, v (B, C, kv_heads·256) bf16; sums f32; out also codes (attention_to_codes).
// The queries of the heads that share keys are one matrix; a block has 64 of its rows. One warpgroup copies tiles of 64
// keys and values into a ring; two take turns at the tiles, one's softmax behind the other's products, with running
// maxima of their own, and join at the end: each finishes half of the columns. Probabilities stay in registers as the
// second product's operand. Every block reads all keys and values that it may see from the second-level cache.
#include "backend/cuda/attention/softmax.cuh"

namespace tendon::gpu::attention {
namespace {

constexpr int kReaders = 2;  // warpgroups
constexpr int kThreads = 128 * (kReaders + 1);
constexpr int kBoxes = kStreamCols / kWideCols;
constexpr int kTileBytes = kBoxes * kWideBytes;  // of queries, keys or values
constexpr int kCodesBoxBytes = kTileRows * kWideCols;
constexpr int kSlots = 6;
constexpr int kKept = 2;  // boxes of queries that stay in registers: wgmma reads shared memory as fast as that goes
// Sums are rescaled when a row's maximum has grown by more than so many powers of two: smaller growth only makes the
// exponentials larger than 1.
constexpr float kSlack = 8;

// Shared memory. Tile t is keys and values for warpgroup t % 2; in the ring lie both warpgroups' keys, then both's
// values, and so on.
struct Ring {
  uint32_t base;
  static constexpr int kBytes = (1 + kSlots) * kTileBytes + (3 + 2 * kSlots) * 8 + 1024;
  static TENDON_DEVICE int keys_unit(int tile) { return tile / 2 * 4 + tile % 2; }
  static TENDON_DEVICE int values_unit(int tile) { return keys_unit(tile) + 2; }
  TENDON_DEVICE uint32_t queries() const { return base; }
  TENDON_DEVICE uint32_t slot(int unit) const { return base + (1 + unit % kSlots) * kTileBytes; }
  TENDON_DEVICE uint32_t queries_full() const { return base + (1 + kSlots) * kTileBytes; }
  TENDON_DEVICE uint32_t full(int unit) const { return queries_full() + (1 + unit % kSlots) * 8; }
  TENDON_DEVICE uint32_t empty(int unit) const { return queries_full() + (1 + kSlots + unit % kSlots) * 8; }
  TENDON_DEVICE uint32_t turn(int warpgroup) const { return queries_full() + (1 + 2 * kSlots + warpgroup) * 8; }
  TENDON_DEVICE void wait_full(int unit) const { wait_phase(full(unit), unit / kSlots & 1); }
  TENDON_DEVICE void release(int unit) const {
    if (lane() == 0) barrier_arrive(empty(unit));
  }
};

// Where a block's rows are.
struct Place {
  int b, kv, first_token;
};

TENDON_DEVICE int last_key_of(const Args& a, int b) { return max(a.visible.of(b, a.queries - 1), 0); }
// At least one: its keys may all be masked.
TENDON_DEVICE int tiles_of(int last_key) { return max((last_key + kTileRows - 1) / kTileRows, 1); }

// One thread.
[[maybe_unused]] TENDON_DEVICE void feed(const Ring& ring, const Maps& maps, const Args& a, const Place& at) {
  barrier_expect(ring.queries_full(), kTileBytes);
  copy_box(ring.queries(), &maps.q, ring.queries_full(), 0, at.kv * a.group, at.first_token, 0, at.b);
  // The first tile is asked for before anybody knows how many there are.
  barrier_expect(ring.full(0), kTileBytes);
  copy_box(ring.slot(0), &maps.k, ring.full(0), 0, at.kv, 0, 0, at.b);
  const int tiles = tiles_of(last_key_of(a, at.b));
  const int pairs = (tiles + 1) / 2;
#pragma unroll 1
  for (int unit = 1; unit < 4 * pairs; ++unit) {
    const int tile = unit / 4 * 2 + unit % 2;
    if (tile >= tiles) continue;  // the last of an odd number
    if (unit >= kSlots) wait_phase(ring.empty(unit), (unit / kSlots - 1) & 1);
    barrier_expect(ring.full(unit), kTileBytes);
    const CUtensorMap* const map = unit % 4 < 2 ? &maps.k : &maps.v;
    copy_box(ring.slot(unit), map, ring.full(unit), 0, at.kv, tile * kTileRows, 0, at.b);
  }
  launch_dependents();
}

// Rows of a tile of values from `first` on become zeros: nothing has been written there, and 0 · NaN is not 0.
TENDON_DEVICE void clear_values(uint32_t tile, int first, int warpgroup) {
  for (int i = static_cast<int>(threadIdx.x) % 128; i < (kTileRows - first) * kBoxes * 8; i += 128) {
    const uint32_t to = tile + i / 8 % kBoxes * kWideBytes + (first + i / 8 / kBoxes) * 128 + i % 8 * 16;
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
  }
  shared_written();
  warpgroup_sync(2 + warpgroup);
}

// The two warpgroups take turns at asking for products, so that one's softmax runs behind the other's products.
struct Turns {
  uint32_t own, other;
  uint32_t parity;
  TENDON_DEVICE Turns(const Ring& ring, int warpgroup)
      : own(ring.turn(warpgroup)), other(ring.turn(1 - warpgroup)), parity(1 - warpgroup) {}
  TENDON_DEVICE void wait() {
    wait_phase(own, parity);
    parity ^= 1;
  }
  TENDON_DEVICE void give() const {
    if (lane() == 0) barrier_arrive(other);
  }
};

// What a warpgroup has of its rows.
struct Rows {
  float sums[4 * kStreamCols / 8];
  float maximum[2], denominator[2];
};

TENDON_DEVICE void rescale(Rows& rows, const float (&next)[2], float scale) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float factor = next[h] == -INFINITY ? 1.0F : power_of_two((rows.maximum[h] - next[h]) * scale);
    rows.maximum[h] = next[h];
    rows.denominator[h] *= factor;
#pragma unroll
    for (int g = 0; g < kStreamCols / 8; ++g) {
      rows.sums[4 * g + 2 * h] *= factor;
      rows.sums[4 * g + 2 * h + 1] *= factor;
    }
  }
}

// Every second tile.
[[maybe_unused]] TENDON_DEVICE void attend(const Ring& ring, const Args& a, const Place& at, int warpgroup,
                                           Rows& rows) {
  const int last_key = last_key_of(a, at.b);
  const int tiles = tiles_of(last_key);
  const int first_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane() / 4;
  int limit[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    limit[h] = a.visible.of(at.b, at.first_token + (first_row + 8 * h) / a.group);
    rows.maximum[h] = -INFINITY;
    rows.denominator[h] = 0;
  }
#pragma unroll
  for (int i = 0; i < 4 * kStreamCols / 8; ++i) rows.sums[i] = 0;
  const uint64_t q = swizzled_rows(ring.queries());
  uint32_t p[4][4] = {};
  Turns turns(ring, warpgroup);
  wait_phase(ring.queries_full(), 0);
  uint32_t kept[4 * kKept][4];
#pragma unroll
  for (int step = 0; step < 4 * kKept; ++step) {
    const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane() % 16;
    const uint32_t from = ring.queries() + step / 4 * kWideBytes + swizzled(row, step % 4 * 2 + lane() / 16);
    load_matrices(kept[step], static_cast<const Bf16*>(__cvta_shared_to_generic(from)));
  }
  turns.wait();
#pragma unroll 1
  for (int tile = warpgroup; tile < tiles; tile += kReaders) {
    const int unit = Ring::keys_unit(tile);
    ring.wait_full(unit);
    const uint64_t keys = swizzled_rows(ring.slot(unit));
    float logits[32];
    wgmma_begin();
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint64_t offset = box * (kWideBytes / 16) + step * kDescriptorStep;
        if (box < kKept) {
          WgmmaRegisters<8, false>::run(logits, kept[box * 4 + step], keys + offset, box + step > 0);
        } else {
          Wgmma<8>::run(logits, q + offset, keys + offset, box + step > 0);
        }
      }
    }
    wgmma_commit();
    turns.give();
    wgmma_wait<0>();  // and for the previous tile's second product
    ring.release(unit);
    if (tile >= kReaders) ring.release(Ring::values_unit(tile - kReaders));
    hold(logits);
    hold(rows.sums);
#pragma unroll
    for (int step = 0; step < 4; ++step) hold(p[step]);

    const int first_key = tile * kTileRows;
    if (first_key + kTileRows > min(limit[0], limit[1]) || a.visible.key_mask != nullptr) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = first_key + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (key >= limit[i / 2 % 2] || a.visible.masked(at.b, key)) logits[i] = -INFINITY;
      }
    }
    float next[2];
    bool grown = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      next[h] = fmaxf(rows.maximum[h], row_max(largest(logits, h)));
      grown |= next[h] * a.scale > rows.maximum[h] * a.scale + kSlack;
    }
    if (__any_sync(~0U, grown)) rescale(rows, next, a.scale);
    float shift[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) shift[h] = rows.maximum[h] == -INFINITY ? 0.0F : rows.maximum[h] * a.scale;
    exponentials(logits, a.scale, shift, p, rows.denominator);

    const int values_unit = Ring::values_unit(tile);
    ring.wait_full(values_unit);
    if (first_key + kTileRows > last_key) clear_values(ring.slot(values_unit), last_key - first_key, warpgroup);
    turns.wait();
    const uint64_t values = swizzled_columns(ring.slot(values_unit), kWideBytes);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaRegisters<kStreamCols / 8, true>::run(rows.sums, p[step], values + step * kColumnStep, 1);
    }
    wgmma_commit();
  }
  turns.give();
  wgmma_wait<0>();
  hold(rows.sums);
#pragma unroll
  for (int step = 0; step < 4; ++step) hold(p[step]);
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.denominator[h] = row_sum(rows.denominator[h]);
}

// Gets the other warpgroup's sums of half of the columns, gives its own of the other half, and writes the result.
template <int kWarpgroup, class Result>
TENDON_DEVICE void join(const Ring& ring, const Maps& maps, const Args& a, const Place& at, Rows& rows) {
  constexpr int kHalf = 2 * kStreamCols / 8;  // sums of a thread
  constexpr int kMine = kWarpgroup * kHalf;
  constexpr int kGiven = kHalf - kMine;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const auto exchanged = [&](int warpgroup, int i) {  // of four sums, in place of the ring
    return ring.slot(0) + ((warpgroup * (kHalf / 4 + 1) + i) * 128 + thread) * 16;
  };
  named_barrier(1, kReaders * 128);  // all of the ring is read
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i) {
    const float* const from = rows.sums + kGiven + 4 * i;
    store_four(exchanged(kWarpgroup, i), from[0], from[1], from[2], from[3]);
  }
  store_four(exchanged(kWarpgroup, kHalf / 4), rows.maximum[0], rows.maximum[1], rows.denominator[0],
             rows.denominator[1]);
  named_barrier(1, kReaders * 128);
  float other[4];
  load_four(exchanged(1 - kWarpgroup, kHalf / 4), other);
  float mine[2], theirs[2];  // factors of the sums
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float maximum = fmaxf(rows.maximum[h], other[h]);
    mine[h] = rows.maximum[h] == -INFINITY ? 0.0F : power_of_two((rows.maximum[h] - maximum) * a.scale);
    theirs[h] = other[h] == -INFINITY ? 0.0F : power_of_two((other[h] - maximum) * a.scale);
    const float denominator = mine[h] * rows.denominator[h] + theirs[h] * other[2 + h];
    const float inverse = denominator > 0 ? 1.0F / denominator : 0.0F;
    mine[h] *= inverse;
    theirs[h] *= inverse;
  }
  // In place of the queries, box by box as they lie.
  [[maybe_unused]] const uint32_t codes = ring.queries() + kWarpgroup * (kBoxes / 2) * kCodesBoxBytes;
  const int row = thread / 32 * 16 + lane() / 4;
  constexpr int kAtOnce = 4;  // eights of columns whose factors are asked for together
  [[maybe_unused]] float2 factors[kAtOnce][2];
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i) {
    if constexpr (kIsCodes<Result>) {
      if (i % kAtOnce == 0) {
#pragma unroll
        for (int j = 0; j < 2 * kAtOnce; ++j) {
          const int head = at.kv * a.group + (row + 8 * (j % 2)) % a.group;
          const int col = head * kStreamCols + kWarpgroup * (kStreamCols / 2) + (i + j / 2) * 8 + lane() % 4 * 2;
          factors[j / 2][j % 2] = __ldg(reinterpret_cast<const float2*>(a.factors + col));
        }
      }
    }
    load_four(exchanged(1 - kWarpgroup, i), other);
    const float* const own = rows.sums + kMine + 4 * i;
    const uint32_t box = ring.queries() + (kWarpgroup * kBoxes / 2 + i / 8) * kWideBytes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = own[2 * h] * mine[h] + other[2 * h] * theirs[h];
      const float y = own[2 * h + 1] * mine[h] + other[2 * h + 1] * theirs[h];
      if constexpr (kIsCodes<Result>) {
        const float2& two = factors[i % kAtOnce][h];
        stage_codes(codes + i / 8 * kCodesBoxBytes + swizzled_64(row + 8 * h, i % 8 / 2) + i % 2 * 8 + lane() % 4 * 2,
                    codes_of_pair<Result>(x, y, {two.x, two.y}));
      } else {
        stage_pair(box, row + 8 * h, i % 8, x, y);
      }
    }
  }
  if constexpr (kIsCodes<Result>) {
    if (at.kv == 0 && kWarpgroup == 0) write_unit_scales(a, at.b, at.first_token, thread, kTileRows / a.group);
  }
  shared_written();
  warpgroup_sync(2 + kWarpgroup);
  if (thread == 0) {
    store_box(&maps.out, kIsCodes<Result> ? codes : ring.queries() + kWarpgroup * (kTileBytes / 2), 0, at.kv * a.group,
              at.first_token, kWarpgroup * kBoxes / 2, at.b);
    stored_boxes_wait();
  }
}

template <class Result>
__global__ void __launch_bounds__(kThreads, 1) streamed_keys_kernel(const __grid_constant__ Maps maps, Args a) {
#ifdef TENDON_HOPPER
  extern __shared__ unsigned char dynamic[];
  const Ring ring{(shared_address(dynamic) + 1023) & ~1023U};
  const int b = static_cast<int>(blockIdx.y) / a.kv_heads;
  const Place at{b, static_cast<int>(blockIdx.y) % a.kv_heads, static_cast<int>(blockIdx.x) * (kTileRows / a.group)};
  if (threadIdx.x == 0) {
    prefetch_map(&maps.q);
    prefetch_map(&maps.k);
    prefetch_map(&maps.v);
    barrier_init(ring.queries_full(), 1);
    for (int unit = 0; unit < kSlots; ++unit) {
      barrier_init(ring.full(unit), 1);
      barrier_init(ring.empty(unit), 4);
    }
    for (int w = 0; w < kReaders; ++w) barrier_init(ring.turn(w), 4);
    barrier_init_done();
  }
  block_sync();
  wait_for_producers();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
  if (warpgroup < 0) {
    give_registers<24>();
    if (threadIdx.x == 0) feed(ring, maps, a, at);
  } else {
    take_registers<240>();
    Rows rows;
    attend(ring, a, at, warpgroup, rows);
    if (warpgroup == 0) {
      join<0, Result>(ring, maps, a, at, rows);
    } else {
      join<1, Result>(ring, maps, a, at, rows);
    }
  }
#endif
}

}  // namespace

void launch_streamed_keys(const Maps& wide, const Args& args, DType result, int batch, Stream stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(int64_t{args.queries} * args.group, kTileRows));
  with_result(result, [&]<class Result>(Result) {
    launch<streamed_keys_kernel<Result>>({.grid = {blocks, static_cast<unsigned>(args.kv_heads * batch)},
                                          .block = kThreads,
                                          .shared_bytes = Ring::kBytes,
                                          .stream = stream,
                                          .overlaps = true},
                                         wide, args);
  });
}

}  // namespace tendon::gpu::attention
