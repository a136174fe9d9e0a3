// Products of up to 64 bf16 rows with their norm before and their tail behind, one kernel each (body: few_rows.cuh):
//   norm_qkv_rope      h = norm(x); q = rope(h·wqᵀ), k_cache[row] = rope(h·wkᵀ), v_cache[row] = h·wvᵀ
//   norm_gate_up_gelu  h = norm(x); out = round(gelu(h·w_gateᵀ)) · (h·w_upᵀ)
//   linear_residual    out = residual + (x·wᵀ + bias), with a gate residual + (x·wᵀ + bias) · gate
// x, out bf16; bias, gain, shift, gate f32; f32 sums, rounded where the composition in ops/compose.cc stores a value.
// Bytes moved: the weights once. Depth with a norm ≤ 1024, otherwise any multiple of 8. What is read before the kernels
// in front have ended is constant during a call: weights, norms, gates, positions, cache rows.
#include "backend/gpu/few_rows.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

constexpr int kNormDepth = 1024;

struct Nothing {};

constexpr int groups_of(int wanted) { return wanted < kFewRowsGroups ? wanted : kFewRowsGroups; }

// Blocks of 8·kPairs pairs of outputs: columns of a head's first half with their partners, or 16·kPairs columns of v.
template <FewRowsNorm kNormKind, int kRowGroups>
struct QkvJob {
  static constexpr int kGroups = groups_of(kRowGroups), kWaves = 8, kPairs = kRowGroups, kTiles = 2 * kPairs;
  static constexpr int kBlocks = 4, kRowBlocks = 4;
  static constexpr FewRowsNorm kNorm = kNormKind;
  struct Constants {
    float cosine[kPairs], sine[kPairs];
    int64_t target;  // row of q or of the cache; below 0: none
  };

  FewRowsInput input;
  const Bf16 *wq, *wk, *wv;
  Bf16 *q, *k, *v;
  int64_t q_stride, cache_stride;
  const int32_t *positions, *cache_rows;
  const float* table;
  int q_units, k_units, half;

  // A unit is 16 outputs: two tiles of the same part.
  TENDON_DEVICE int unit(int pair) const { return static_cast<int>(blockIdx.x) * kPairs + pair; }
  TENDON_DEVICE bool is_q(int pair) const { return unit(pair) < q_units; }
  TENDON_DEVICE bool rotates(int pair) const { return unit(pair) < q_units + k_units; }
  // First column of the unit within q, k or v; the second tile of a rotated unit lies `half` further.
  TENDON_DEVICE int column(int pair) const {
    if (!rotates(pair)) return (unit(pair) - q_units - k_units) * 16;
    const int in_part = is_q(pair) ? unit(pair) : unit(pair) - q_units;
    const int per_head = half / 8;
    return in_part / per_head * 2 * half + in_part % per_head * 8;
  }
  TENDON_DEVICE int tile_step(int pair) const { return rotates(pair) ? half : 8; }
  TENDON_DEVICE int64_t weight_stride() const { return input.depth; }
  TENDON_DEVICE const Bf16* weights(int tile) const {
    const int pair = tile / 2;
    const Bf16* const part = is_q(pair) ? wq : rotates(pair) ? wk : wv;
    return part + static_cast<int64_t>(column(pair) + tile % 2 * tile_step(pair)) * input.depth;
  }

  // Of the group's 256 threads one in two has a row and a column of the first tile of a unit.
  TENDON_DEVICE static bool takes_part(FewRowsPlace at) { return at.thread < 128; }
  TENDON_DEVICE static int row(FewRowsPlace at) { return at.first_row + at.thread / 8; }
  TENDON_DEVICE Constants constants(FewRowsPlace at) const {
    Constants c{};
    c.target = -1;
    if (!takes_part(at) || row(at) >= input.rows) return c;
    c.target = is_q(0) ? row(at) : cache_rows[row(at)];
    const float* const angles = table + static_cast<int64_t>(positions[row(at)]) * 2 * half;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int angle = column(pair) % (2 * half) + at.thread % 8;
      c.cosine[pair] = rotates(pair) ? angles[angle] : 1.0F;
      c.sine[pair] = rotates(pair) ? angles[angle + half] : 0.0F;
    }
    return c;
  }
  TENDON_DEVICE Nothing early(FewRowsPlace) const { return {}; }
  TENDON_DEVICE void finish(FewRowsPlace at, const float* sums, const Constants& c, Nothing) const {
    if (c.target < 0) return;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int col = pair * 16 + at.thread % 8;
      const float a = rounded<Bf16>(few_rows_sum<QkvJob>(sums, at.thread / 8, col));
      const float b = rounded<Bf16>(few_rows_sum<QkvJob>(sums, at.thread / 8, col + 8));
      Bf16* const part = is_q(pair) ? q : rotates(pair) ? k : v;
      Bf16* const out = part + c.target * (is_q(pair) ? q_stride : cache_stride) + column(pair) + at.thread % 8;
      out[0] = narrow<Bf16>(a * c.cosine[pair] - b * c.sine[pair]);
      out[tile_step(pair)] = narrow<Bf16>(b * c.cosine[pair] + a * c.sine[pair]);
    }
  }
};

