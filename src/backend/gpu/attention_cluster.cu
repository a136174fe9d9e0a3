// attention of few new queries over many cached keys (the action expert): formula in ops/basic_ops.h.
//   q (B, T, heads·256), k, v (B, capacity, kv_heads·256) bf16, at most 1024 keys in sight, extra_keys > 0.
//
// The queries of the heads that share a K/V head are one matrix. A cluster of eight blocks shares out the keys and
// takes 16·kTiles of its rows, or several times as many one after the other. Keys below key_len were written long
// before this operation (that is what extra_keys says), so they are copied to shared memory before the kernel waits for
// the one in front; only the new keys and the queries come after. Each wave takes 16 keys of the block; the rows'
// maxima over the block and then the probabilities meet in shared memory, and each wave sums 32 columns of v over all
// keys. Every block then sends column group r to block r, which joins the eight parts and stores. f32 sums and softmax,
// fixed order: repeats give the same bytes.
#include <algorithm>

#include "backend/gpu/aligned_rows.h"
#include "backend/gpu/device/cluster.cuh"
#include "backend/gpu/device/mma.cuh"
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

constexpr int kCluster = 8;
constexpr int kWaves = 8;
constexpr int kThreads = kWaves * kWarpSize;
constexpr int kWidth = 256;
constexpr int kKeys = 128;  // of a block
constexpr int kPitch = kWidth + 8;
static_assert(kWidth == kWarpSize * 8);  // a lane has 16 bytes of a row
constexpr int kProbabilityPitch = kKeys + 8;
constexpr int kColumns = kWidth / kCluster;  // that a block joins and a wave sums
static_assert(kCluster == kWaves && kKeys == kWaves * 16);

struct Args {
  const Bf16 *q, *k, *v;
  Bf16* out;
  const int32_t* key_len;
  int64_t q_stride, k_stride, out_stride;
  int queries, capacity, heads, kv_heads, extra_keys, leading_block;
  int row_groups;  // of 16·kTiles rows, of a cluster
  float scale;

  TENDON_DEVICE int group() const { return heads / kv_heads; }
  TENDON_DEVICE int rows() const { return queries * group(); }
  TENDON_DEVICE int keys_of(int b, int t) const {
    const int len = key_len[b] + (t < leading_block ? leading_block : extra_keys);
    return len < capacity ? len : capacity;
  }
  TENDON_DEVICE int64_t offset(int b, int kv, int r, int64_t stride) const {
    return (static_cast<int64_t>(b) * queries + r / group()) * stride + (kv * group() + r % group()) * kWidth;
  }
};

template <int kTiles>
struct Memory {
  static constexpr int kRows = 16 * kTiles;
  Bf16 k[kKeys * kPitch];
  Bf16 v[kKeys * kPitch];
  Bf16 q[kRows * kPitch];
  Bf16 probabilities[kRows * kProbabilityPitch];
  float maxima[kRows][kWaves], sums[kRows][kWaves];
  // Written by the other blocks of the cluster: their columns of this block, their maxima and sums.
  float parts[kCluster][kRows][kColumns];  // a row's columns as turned() says
  float part_maxima[kCluster][kRows], part_sums[kCluster][kRows];
};

// Where column `col` of a row's part lies: four rows that are written together come to different banks.
TENDON_DEVICE int turned(int row, int col) { return (col + row % 4 * (kColumns / 4)) % kColumns; }

// exp(a - b), 0 for a = -∞.
TENDON_DEVICE float weight_of(float a, float b) { return a == -INFINITY ? 0.0F : __expf(a - b); }

// Of the waves of a block.
TENDON_DEVICE float largest_of(const float (&of_waves)[kWaves]) {
  const Vec<float> low = load_vec(of_waves);
  const Vec<float> high = load_vec(of_waves + 4);
  return fmaxf(fmaxf(fmaxf(low.v[0], low.v[1]), fmaxf(low.v[2], low.v[3])),
               fmaxf(fmaxf(high.v[0], high.v[1]), fmaxf(high.v[2], high.v[3])));
}
TENDON_DEVICE float sum_of(const float (&of_waves)[kWaves]) {
  const Vec<float> low = load_vec(of_waves);
  const Vec<float> high = load_vec(of_waves + 4);
  return ((low.v[0] + low.v[1]) + (low.v[2] + low.v[3])) + ((high.v[0] + high.v[1]) + (high.v[2] + high.v[3]));
}

