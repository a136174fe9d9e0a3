#include "engine/weight_store.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/convert.h"
#include "checkpoint/safetensors.h"
#include "engine/upload.h"

namespace tendon {
namespace {

constexpr size_t kAlignmentBytes = 256;

size_t aligned(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

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
DType kept_dtype(const WeightSpec& spec, DType stored, DType compute, const CodedProducts& coded, bool widens) {
  const bool is_operand = spec.shape.rank() == 2 && spec.role != WeightRole::kFloat;
  if (!is_operand) return DType::kF32;
  const bool for_f32_operand = spec.role == WeightRole::kTimeOnly || compute == DType::kF32;
  if (for_f32_operand) return stored == DType::kBf16 && widens ? DType::kBf16 : DType::kF32;
  return is_scaled(compute) && coded.holds(spec.role) ? compute : DType::kBf16;
}

// Whether its numbers become those that i8 codes with a scale for each row can hold.
bool is_rounded(const WeightSpec& spec, DType compute, const CodedProducts& coded) {
  return spec.role == WeightRole::kExpertMatrix && is_scaled(compute) && coded.expert_weights && !coded.expert;
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

// Throws naming the weight and where in it the first number is that is not finite.
template <class T>
void require_finite(const std::string& name, std::span<const T> numbers, const char* unit) {
  const auto bad = std::ranges::find_if(numbers, [](T number) { return !std::isfinite(number); });
  if (bad != numbers.end())
    throw_bad_input("The weight '{}' holds a number that is not finite in {} {}. Repair the checkpoint.", name, unit,
                    bad - numbers.begin());
}

// Gathers what goes into the block, then fills it.
class BlockBuilder {
 public:
  // `finite_codes`: weights that become codes must be finite.
  BlockBuilder(Backend& backend, const TensorSource* source, bool finite_codes)
      : backend_(backend), source_(source), finite_codes_(finite_codes) {}

  // `name` is the weight's, empty for a table; `columns`: what its columns are multiplied by before they become codes.
  void add(const Tensor& host, DType dtype, Tensor* target, const std::string& name = {},
           const std::vector<float>* columns = nullptr) {
    items_.push_back({host, dtype, target, name, columns});
  }
  // A weight in bf16 that is rounded to i8 codes.
  void add_rounded(const Tensor& host, Tensor* target, const std::string& name) {
    items_.push_back({host, DType::kBf16, target, name, nullptr, true});
  }

  // Matrices come first, in the order of the visit: q, k and v of a layer, and gate and up, lie one behind the other,
  // so that a backend can run them as one product. So do their scales, behind all else.
  DeviceBlock build() {
    std::ranges::stable_partition(items_, [](const Item& item) { return item.host.shape.rank() == 2; });
    size_t bytes_in_all = 0;
    const auto append = [&](size_t bytes, size_t alignment) {
      const size_t at = aligned(bytes_in_all, alignment);
      bytes_in_all = at + bytes;
      return at;
    };
    for (Item& item : items_) item.offset = append(item.bytes(), kAlignmentBytes);
    for (Item& item : items_) {
      if (item.is_quantized()) item.scales_offset = append(item.scales_bytes(), kScalesAlignmentBytes);
    }
    DeviceBlock block(backend_, bytes_in_all);
    char* const memory = static_cast<char*>(block.data());
    for (const Item& item : items_) {
      *item.target = Tensor(item.dtype, item.host.shape, memory + item.offset);
      if (item.is_quantized()) item.target->scales = reinterpret_cast<float*>(memory + item.scales_offset);
    }
    std::vector<Filled> as_they_are;
    for (const Item& item : items_) {
      if (!item.is_quantized()) as_they_are.push_back({&item, *item.target});
    }
    quantize();
    fill(as_they_are, memory);
    round();
    return block;
  }
  size_t made_bytes() const { return made_bytes_; }

 private:
  static constexpr size_t kScalesAlignmentBytes = 16;
  static constexpr size_t kStagedBytes = size_t{1} << 30;

  struct Item {
    Tensor host;
    DType dtype;
    Tensor* target;
    std::string name;
    const std::vector<float>* columns;
    bool is_rounded = false;
    size_t offset = 0, scales_offset = 0;
    bool is_quantized() const { return is_scaled(dtype); }
    size_t bytes() const { return static_cast<size_t>(host.elements()) * dtype_bytes(dtype); }
    size_t columns_bytes() const {
      return columns == nullptr ? 0 : aligned(columns->size() * sizeof(float), kAlignmentBytes);
    }
    size_t scales_bytes() const { return static_cast<size_t>(host.rows()) * sizeof(float); }
  };
  // A weight and where its values go.
  struct Filled {
    const Item* item;
    Tensor to;
  };

  bool is_made_there(const Filled& one) {
    if (one.item->host.data != nullptr || source_ == nullptr) return false;
    const std::optional<ValueRule> rule = source_->rule(one.item->name);
    if (!rule || !backend_.fill_by_rule(one.to, *rule)) return false;
    made_bytes_ += one.item->bytes();
    return true;
  }
  Tensor host_of(const Item& item) const {
    return item.host.data != nullptr ? item.host : values_of(source_, item.name, item.host);
  }

  // All lie in `block`, in the order of their places.
  void fill(const std::vector<Filled>& all, char* block) {
    std::vector<UploadPiece> pieces;
    const size_t made_before = made_bytes_;
    for (const Filled& one : all) {
      if (is_made_there(one)) continue;
      const Tensor host = host_of(*one.item);
      if (backend_.uses_host_memory()) {
        convert(host, one.to.dtype, one.to.data);
      } else {
        pieces.push_back({host, one.to.dtype, static_cast<size_t>(static_cast<char*>(one.to.data) - block)});
      }
    }
    if (!pieces.empty()) upload_pieces(backend_, block, pieces);
    if (made_bytes_ > made_before) backend_.finish_uploads();
  }

  // Weights that become codes: brought to the device as they are stored (f16 as f32), some at a time, and cast there.
  void quantize() {
    in_groups([](const Item& item) { return item.is_quantized(); },
              [&](const Item& item) { return staged_bytes(item); },
              [&](const std::vector<const Item*>& group, size_t bytes) { quantize_group(group, bytes); });
  }

  // handle(items, bytes) for the items that it `takes`, as many at a time as need kStagedBytes together.
  template <class Takes, class Bytes, class Handle>
  void in_groups(const Takes& takes, const Bytes& bytes_of, const Handle& handle) const {
    for (auto next = items_.begin(); next != items_.end();) {
      std::vector<const Item*> group;
      size_t bytes = 0;
      for (; next != items_.end() && (group.empty() || bytes < kStagedBytes); ++next) {
        if (!takes(*next)) continue;
        group.push_back(&*next);
        bytes += bytes_of(*next);
      }
      if (!group.empty()) handle(group, bytes);
    }
  }

  static DType staged_dtype(const Item& item) { return item.host.dtype == DType::kBf16 ? DType::kBf16 : DType::kF32; }
  size_t staged_bytes(const Item& item) const {
    if (is_in_place(item)) return item.columns_bytes();
    return item.columns_bytes() + aligned(buffer_bytes(staged_dtype(item), item.host.shape), kAlignmentBytes);
  }

  // Where the values of an item can be read as they are.
  bool is_in_place(const Item& item) const {
    return backend_.uses_host_memory() && item.host.dtype == staged_dtype(item);
  }

  void quantize_group(const std::vector<const Item*>& group, size_t bytes) {
    const DeviceBlock staged(backend_, bytes);
    std::vector<Filled> values;
    std::vector<Op> casts;
    char* at = static_cast<char*>(staged.data());
    for (const Item* item : group) {
      Tensor factors;
      if (item->columns != nullptr) factors = Tensor(DType::kF32, {std::ssize(*item->columns)}, at);
      Tensor x(staged_dtype(*item), item->host.shape, at + item->columns_bytes());
      if (is_in_place(*item)) {
        x = host_of(*item);
      } else {
        values.push_back({item, x});
      }
      casts.push_back({Cast{.x = x, .factors = factors, .out = *item->target}, item->name});
      at += staged_bytes(*item);
    }
    if (!backend_.supports(casts.front())) {
      throw_bad_use("The {} backend does not make {} weights; take --precision bf16.", backend_.name(),
                    dtype_name(group.front()->dtype));
    }
    fill(values, static_cast<char*>(staged.data()));
    for (size_t i = 0; i < group.size(); ++i) {  // fill() keeps nothing between the values
      const Tensor& factors = std::get<Cast>(casts[i].args).factors;
      if (factors.defined()) backend_.upload(factors.data, group[i]->columns->data(), factors.bytes());
    }
    run(std::move(casts));
    if (!finite_codes_) return;
    for (const Item* item : group) {  // their scales tell
      std::vector<float> scales(static_cast<size_t>(item->host.rows()));
      backend_.download(scales.data(), item->target->scales, item->scales_bytes());
      require_finite(item->name, std::span<const float>(scales), "row");
    }
  }

  // To codes and back, some weights at a time.
  void round() {
    const auto codes_bytes = [](const Item& item) {
      return aligned(static_cast<size_t>(item.host.elements()), kAlignmentBytes);
    };
    const auto bytes_of = [&](const Item& item) {
      return codes_bytes(item) + aligned(item.scales_bytes(), kAlignmentBytes);
    };
    const auto round_group = [&](const std::vector<const Item*>& group, size_t bytes) {
      const DeviceBlock staged(backend_, bytes);
      std::vector<Op> casts;
      char* at = static_cast<char*>(staged.data());
      for (const Item* item : group) {
        const Tensor& weight = *item->target;
        Tensor codes(DType::kI8, weight.shape, at);
        codes.scales = reinterpret_cast<float*>(at + codes_bytes(*item));
        at += bytes_of(*item);
        casts.push_back({Cast{.x = weight, .out = codes}, item->name});
        casts.push_back({Cast{.x = codes, .out = weight}, item->name});
      }
      run(std::move(casts));
    };
    in_groups([](const Item& item) { return item.is_rounded; }, bytes_of, round_group);
  }

  void run(std::vector<Op> casts) {
    const Status status = backend_.prepare(std::move(casts), nullptr, 0, {})->run(nullptr);
    if (!status.is_ok()) throw_device("Casting weights: {}", status.message());
  }

  Backend& backend_;
  const TensorSource* source_;
  bool finite_codes_;
  std::vector<Item> items_;
  size_t made_bytes_ = 0;
};

// What a weight is multiplied with, where static scales can be had for it.
struct StaticOperand {
  const std::vector<float>* maxima;
  Tensor* factors;
};
std::map<const Tensor*, StaticOperand> static_operands(Weights& weights, const OperandMaxima* maxima) {
  std::map<const Tensor*, StaticOperand> operands;
  if (maxima == nullptr) return operands;
  const auto add = [&](const Tensor& attended, const Tensor& hidden, OperandFactors& factors,
                       const OperandMaxima::Layer& layer) {
    operands[&attended] = {&layer.attended, &factors.attended};
    operands[&hidden] = {&layer.hidden, &factors.hidden};
  };
  for (size_t i = 0; i < maxima->vision.size(); ++i) {
    VisionLayerWeights& layer = weights.vision.layers[i];
    add(layer.out.w, layer.fc2.w, layer.factors, maxima->vision[i]);
  }
  for (size_t i = 0; i < maxima->prefix.size(); ++i) {
    GemmaLayerWeights& layer = weights.prefix.layers[i];
    add(layer.o, layer.down, layer.factors, maxima->prefix[i]);
  }
  return operands;
}

}  // namespace

WeightStore::WeightStore(Backend& backend, const Weights& host, const ModelConfig& config, const Folds& folds,
                         DType compute, const CodedProducts& coded, const HostTables& tables,
                         const OperandMaxima* maxima)
    : weights_(host) {
  // Static scales cut off what is not finite: no row's scale tells of it any more.
  const bool must_be_finite = is_scaled(compute) && maxima != nullptr;
  BlockBuilder block(backend, host.source, must_be_finite);
  const auto add_table = [&](const std::vector<float>& values, const Shape& shape, Tensor* target) {
    if (!values.empty()) block.add(Tensor(DType::kF32, shape, const_cast<float*>(values.data())), DType::kF32, target);
  };
  const std::map<const Tensor*, StaticOperand> operands = static_operands(weights_, maxima);
  std::list<ColumnScales> columns;
  visit_weights(weights_, config, [&](const WeightSpec& spec, Tensor& tensor) {
    const Tensor stored = as_matrix(tensor);
    const DType dtype = kept_dtype(spec, stored.dtype, compute, coded, backend.uses_host_memory());
    if (must_be_finite && spec.role == WeightRole::kFloat && stored.data != nullptr)
      require_finite(spec.name, std::span<const double>(to_doubles(stored)), "element");
    if (!is_needed(spec, folds)) {
      tensor = {};
    } else if (is_rounded(spec, compute, coded)) {
      block.add_rounded(stored, &tensor, spec.name);
      weights_.expert.rounded_to_i8 = true;
    } else if (backend.uses_host_memory() && stored.dtype == dtype) {
      tensor = stored.data != nullptr ? stored : values_of(host.source, spec.name, stored);
      in_place_bytes_ += stored.bytes();
    } else if (const auto operand = operands.find(&tensor); is_scaled(dtype) && operand != operands.end()) {
      const ColumnScales& made = columns.emplace_back(column_scales(*operand->second.maxima, dtype));
      block.add(stored, dtype, &tensor, spec.name, &made.scales);
      add_table(made.factors, {std::ssize(made.factors)}, operand->second.factors);
    } else {
      block.add(stored, dtype, &tensor, spec.name);
    }
  });
  add_table(tables.rope, tables.rope_shape, &tables_.rope);
  add_table(tables.time_embedding, tables.time_embedding_shape, &tables_.time_embedding);
  add_table(tables.action_in, tables.action_in_shape, &tables_.action_in);
  add_table(tables.action_in_bias, tables.action_in_bias_shape, &tables_.action_in_bias);
  add_table(tables.modulation, tables.modulation_shape, &tables_.modulation);
  block_ = block.build();
  made_bytes_ = block.made_bytes();
}

}  // namespace tendon
