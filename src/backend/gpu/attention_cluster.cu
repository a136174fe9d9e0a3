// attention of few new queries over many cached keys (the action expert): formula in ops/basic_ops.h.
//   q (B, T, heads·256), k, v (B, capacity, kv_heads·256) bf16, at most 1024 keys in sight, extra_keys > 0.
//
// The queries of the heads that share a K/V head are one matrix. A cluster of eight blocks takes 16·kTiles of its rows
// and shares out the keys. Keys below key_len were written long before this operation (that is what extra_keys says),
// so they are copied to shared memory before the kernel waits for the one in front; only the new keys and the queries
// come after. Each wave takes 16 keys of the block, with a maximum of its own; the waves' probabilities meet in shared
// memory and each wave sums 32 columns of v over all of them. Every block then sends column group r to block r, which
// joins the eight parts and stores. f32 sums and softmax, fixed order: repeats give the same bytes.
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
constexpr int kChunks = kWidth / 8;
constexpr int kProbabilityPitch = kKeys + 8;
constexpr int kColumns = kWidth / kCluster;  // that a block joins and a wave sums
static_assert(kCluster == kWaves && kKeys == kWaves * 16);

struct Args {
  const Bf16 *q, *k, *v;
  Bf16* out;
  const int32_t* key_len;
  int64_t q_stride, k_stride, out_stride;
  int queries, capacity, heads, kv_heads, extra_keys, leading_block;
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
  float maxima[kWaves][kRows], sums[kWaves][kRows];
  // Written by the other blocks of the cluster: their columns of this block, their maxima and sums.
  float parts[kCluster][kRows][kColumns];
  float part_maxima[kCluster][kRows], part_sums[kCluster][kRows];
};

// exp(a - b), 0 for a = -∞.
TENDON_DEVICE float weight_of(float a, float b) { return a == -INFINITY ? 0.0F : __expf(a - b); }

template <int kTiles>
TENDON_KERNEL void __launch_bounds__(kThreads) attention_cluster_kernel(Args a) {
  TENDON_DYNAMIC_SHARED(memory);
  auto& m = *reinterpret_cast<Memory<kTiles>*>(memory);
  constexpr int kRows = 16 * kTiles;

  cluster_arrive();  // its wait, before the exchange, says that all blocks have started
  const int rank = cluster_rank();
  const int first_row = static_cast<int>(blockIdx.x) / kCluster * kRows;
  const int b = static_cast<int>(blockIdx.y) / a.kv_heads;
  const int kv = static_cast<int>(blockIdx.y) % a.kv_heads;
  const int len = a.keys_of(b, a.queries - 1);  // later queries see more
  const int keys = ((len + kCluster - 1) / kCluster + 15) / 16 * 16;
  const int first_key = rank * keys;
  const int old_keys = a.key_len[b] - first_key;  // of this block, may be below 0 or above keys

  const int64_t base = static_cast<int64_t>(b) * a.capacity * a.k_stride + kv * kWidth;
  const auto load_keys = [&](Bf16* tile, const Bf16* from, int begin, int end) {
    for (int i = begin * kChunks + static_cast<int>(threadIdx.x); i < end * kChunks; i += kThreads) {
      const int key = first_key + i / kChunks;
      const int col = i % kChunks * 8;
      const bool valid = key < len;
      copy_async(tile + i / kChunks * kPitch + col, from + base + (valid ? key * a.k_stride + col : 0), valid);
    }
  };
  const int old_end = old_keys < 0 ? 0 : old_keys < keys ? old_keys : keys;
  load_keys(m.k, a.k, 0, old_end);
  load_keys(m.v, a.v, 0, old_end);
  launch_dependents();
  wait_for_producers();

  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = first_row + i / kChunks;
    const int col = i % kChunks * 8;
    const bool valid = row < a.rows();
    copy_async(m.q + i / kChunks * kPitch + col, a.q + (valid ? a.offset(b, kv, row, a.q_stride) + col : 0), valid);
  }
  load_keys(m.k, a.k, old_end, keys);
  load_keys(m.v, a.v, old_end, keys);
  copy_commit();
  copy_wait<0>();
  block_sync();

  // This thread holds rows lane / 4 and + 8 of each fragment, columns 2·(lane mod 4) + {0, 1}.
  const int waves = keys / 16;  // that have keys
  if (wave() < waves) {
    float logits[kTiles][2][2][4] = {};  // two sums a tile: shorter chains
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
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int in_block = tile * 16 + lane() / 4 + 8 * half;
        const int row = first_row + in_block;
        const int limit = row < a.rows() ? a.keys_of(b, row / a.group()) : 0;
        float value[4];
        float maximum = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + wave() * 16 + i / 2 * 8 + lane() % 4 * 2 + i % 2;
          const float sum = logits[tile][i / 2][0][2 * half + i % 2] + logits[tile][i / 2][1][2 * half + i % 2];
          value[i] = key < limit ? sum * a.scale : -INFINITY;
          maximum = fmaxf(maximum, value[i]);
        }
        maximum = fmaxf(maximum, shuffle_xor(maximum, 1));
        maximum = fmaxf(maximum, shuffle_xor(maximum, 2));
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          value[i] = weight_of(value[i], maximum);
          sum += value[i];
        }
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        Bf16* const to = m.probabilities + in_block * kProbabilityPitch + wave() * 16 + lane() % 4 * 2;
        *reinterpret_cast<uint32_t*>(to) = pack_bf16(value[0], value[1]);
        *reinterpret_cast<uint32_t*>(to + 8) = pack_bf16(value[2], value[3]);
        if (lane() % 4 == 0) m.maxima[wave()][in_block] = maximum, m.sums[wave()][in_block] = sum;
      }
    }
  }
  block_sync();

  // Columns 32·wave .. + 31 of the block's part of the result, relative to the block's maximum.
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float maximum[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};
    float acc[kColumns / 8][4] = {};
    const int in_block = tile * 16 + lane() / 4;
    for (int i = 0; i < waves; ++i) {
      maximum[0] = fmaxf(maximum[0], m.maxima[i][in_block]);
      maximum[1] = fmaxf(maximum[1], m.maxima[i][in_block + 8]);
    }