template <int kTiles>
TENDON_KERNEL void __launch_bounds__(kThreads) attention_cluster_kernel(Args a) {
  TENDON_DYNAMIC_SHARED(memory);
  auto& m = *reinterpret_cast<Memory<kTiles>*>(memory);
  constexpr int kRows = 16 * kTiles;

  cluster_arrive();  // its wait, before the exchange, says that all blocks have started
  const int rank = cluster_rank();
  const int begin_row = static_cast<int>(blockIdx.x) / kCluster * kRows * a.row_groups;
  const int group_end = begin_row + kRows * a.row_groups;
  const int end_row = group_end < a.rows() ? group_end : a.rows();
  const int b = static_cast<int>(blockIdx.y) / a.kv_heads;
  const int kv = static_cast<int>(blockIdx.y) % a.kv_heads;
  const int len = a.keys_of(b, a.queries - 1);  // later queries see more
  const int keys = ((len + kCluster - 1) / kCluster + 15) / 16 * 16;
  const int first_key = rank * keys;
  const int old_keys = a.key_len[b] - first_key;  // of this block, may be below 0 or above keys

  const int64_t base = (static_cast<int64_t>(b) * a.capacity + first_key) * a.k_stride + kv * kWidth + lane() * 8;
  const auto load_keys = [&](Bf16* tile, const Bf16* from, int begin, int end) {  // a wave a key
    for (int i = begin + wave(); i < end; i += kWaves) {
      const bool valid = first_key + i < len;
      copy_async(tile + i * kPitch + lane() * 8, from + (valid ? base + i * a.k_stride : 0), valid);
    }
  };
  const int old_end = old_keys < 0 ? 0 : old_keys < keys ? old_keys : keys;
  load_keys(m.k, a.k, 0, old_end);
  load_keys(m.v, a.v, 0, old_end);
  launch_dependents();
  wait_for_producers();

  const auto load_queries = [&](int first_row) {
    for (int i = wave(); i < kRows; i += kWaves) {
      const int row = first_row + i;
      const bool valid = row < end_row;
      copy_async(m.q + i * kPitch + lane() * 8, a.q + (valid ? a.offset(b, kv, row, a.q_stride) + lane() * 8 : 0),
                 valid);
    }
    copy_commit();
  };
  load_keys(m.k, a.k, old_end, keys);
  load_keys(m.v, a.v, old_end, keys);
  load_queries(begin_row);

  // This thread holds rows lane / 4 and + 8 of each fragment, columns 2·(lane mod 4) + {0, 1}.
  const int waves = keys / 16;  // that have keys
#pragma unroll 1
  for (int first_row = begin_row; first_row < end_row; first_row += kRows) {
    copy_wait<0>();
    block_sync();
    float logits[kTiles][2][2][4] = {};  // two sums a tile: shorter chains
    if (wave() < waves) {
      const Bf16* const k_tile = m.k + (wave() * 16 + lane() % 8 + lane() / 16 * 8) * kPitch + lane() / 8 % 2 * 8;
#pragma unroll
      for (int d = 0; d < kWidth; d += 16) {
        uint32_t kb[4];
        load_matrices(kb, k_tile + d);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t qa[4];
          load_matrices(qa, m.q + (tile * 16 + lane() % 16) * kPitch + d + lane() / 16 * 8);
          mma_bf16(logits[tile][0][d / 16 % 2], qa, {kb[0], kb[1]});
          mma_bf16(logits[tile][1][d / 16 % 2], qa, {kb[2], kb[3]});
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int in_block = tile * 16 + lane() / 4 + 8 * half;
        const int row = first_row + in_block;
        const int limit = row < a.rows() ? a.keys_of(b, row / a.group()) : 0;
        float maximum = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + wave() * 16 + i / 2 * 8 + lane() % 4 * 2 + i % 2;
          float& value = logits[tile][i / 2][0][2 * half + i % 2];
          value =
              wave() < waves && key < limit ? (value + logits[tile][i / 2][1][2 * half + i % 2]) * a.scale : -INFINITY;
          maximum = fmaxf(maximum, value);
        }
        maximum = fmaxf(maximum, shuffle_xor(maximum, 1));
        maximum = fmaxf(maximum, shuffle_xor(maximum, 2));
        if (lane() % 4 == 0) m.maxima[in_block][wave()] = maximum;
      }
    }
    block_sync();
    if (first_row + kRows < end_row) load_queries(first_row + kRows);  // the others were read
    float maxima[kTiles][2];                                           // of the block
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int in_block = tile * 16 + lane() / 4 + 8 * half;
        const float maximum = largest_of(m.maxima[in_block]);
        maxima[tile][half] = maximum;
        float value[4];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          value[i] = weight_of(logits[tile][i / 2][0][2 * half + i % 2], maximum);
          sum += value[i];
        }
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (lane() % 4 == 0) m.sums[in_block][wave()] = sum;
        Bf16* const to = m.probabilities + in_block * kProbabilityPitch + wave() * 16 + lane() % 4 * 2;
        *reinterpret_cast<uint32_t*>(to) = pack_bf16(value[0], value[1]);
        *reinterpret_cast<uint32_t*>(to + 8) = pack_bf16(value[2], value[3]);
      }
    }
    block_sync();

    // Columns 32·wave .. + 31 of the block's part of the result.
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float acc[kColumns / 8][4] = {};
      const int in_block = tile * 16 + lane() / 4;
