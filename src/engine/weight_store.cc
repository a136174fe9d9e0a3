#include "engine/weight_store.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/convert.h"
#include "engine/upload.h"

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

// The host's values of a weight that its source had not made yet.
Tensor values_of(const TensorSource* source, const std::string& name, const Tensor& header) {
  TENDON_CHECK(source != nullptr, "the weight '{}' has neither values nor a source", name);
  return as_matrix(source->tensor(name)).reshaped(header.shape);
}

// Gathers what goes into the block, then fills it in one pass.
class BlockBuilder {
 public:
  BlockBuilder(Backend& backend, const TensorSource* source) : backend_(backend), source_(source) {}

  // `name` is the weight's, empty for a table.
  void add(const Tensor& host, DType dtype, Tensor* target, const std::string& name = {}) {
    items_.push_back({host, dtype, target, name, 0});
  }

  // Matrices come first, in the order of the visit: q, k and v of a layer, and gate and up, lie one behind the other,
  // so that a backend can run them as one product.
  DeviceBlock build() {
    std::ranges::stable_partition(items_, [](const Item& item) { return item.host.shape.rank() == 2; });
    size_t bytes_in_all = 0;
    for (Item& item : items_) {
      item.offset = bytes_in_all;
      bytes_in_all += (item.bytes() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    }
    DeviceBlock block(backend_, bytes_in_all);
    std::vector<UploadPiece> pieces;
    for (const Item& item : items_) {
      *item.target = Tensor(item.dtype, item.host.shape, static_cast<char*>(block.data()) + item.offset);
      if (is_made_there(item)) continue;
      pieces.push_back({host_of(item), item.dtype, item.offset});
      if (backend_.uses_host_memory()) convert(pieces.back().host, item.dtype, item.target->data);
    }
    if (!backend_.uses_host_memory()) upload_pieces(backend_, block.data(), pieces);
    if (made_bytes_ > 0) backend_.finish_uploads();
    return block;
  }
  size_t made_bytes() const { return made_bytes_; }

 private:
  struct Item {
    Tensor host;
    DType dtype;
    Tensor* target;
    std::string name;
    size_t offset;
    size_t bytes() const { return static_cast<size_t>(host.elements()) * dtype_bytes(dtype); }
  };

  bool is_made_there(const Item& item) {
    if (item.host.data != nullptr || source_ == nullptr) return false;
    const std::optional<ValueRule> rule = source_->rule(item.name);
    if (!rule || !backend_.fill_by_rule(*item.target, *rule)) return false;
    made_bytes_ += item.bytes();
    return true;
  }
  Tensor host_of(const Item& item) const {
    return item.host.data != nullptr ? item.host : values_of(source_, item.name, item.host);
  }

  Backend& backend_;
  const TensorSource* source_;
  std::vector<Item> items_;
  size_t made_bytes_ = 0;
};

}  // namespace

WeightStore::WeightStore(Backend& backend, const Weights& host, const ModelConfig& config, const Folds& folds,
                         DType compute, const HostTables& tables)
    : weights_(host) {
  BlockBuilder block(backend, host.source);
  visit_weights(weights_, config, [&](const WeightSpec& spec, Tensor& tensor) {
    const Tensor stored = as_matrix(tensor);
    const DType dtype = kept_dtype(spec, stored.dtype, compute, backend.uses_host_memory());
    if (!is_needed(spec, folds)) {
      tensor = {};
    } else if (backend.uses_host_memory() && stored.dtype == dtype) {
      tensor = stored.data != nullptr ? stored : values_of(host.source, spec.name, stored);
      in_place_bytes_ += stored.bytes();
    } else {
      block.add(stored, dtype, &tensor, spec.name);
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
  block_ = block.build();
  made_bytes_ = block.made_bytes();
}

}  // namespace tendon