#pragma unroll 2
    for (int i = 0; i < waves; ++i) {
      const float weight[2] = {weight_of(m.maxima[i][in_block], maximum[0]),
                               weight_of(m.maxima[i][in_block + 8], maximum[1])};
      sum[0] += weight[0] * m.sums[i][in_block], sum[1] += weight[1] * m.sums[i][in_block + 8];
      uint32_t p[4];
      load_matrices(p, m.probabilities + (tile * 16 + lane() % 16) * kProbabilityPitch + i * 16 + lane() / 16 * 8);
      const Bf16* const v_tile = m.v + (i * 16 + lane() % 16) * kPitch + wave() * kColumns + lane() / 16 * 8;
#pragma unroll
      for (int d = 0; d < kColumns; d += 16) {
        uint32_t vb[4];
        load_matrices_transposed(vb, v_tile + d);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float part[4] = {};
          mma_bf16(part, p, {vb[2 * n], vb[2 * n + 1]});
          float(&to)[4] = acc[d / 8 + n];
          to[0] += weight[0] * part[0], to[1] += weight[0] * part[1];
          to[2] += weight[1] * part[2], to[3] += weight[1] * part[3];
        }
      }
    }
    if (tile == 0) cluster_wait();
    auto& peer = *peer_shared(&m, wave());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = in_block + 8 * half;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        float* const to = &peer.parts[rank][row][n * 8 + lane() % 4 * 2];
        store_pair(to, acc[n][2 * half], acc[n][2 * half + 1]);
      }
      if (lane() % 4 == 0) peer.part_maxima[rank][row] = maximum[half], peer.part_sums[rank][row] = sum[half];
    }
  }
  cluster_arrive();
  cluster_wait();

  // Join: two columns a thread.
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns / 2; i += kThreads) {
    const int in_block = i / (kColumns / 2);
    const int col = i % (kColumns / 2) * 2;
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
      value[0] += weight * m.parts[r][in_block][col];
      value[1] += weight * m.parts[r][in_block][col + 1];
    }
    const float inverse = denominator > 0 ? 1.0F / denominator : 0.0F;
    Bf16* const out = a.out + a.offset(b, kv, row, a.out_stride) + rank * kColumns + col;
    *reinterpret_cast<uint32_t*>(out) = pack_bf16(value[0] * inverse, value[1] * inverse);
  }
}

template <int kTiles>
void launch_tiles(const Args& args, int64_t rows, unsigned groups, Stream stream) {
  launch<attention_cluster_kernel<kTiles>>(
      {.grid = dim3(static_cast<unsigned>(ceil_div(rows, 16 * kTiles)) * kCluster, groups),
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
                  .scale = a.scale};
  const int64_t rows = a.q.shape[1] * (a.heads / a.kv_heads);
  const auto groups = static_cast<unsigned>(a.q.shape[0] * a.kv_heads);
  if (rows * groups <= 120) {  // eight clusters of eight blocks: short rows spread over more blocks
    launch_tiles<1>(args, rows, groups, stream);
  } else {
    launch_tiles<2>(args, rows, groups, stream);
  }
}

}  // namespace tendon::gpu