#pragma unroll 2
      for (int i = 0; i < waves; ++i) {
        uint32_t p[4];
        load_matrices(p, m.probabilities + (tile * 16 + lane() % 16) * kProbabilityPitch + i * 16 + lane() / 16 * 8);
        const Bf16* const v_tile = m.v + (i * 16 + lane() % 16) * kPitch + wave() * kColumns + lane() / 16 * 8;
#pragma unroll
        for (int d = 0; d < kColumns; d += 16) {
          uint32_t vb[4];
          load_matrices_transposed(vb, v_tile + d);
          mma_bf16(acc[d / 8], p, {vb[0], vb[1]});
          mma_bf16(acc[d / 8 + 1], p, {vb[2], vb[3]});
        }
      }
      if (tile == 0) cluster_wait();
      auto& peer = *peer_shared(&m, wave());
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = in_block + 8 * half;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          float* const to = &peer.parts[rank][row][turned(row, n * 8 + lane() % 4 * 2)];
          store_pair(to, acc[n][2 * half], acc[n][2 * half + 1]);
        }
        if (lane() % 4 == 0) {
          peer.part_maxima[rank][row] = maxima[tile][half];
          peer.part_sums[rank][row] = sum_of(m.sums[row]);
        }
      }
    }
    cluster_arrive();
    cluster_wait();

    // Join: two columns a thread.
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns / 2; i += kThreads) {
      const int in_block = i / (kColumns / 2);
      const int col = i % (kColumns / 2) * 2;
      const int at = turned(in_block, col);
      const int row = first_row + in_block;
      if (row >= a.rows()) continue;
      float maximum = -INFINITY;
#pragma unroll
      for (int r = 0; r < kCluster; ++r) maximum = fmaxf(maximum, m.part_maxima[r][in_block]);
      float denominator = 0;
      float value[2] = {0, 0};
#pragma unroll
      for (int r = 0; r < kCluster; ++r) {
        const float weight = weight_of(m.part_maxima[r][in_block], maximum);
        denominator += weight * m.part_sums[r][in_block];
        value[0] += weight * m.parts[r][in_block][at];
        value[1] += weight * m.parts[r][in_block][at + 1];
      }
      const float inverse = denominator > 0 ? 1.0F / denominator : 0.0F;
      Bf16* const out = a.out + a.offset(b, kv, row, a.out_stride) + rank * kColumns + col;
      *reinterpret_cast<uint32_t*>(out) = pack_bf16(value[0] * inverse, value[1] * inverse);
    }
    wave_sync();
    if (first_row + kRows < end_row) cluster_arrive();  // the others may send again
  }
}

template <int kTiles>
void launch_tiles(Args args, int64_t rows, int64_t groups, int row_groups, Stream stream) {
  args.row_groups = row_groups;
  const int64_t clusters = ceil_div(rows, int64_t{16} * kTiles * row_groups);
  launch<attention_cluster_kernel<kTiles>>(
      {.grid = dim3(static_cast<unsigned>(clusters * kCluster), static_cast<unsigned>(groups)),
       .block = dim3(kThreads),
       .shared_bytes = sizeof(Memory<kTiles>),
       .stream = stream,
       .overlaps = true,
       .cluster = kCluster},
      args);
}

}  // namespace

bool takes_attention_cluster(const Attention& a) {
  const int64_t rows = a.q.shape[1] * (a.heads / a.kv_heads);
  return has_clusters() && a.extra_keys > 0 && a.key_len.defined() && !a.key_mask.defined() &&
         a.q.cols() == a.heads * kWidth && a.k.shape[1] <= kCluster * kKeys && rows <= 1024 && a.q.elements() > 0 &&
         aligned_rows(a.q) && aligned_rows(a.k) && aligned_rows(a.v) && aligned_rows(a.out) &&
         a.k.row_stride == a.v.row_stride;
}

void launch_attention_cluster(const Attention& a, Stream stream) {
  const Args args{.q = a.q.as<Bf16>(),
                  .k = a.k.as<Bf16>(),
                  .v = a.v.as<Bf16>(),
                  .out = a.out.as<Bf16>(),
                  .key_len = a.key_len.as<int32_t>(),
                  .q_stride = a.q.row_stride,
                  .k_stride = a.k.row_stride,
                  .out_stride = a.out.row_stride,
                  .queries = static_cast<int>(a.q.shape[1]),
                  .capacity = static_cast<int>(a.k.shape[1]),
                  .heads = a.heads,
                  .kv_heads = a.kv_heads,
                  .extra_keys = a.extra_keys,
                  .leading_block = a.leading_block,
                  .row_groups = 1,
                  .scale = a.scale};
  const int64_t rows = a.q.shape[1] * (a.heads / a.kv_heads);
  const int64_t groups = a.q.shape[0] * a.kv_heads;
  constexpr int64_t kAtOnce = 15;  // clusters, of which a block fills a multiprocessor
  const int64_t tiles = ceil_div(rows, 32);
  if (rows * groups <= 120) {  // eight clusters of eight blocks: short rows spread over more blocks
    launch_tiles<1>(args, rows, groups, 1, stream);
  } else if (tiles * groups <= kAtOnce) {
    launch_tiles<2>(args, rows, groups, 1, stream);
  } else {  // keys that were brought in serve twice, or for all rows, rather than that clusters wait for each other
    launch_tiles<2>(args, rows, groups, groups > 2 * kAtOnce ? static_cast<int>(tiles) : 2, stream);
  }
}

}  // namespace tendon::gpu
