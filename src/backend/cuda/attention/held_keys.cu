// attention with few keys: softmax(scale · q·kᵀ) · v with all keys of a head in shared memory; formula in
// ops/basic_ops.h. The vision tower's.
//   q, out (B, T, heads·D), k, v (B, C, heads·D) bf16, 64 < D <= 80, C <= 256, all keys visible; sums f32; out also
//   codes (attention_to_codes).
// A warpgroup has 64 queries of a head, a block one or two of them. One thread asks for all copies at the start; then
// logits of all keys (columns 64 to 80 as a step of their own, from boxes of 16 columns), the rows' largest, and in
// pieces of 64 keys the exponentials, which stay in registers as the second product's operand: one piece's are computed
// while another's product runs. Reads q once, and k and v once for every block of a head, from the second-level cache.
#include "backend/cuda/attention/softmax.cuh"

namespace tendon::gpu::attention {
namespace {

constexpr int kPieces = kHeldKeys / kTileRows;

template <int kWarpgroups>
struct Held {
  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeys + kPieces * kWideBytes;
  static constexpr int kQueries = kValues + kPieces * kWideBytes;
  static constexpr int kKeysRest = kQueries + kWarpgroups * kWideBytes;
  static constexpr int kValuesRest = kKeysRest + kPieces * kRestBytes;
  static constexpr int kQueriesRest = kValuesRest + kPieces * kRestBytes;
  static constexpr int kBarriers = kQueriesRest + kWarpgroups * kRestBytes;  // keys' halves, then values'
  static constexpr int kFactors = kBarriers + 4 * 8;  // of the head's columns, where codes are written
  static constexpr int kBytes = kFactors + (kWideCols + kRestCols) * 4 + 1024;
};

// Half of the keys or values: two pieces of 64.
template <int kWarpgroups>
TENDON_DEVICE void copy_half(uint32_t shared, int part, const CUtensorMap& wide, const CUtensorMap& rest, int half,
                             int head, int b) {
  using H = Held<kWarpgroups>;
  const uint32_t barrier = shared + H::kBarriers + (2 * part + half) * 8;
#pragma unroll
  for (int piece = 2 * half; piece < 2 * half + 2; ++piece) {
    copy_box<false>(shared + (part == 0 ? H::kKeys : H::kValues) + piece * kWideBytes, &wide, barrier, 0, 0, head,
                    piece * kTileRows, b);
    copy_box<false>(shared + (part == 0 ? H::kKeysRest : H::kValuesRest) + piece * kRestBytes, &rest, barrier, 0,
                    kWideCols, head, piece * kTileRows, b);
  }
}

// Codes of a warpgroup's rows: gathered at `rows`, from where they leave by eight. Factors come from shared memory.
constexpr int kCodesPitch = kWideCols + kRestCols + 8;
template <class Result>
TENDON_DEVICE void write_codes(uint32_t rows, uint32_t factors, const Args& a, const float (&sums)[32],
                               const float (&rest_sums)[8], const float (&inverse)[2], int warpgroup, int head,
                               int first_query, int b) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int row = thread / 32 * 16 + lane() / 4;
#pragma unroll
  for (int g = 0; g < 10; ++g) {
    if (g * 8 >= a.head_cols) continue;
    const float* const values = g < 8 ? sums + 4 * g : rest_sums + 4 * (g - 8);
    const int col = g * 8 + lane() % 4 * 2;
    float of_columns[2];
    load_two(factors + col * 4, of_columns);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      stage_codes(rows + (row + 8 * h) * kCodesPitch + col,
                  codes_of_pair<Result>(values[2 * h] * inverse[h], values[2 * h + 1] * inverse[h], of_columns));
    }
  }
  warpgroup_sync(1 + warpgroup);
  const int octets = a.head_cols / 8;
  for (int i = thread; i < kTileRows * octets; i += 128) {
    const int token = i / octets;
    if (first_query + token >= a.queries) break;
    uint2 eight;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(eight.x), "=r"(eight.y)
                 : "r"(rows + token * kCodesPitch + i % octets * 8)
                 : "memory");
    const int64_t at = (static_cast<int64_t>(b) * a.queries + first_query + token) * a.codes_stride;
    *reinterpret_cast<uint2*>(static_cast<uint8_t*>(a.codes) + at + head * a.head_cols + i % octets * 8) = eight;
  }
  if (head == 0) write_unit_scales(a, b, first_query, thread, kTileRows);
}

