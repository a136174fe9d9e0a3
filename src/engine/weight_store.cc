#include "engine/weight_store.h"

#include <algorithm>
#include <vector>

#include "base/convert.h"

namespace tendon {
namespace {

constexpr size_t kAlignmentBytes = 256;

bool is_needed(const WeightSpec& spec, const Folds& folds) {
  switch (spec.role) {
    case WeightRole::kTimeOnly:
      return !folds.time_tables;
    case WeightRole::kDead:
      return !folds.last_prefix_layer_kv_only;
    default:
      return true;
  }
}

// `widens`: the backend's products take bf16 weights with f32 rows.
DType kept_dtype(const WeightSpec& spec, DType stored, DType compute, bool widens) {
  const bool is_matrix = spec.shape.rank() == 2 && spec.role != WeightRole::kFloat;
  if (!is_matrix) return DType::kF32;
  const bool for_f32_operand = spec.role == WeightRole::kTimeOnly || compute == DType::kF32;
  if (for_f32_operand) return stored == DType::kBf16 && widens ? DType::kBf16 : DType::kF32;
  return DType::kBf16;
}

// Patch kernels are stored as (W, 3, P, P) and used as rows of 3·P·P.
Tensor as_matrix(const Tensor& tensor) {
  if (tensor.shape.rank() != 4) return tensor;
  return tensor.reshaped({tensor.shape[0], tensor.shape[1] * tensor.shape[2] * tensor.shape[3]});
}

// Gathers what goes into the block, then fills it in one pass.
class BlockBuilder {
 public:
  void add(const Tensor& host, DType dtype, Tensor* target) { items_.push_back({host, dtype, target, 0}); }

  // Matrices come first, in the order of the visit: q, k and v of a layer, and gate and up, lie one behind the other,
  // so that a backend can run them as one product.
  DeviceBlock build(Backend& backend) {
    std::ranges::stable_partition(items_, [](const Item& item) { return item.host.shape.rank() == 2; });
    size_t bytes_in_all = 0;
    for (Item& item : items_) {
      item.offset = bytes_in_all;
      const size_t bytes = static_cast<size_t>(item.host.elements()) * dtype_bytes(item.dtype);
      bytes_in_all += (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    }
    DeviceBlock block(backend, bytes_in_all);
    std::vector<char> staging;
    for (const Item& item : items_) {
      void* const device = static_cast<char*>(block.data()) + item.offset;
      *item.target = Tensor(item.dtype, item.host.shape, device);
      const size_t bytes = item.target->bytes();
      if (backend.uses_host_memory()) {
        convert(item.host, item.dtype, device);
      } else if (item.host.dtype == item.dtype && item.host.contiguous()) {
        backend.upload(device, item.host.data, bytes);
      } else {
        staging.resize(bytes);
        convert(item.host, item.dtype, staging.data());
        backend.upload(device, staging.data(), bytes);
      }
    }
    return block;
  }

 private:
  struct Item {
    Tensor host;
    DType dtype;
    Tensor* target;
    size_t offset;
  };
  std::vector<Item> items_;
};

}  // namespace

WeightStore::WeightStore(Backend& backend, const Weights& host, const ModelConfig& config, const Folds& folds,
                         DType compute, const HostTables& tables)
    : weights_(host) {
  BlockBuilder block;
  visit_weights(weights_, config, [&](const WeightSpec& spec, Tensor& tensor) {
    const Tensor stored = as_matrix(tensor);
    const DType dtype = kept_dtype(spec, stored.dtype, compute, backend.uses_host_memory());
    if (!is_needed(spec, folds)) {
      tensor = {};
    } else if (backend.uses_host_memory() && stored.dtype == dtype) {
      tensor = stored;
      in_place_bytes_ += stored.bytes();
    } else {
      block.add(stored, dtype, &tensor);
    }
  });
  const auto add_table = [&](const std::vector<float>& values, const Shape& shape, Tensor* target) {
    if (!values.empty()) block.add(Tensor(DType::kF32, shape, const_cast<float*>(values.data())), DType::kF32, target);
  };
  add_table(tables.rope, tables.rope_shape, &tables_.rope);
  add_table(tables.time_embedding, tables.time_embedding_shape, &tables_.time_embedding);
  add_table(tables.action_in, tables.action_in_shape, &tables_.action_in);
  add_table(tables.action_in_bias, tables.action_in_bias_shape, &tables_.action_in_bias);
  add_table(tables.modulation, tables.modulation_shape, &tables_.modulation);
  block_ = block.build(backend);
}

}  // namespace tendon