// Blocks of 16·kRowGroups outputs: tiles of gate rows, then the same tiles of up rows.
template <FewRowsNorm kNormKind, int kRowGroups>
struct GateUpJob {
  static constexpr int kGroups = groups_of(kRowGroups), kWaves = 8, kColumns = 16 * kRowGroups, kTiles = kColumns / 4;
  static constexpr int kBlocks = 4, kRowBlocks = 4;
  static constexpr FewRowsNorm kNorm = kNormKind;

  FewRowsInput input;
  const Bf16 *gate, *up;
  Bf16* out;
  int64_t out_stride;

  TENDON_DEVICE int column() const { return static_cast<int>(blockIdx.x) * kColumns; }
  TENDON_DEVICE int64_t weight_stride() const { return input.depth; }
  TENDON_DEVICE const Bf16* weights(int tile) const {
    return (tile < kTiles / 2 ? gate : up) + static_cast<int64_t>(column() + tile % (kTiles / 2) * 8) * input.depth;
  }
  TENDON_DEVICE Nothing constants(FewRowsPlace) const { return {}; }
  TENDON_DEVICE Nothing early(FewRowsPlace) const { return {}; }
  TENDON_DEVICE void finish(FewRowsPlace at, const float* sums, Nothing, Nothing) const {
#pragma unroll
    for (int i = at.thread; i < 16 * kColumns; i += kWaves * kWarpSize) {
      const int row = i / kColumns;
      const int col = i % kColumns;
      if (at.first_row + row >= input.rows) return;
      const float g = rounded<Bf16>(few_rows_sum<GateUpJob>(sums, row, col));
      const float u = rounded<Bf16>(few_rows_sum<GateUpJob>(sums, row, col + kColumns));
      out[(at.first_row + row) * out_stride + column() + col] = narrow<Bf16>(rounded<Bf16>(gelu_tanh(g)) * u);
    }
  }
};

// Blocks of eight outputs.
template <int kDepthBlocks, int kRowGroups>
struct ResidualJob {
  static constexpr int kGroups = groups_of(kRowGroups), kWaves = 16, kTiles = 1, kBlocks = kDepthBlocks, kRowBlocks = 4;
  static constexpr FewRowsNorm kNorm = FewRowsNorm::kNone;
  struct Constants {
    float bias, gate;
  };
  struct Early {
    float residual;
  };

  FewRowsInput input;
  const Bf16* w;
  int64_t w_stride;
  const float *bias, *gate;
  const Bf16* residual;
  Bf16* out;
  int64_t residual_stride, out_stride;

  TENDON_DEVICE int column() const { return static_cast<int>(blockIdx.x) * 8; }
  TENDON_DEVICE int64_t weight_stride() const { return w_stride; }
  TENDON_DEVICE const Bf16* weights(int) const { return w + column() * w_stride; }

  TENDON_DEVICE static int row(FewRowsPlace at) { return at.first_row + at.thread / 8; }
  TENDON_DEVICE int col(FewRowsPlace at) const { return column() + at.thread % 8; }
  TENDON_DEVICE bool takes_part(FewRowsPlace at) const { return at.thread < 128 && row(at) < input.rows; }
  TENDON_DEVICE Constants constants(FewRowsPlace at) const {
    return {bias == nullptr ? 0.0F : bias[col(at)], gate == nullptr ? 1.0F : rounded<Bf16>(gate[col(at)])};
  }
  TENDON_DEVICE Early early(FewRowsPlace at) const {
    return {takes_part(at) ? load_fresh_value(residual + row(at) * residual_stride + col(at)) : 0.0F};
  }
  TENDON_DEVICE void finish(FewRowsPlace at, const float* sums, const Constants& c, const Early& e) const {
    if (!takes_part(at)) return;
    float value = rounded<Bf16>(few_rows_sum<ResidualJob>(sums, at.thread / 8, at.thread % 8) + c.bias);
    if (gate != nullptr) value = rounded<Bf16>(value * c.gate);
    out[row(at) * out_stride + col(at)] = narrow<Bf16>(e.residual + value);
  }
};

FewRowsInput input_of(const Tensor& x, const NormParams& norm) {
  return {.x = x.as<Bf16>(),
          .x_stride = x.row_stride,
          .rows = static_cast<int>(x.rows()),
          .depth = static_cast<int>(x.cols()),
          .gain = (norm.adaptive() ? norm.scale : norm.gain).as<float>(),
          .shift = norm.shift.as<float>(),
          .eps = norm.eps};
}

bool few(const Tensor& x) { return x.rows() > 0 && x.rows() <= kFewRowsMax && rows_of_octets(x); }