template <int kWarpgroups, class Result>
__global__ void __launch_bounds__(128 * kWarpgroups, 1)
    held_keys_kernel(const __grid_constant__ Maps wide, const __grid_constant__ Maps rest, Args a) {
#ifdef TENDON_HOPPER
  using H = Held<kWarpgroups>;
  extern __shared__ unsigned char dynamic[];
  const uint32_t shared = (shared_address(dynamic) + 1023) & ~1023U;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int head = static_cast<int>(blockIdx.y);
  const int b = static_cast<int>(blockIdx.z);
  const int first_query = (static_cast<int>(blockIdx.x) * kWarpgroups + warpgroup) * kTileRows;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) barrier_init(shared + H::kBarriers + i * 8, 1);
    barrier_init_done();
    constexpr int kHalfBytes = 2 * (kWideBytes + kRestBytes);
    const uint32_t first = shared + H::kBarriers;
    barrier_expect(first, kHalfBytes + kWarpgroups * (kWideBytes + kRestBytes));
    for (int i = 1; i < 4; ++i) barrier_expect(first + i * 8, kHalfBytes);
    wait_for_producers();
    for (int w = 0; w < kWarpgroups; ++w) {
      const int query = first_query + w * kTileRows;
      copy_box<false>(shared + H::kQueries + w * kWideBytes, &wide.q, first, 0, 0, head, query, b);
      copy_box<false>(shared + H::kQueriesRest + w * kRestBytes, &rest.q, first, 0, kWideCols, head, query, b);
    }
    for (int half = 0; half < 2; ++half) copy_half<kWarpgroups>(shared, 0, wide.k, rest.k, half, head, b);
    for (int half = 0; half < 2; ++half) copy_half<kWarpgroups>(shared, 1, wide.v, rest.v, half, head, b);
    launch_dependents();
  }
  if constexpr (kIsCodes<Result>) {
    const int col = static_cast<int>(threadIdx.x) - 32;  // beside the thread that copies
    if (col >= 0 && col < a.head_cols)
      store_shared(shared + H::kFactors + col * 4, a.factors[head * a.head_cols + col]);
  }
  block_sync();

  const uint32_t q = shared + H::kQueries + warpgroup * kWideBytes;
  const uint32_t q_rest = shared + H::kQueriesRest + warpgroup * kRestBytes;
  float logits[2][64];  // of 128 keys each
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    wait_phase(shared + H::kBarriers + half * 8, 0);
    const uint64_t keys = swizzled_rows(shared + H::kKeys + half * 2 * kWideBytes);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kWideCols / 16; ++step) {
      Wgmma<16>::run(logits[half], swizzled_rows(q) + step * kDescriptorStep, keys + step * kDescriptorStep, step > 0);
    }
    Wgmma<16>::run(logits[half], narrow_rows(q_rest), narrow_rows(shared + H::kKeysRest + half * 2 * kRestBytes), 1);
    wgmma_commit();
  }
  float shift[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 0) {
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    hold(logits[half]);
    if (a.visible.capacity < (half + 1) * 128) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int key = half * 128 + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (key >= a.visible.capacity) logits[half][i] = -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      shift[h] = fmaxf(shift[h], fmaxf(largest(logits[half], h), largest(logits[half] + 32, h)));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) shift[h] = row_max(shift[h]) * a.scale;

  float sums[32], rest_sums[8];
  float denominator[2] = {0, 0};
  uint32_t p[kPieces][4][4];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    exponentials(logits[piece / 2] + piece % 2 * 32, a.scale, shift, p[piece], denominator);
    if (piece % 2 == 0) wait_phase(shared + H::kBarriers + (2 + piece / 2) * 8, 0);
    const uint64_t values = swizzled_columns(shared + H::kValues + piece * kWideBytes, kWideBytes);
    const uint64_t values_rest = narrow_columns(shared + H::kValuesRest + piece * kRestBytes);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaRegisters<8, true>::run(sums, p[piece][step], values + step * kColumnStep, piece + step > 0);
      WgmmaRegisters<2, true>::run(rest_sums, p[piece][step], values_rest + step * kNarrowColumnStep, piece + step > 0);
    }
    wgmma_commit();
  }
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) inverse[h] = 1.0F / row_sum(denominator[h]);
  wgmma_wait<0>();
  hold(sums);
  hold(rest_sums);
#pragma unroll
  for (int i = 0; i < kPieces * 4; ++i) hold(p[i / 4][i % 4]);

  // In place of the queries, which all of the warpgroup have read.
  warpgroup_sync(1 + warpgroup);
  if constexpr (kIsCodes<Result>) {
    write_codes<Result>(q, shared + H::kFactors, a, sums, rest_sums, inverse, warpgroup, head, first_query, b);
    return;
  }
  const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane() / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      stage_pair(q, row + 8 * h, g, sums[4 * g + 2 * h] * inverse[h], sums[4 * g + 2 * h + 1] * inverse[h]);
    }
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      stage_rest_pair(q_rest, row + 8 * h, g, rest_sums[4 * g + 2 * h] * inverse[h],
                      rest_sums[4 * g + 2 * h + 1] * inverse[h]);
    }
  }
  shared_written();
  warpgroup_sync(1 + warpgroup);
  if (threadIdx.x % 128 == 0) {
    store_box(&wide.out, q, 0, head, first_query, b);
    store_box(&rest.out, q_rest, kWideCols, head, first_query, b);
    stored_boxes_wait();
  }
#endif
}

template <int kWarpgroups, class Result>
void launch_blocks(const Maps& wide, const Maps& rest, const Args& args, int batch, Stream stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.queries, kWarpgroups * kTileRows));
  launch<held_keys_kernel<kWarpgroups, Result>>(
      {.grid = {blocks, static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(batch)},
       .block = 128 * kWarpgroups,
       .shared_bytes = Held<kWarpgroups>::kBytes,
       .stream = stream,
       .overlaps = true},
      wide, rest, args);
}

}  // namespace

void launch_held_keys(const Maps& wide, const Maps& rest, const Args& args, DType result, int batch, Stream stream) {
  const int64_t tiles = ceil_div(args.queries, kTileRows) * args.kv_heads * batch;
  with_result(result, [&]<class Result>(Result) {
    if (tiles <= 132) {
      launch_blocks<1, Result>(wide, rest, args, batch, stream);
    } else {
      launch_blocks<2, Result>(wide, rest, args, batch, stream);
    }
  });
}

}  // namespace tendon::gpu::attention
