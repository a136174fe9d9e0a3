#include "model/weights/tables.h"

#include <cmath>

#include "base/convert.h"
#include "base/parallel.h"

namespace tendon {
namespace {

using Vector = std::vector<double>;

// w·x + bias for a host matrix of any float type; columns first..first+x.size() of w.
Vector affine(const Tensor& w, const Tensor& bias, const Vector& x, int64_t first_column) {
  const int64_t in = std::ssize(x);
  Vector y(static_cast<size_t>(w.rows()));
  parallel_for(w.rows(), 16, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(w.cols()));
    for (int64_t o = begin; o < end; ++o) {
      widen(w.row_range(o, 1), row.data());
      double sum = 0;
      for (int64_t i = 0; i < in; ++i)
        sum += static_cast<double>(row[static_cast<size_t>(first_column + i)]) * x[static_cast<size_t>(i)];
      y[static_cast<size_t>(o)] = sum;
    }
  });
  if (bias.defined()) {
    std::vector<float> b(y.size());
    widen(bias, b.data());
    for (size_t o = 0; o < y.size(); ++o) y[o] += b[o];
  }
  return y;
}

void silu(Vector& x) {
  for (double& value : x) value = value / (1.0 + std::exp(-value));
}

Vector embedding_of(float time, const ModelConfig& config) {
  const std::vector<float> e = time_embedding(time, config.expert.width, config.min_period, config.max_period);
  return {e.begin(), e.end()};
}

void append(std::vector<float>& out, const Vector& values) {
  for (const double value : values) out.push_back(static_cast<float>(value));
}

// The action half of time_mlp_in, alone or multiplied with action_in.
void build_action_in(const Weights& weights, const ModelConfig& config, bool folded, HostTables& tables) {
  const int64_t width = config.expert.width;
  const int64_t inputs = folded ? config.action_dim : width;
  tables.action_in_shape = {width, inputs};
  std::vector<float> w1 = widened(weights.time_mlp_in.w);
  const std::vector<float> wi = widened(weights.action_in.w);
  tables.action_in.resize(static_cast<size_t>(width * inputs));
  parallel_for(width, 16, [&](int64_t begin, int64_t end) {
    Vector row(static_cast<size_t>(inputs));
    for (int64_t o = begin; o < end; ++o) {
      const float* left = w1.data() + o * 2 * width;
      if (folded) {
        row.assign(row.size(), 0.0);
        for (int64_t k = 0; k < width; ++k) {
          for (int64_t a = 0; a < inputs; ++a)
            row[static_cast<size_t>(a)] +=
                static_cast<double>(left[k]) * static_cast<double>(wi[static_cast<size_t>(k * inputs + a)]);
        }
      } else {
        row.assign(left, left + width);
      }
      for (int64_t a = 0; a < inputs; ++a)
        tables.action_in[static_cast<size_t>(o * inputs + a)] = static_cast<float>(row[static_cast<size_t>(a)]);
    }
  });
}

void build_pi0(const Weights& weights, const ModelConfig& config, const Folds& folds, const Schedule& schedule,
               HostTables& tables) {
  const int64_t width = config.expert.width;
  build_action_in(weights, config, folds.action_in, tables);
  Vector input_bias(static_cast<size_t>(width), 0.0);
  if (folds.action_in) {
    const std::vector<float> bias = widened(weights.action_in.bias);
    input_bias = affine(weights.time_mlp_in.w, {}, {bias.begin(), bias.end()}, 0);
  }
  for (const float time : schedule.times) {
    Vector bias = affine(weights.time_mlp_in.w, weights.time_mlp_in.bias, embedding_of(time, config), width);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] += input_bias[i];
    append(tables.action_in_bias, bias);
  }
  tables.action_in_bias_shape = {std::ssize(schedule.times), width};
}

void build_pi05(const Weights& weights, const ModelConfig& config, const Schedule& schedule, HostTables& tables) {
  for (const float time : schedule.times) {
    Vector c = affine(weights.time_mlp_in.w, weights.time_mlp_in.bias, embedding_of(time, config), 0);
    silu(c);
    c = affine(weights.time_mlp_out.w, weights.time_mlp_out.bias, c, 0);
    silu(c);
    const auto modulate = [&](const NormWeights& norm) {
      append(tables.modulation, affine(norm.modulation.w, norm.modulation.bias, c, 0));
    };
    for (const GemmaLayerWeights& layer : weights.expert.layers) {
      modulate(layer.input_norm);
      modulate(layer.post_norm);
    }
    modulate(weights.expert.final_norm);
  }
  tables.modulation_shape = {std::ssize(schedule.times) * (2 * config.depth + 1), 3 * config.expert.width};
}

}  // namespace

HostTables build_tables(const Weights& weights, const ModelConfig& config, const Folds& folds, const Schedule& schedule,
                        int64_t positions, RopeFrequencies frequencies) {
  HostTables tables;
  tables.rope = rope_table(positions, config.head_dim, config.rope_theta, frequencies);
  tables.rope_shape = {positions, config.head_dim};
  if (!folds.time_tables) {
    for (const float time : schedule.times) append(tables.time_embedding, embedding_of(time, config));
    tables.time_embedding_shape = {std::ssize(schedule.times), config.expert.width};
  } else if (config.pi05()) {
    build_pi05(weights, config, schedule, tables);
  } else {
    build_pi0(weights, config, folds, schedule, tables);
  }
  return tables;
}

}  // namespace tendon