// One group of waves for up to 16 rows; two, with blocks twice as wide, for more where the outputs divide.
template <template <FewRowsNorm, int> class Job, class Run>
void with_job(bool adaptive, bool wide, const Run& run) {
  if (adaptive) {
    wide ? run(Job<FewRowsNorm::kAdaRms, 2>{}) : run(Job<FewRowsNorm::kAdaRms, 1>{});
  } else {
    wide ? run(Job<FewRowsNorm::kRms, 2>{}) : run(Job<FewRowsNorm::kRms, 1>{});
  }
}

}  // namespace

bool takes_few_rows(const NormQkvRope& a) {
  const int64_t width = a.table.cols();
  const auto fits = [&](const Tensor& w) {
    return !w.defined() || (is_constant(w) && aligned_rows(w) && w.contiguous() && w.rows() % 16 == 0);
  };
  return few(a.x) && is_constant(a.norm) && a.x.cols() <= kNormDepth && width % 16 == 0 && fits(a.wq) && fits(a.wk) &&
         fits(a.wv) && (!a.q.defined() || a.q.dtype == DType::kBf16) && a.k_cache.dtype == DType::kBf16 &&
         a.v_cache.dtype == DType::kBf16 && a.k_cache.row_stride == a.v_cache.row_stride;
}

void launch_few_rows_norm_qkv_rope(const NormQkvRope& a, Stream stream) {
  const auto units = [](const Tensor& w) { return w.defined() ? static_cast<int>(w.rows() / 16) : 0; };
  const int q_units = units(a.wq);
  const int k_units = units(a.wk);
  const int v_units = units(a.wv);
  const bool wide = a.x.rows() > 16 && q_units % 2 == 0 && k_units % 2 == 0 && v_units % 2 == 0;
  with_job<QkvJob>(a.norm.adaptive(), wide, [&]<class Job>(Job job) {
    job.input = input_of(a.x, a.norm);
    job.wq = a.wq.as<Bf16>(), job.wk = a.wk.as<Bf16>(), job.wv = a.wv.as<Bf16>();
    job.q = a.q.as<Bf16>(), job.k = a.k_cache.as<Bf16>(), job.v = a.v_cache.as<Bf16>();
    job.q_stride = a.q.row_stride, job.cache_stride = a.k_cache.row_stride;
    job.positions = a.positions.as<int32_t>(), job.cache_rows = a.cache_rows.as<int32_t>();
    job.table = a.table.as<float>();
    job.q_units = q_units, job.k_units = k_units, job.half = static_cast<int>(a.table.cols() / 2);
    launch_few_rows(job, (q_units + k_units + v_units) / Job::kPairs, stream);
  });
}

bool takes_few_rows(const NormGateUpGelu& a) {
  return few(a.x) && is_constant(a.norm) && is_constant(a.w_gate) && is_constant(a.w_up) && a.x.cols() <= kNormDepth &&
         a.w_gate.rows() % 16 == 0 && aligned_rows(a.w_gate) && aligned_rows(a.w_up) && a.w_gate.contiguous() &&
         a.w_up.contiguous() && a.out.dtype == DType::kBf16;
}

void launch_few_rows_norm_gate_up_gelu(const NormGateUpGelu& a, Stream stream) {
  const bool wide = a.x.rows() > 16 && a.w_gate.rows() % 32 == 0;
  with_job<GateUpJob>(a.norm.adaptive(), wide, [&]<class Job>(Job job) {
    job.input = input_of(a.x, a.norm);
    job.gate = a.w_gate.as<Bf16>(), job.up = a.w_up.as<Bf16>();
    job.out = a.out.as<Bf16>(), job.out_stride = a.out.row_stride;
    launch_few_rows(job, a.w_gate.rows() / Job::kColumns, stream);
  });
}

bool takes_few_rows(const LinearResidual& a) {
  return few(a.x) && (a.x.rows() <= 16 || a.gate.defined()) && is_constant(a.gate) && is_constant(a.bias) &&
         is_constant(a.w) && a.w.rows() % 8 == 0 && aligned_rows(a.w) && a.residual.dtype == DType::kBf16 &&
         a.out.dtype == DType::kBf16;
}

void launch_few_rows_linear_residual(const LinearResidual& a, Stream stream) {
  const auto run = [&]<class Job>(Job) {
    launch_few_rows(Job{.input = input_of(a.x, {}),
                        .w = a.w.as<Bf16>(),
                        .w_stride = a.w.row_stride,
                        .bias = a.bias.as<float>(),
                        .gate = a.gate.as<float>(),
                        .residual = a.residual.as<Bf16>(),
                        .out = a.out.as<Bf16>(),
                        .residual_stride = a.residual.row_stride,
                        .out_stride = a.out.row_stride},
                    a.w.rows() / 8, stream);
  };
  const bool shallow = a.x.cols() <= FewRowsShape<ResidualJob<4, 1>>::kDepth;
  if (a.x.rows() <= 16) {
    shallow ? run(ResidualJob<4, 1>{}) : run(ResidualJob<8, 1>{});
  } else {
    shallow ? run(ResidualJob<4, 2>{}) : run(ResidualJob<8, 2>{});
  }
}

}  // namespace tendon::gpu
