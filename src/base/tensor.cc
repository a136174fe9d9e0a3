#include "base/tensor.h"

#include <fmt/ranges.h>

#include <vector>

#include "base/check.h"

namespace tendon {

Shape::Shape(std::initializer_list<int64_t> dims) {
  for (const int64_t dim : dims) push_back(dim);
}

void Shape::push_back(int64_t dim) {
  TENDON_CHECK(rank_ < kMaxRank, "shape of rank {}", rank_ + 1);
  dims_[static_cast<size_t>(rank_++)] = dim;
}

std::string to_string(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int axis = 0; axis < shape.rank(); ++axis) dims.push_back(shape[axis]);
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

Tensor Tensor::shifted(int64_t elements) const {
  Tensor view = *this;
  view.value_offset += elements;
  if (data != nullptr) {
    view.data = static_cast<char*>(data) + elements * static_cast<int64_t>(dtype_bytes(dtype));
    if (scales != nullptr) view.scales = scales + elements / row_stride;
  }
  return view;
}

Tensor Tensor::row_range(int64_t begin, int64_t count) const {
  TENDON_CHECK(begin >= 0 && count >= 0 && begin + count <= rows(), "rows {}..{} of {}", begin, begin + count, rows());
  Tensor view = shifted(begin * row_stride);
  view.shape = {count, cols()};
  return view;
}

Tensor Tensor::col_range(int64_t begin, int64_t count) const {
  TENDON_CHECK(begin >= 0 && count >= 0 && begin + count <= cols(), "columns {}..{} of {}", begin, begin + count,
               cols());
  Tensor view = shifted(begin);
  view.shape = {};
  for (int axis = 0; axis + 1 < shape.rank(); ++axis) view.shape.push_back(shape[axis]);
  view.shape.push_back(count);
  return view;
}

Tensor Tensor::reshaped(const Shape& dims) const {
  const bool rows_stay = dims.rank() > 0 && dims[-1] == cols();
  TENDON_CHECK(dims.elements() == elements() && (rows_stay || contiguous()), "cannot view {} as {}", to_string(shape),
               to_string(dims));
  TENDON_CHECK(rows_stay || !is_scaled(dtype), "rows with scales stay rows: {} as {}", to_string(shape),
               to_string(dims));
  Tensor view = *this;
  view.shape = dims;
  if (!rows_stay) view.row_stride = dims[-1];
  return view;
}

size_t scales_offset_bytes(const Shape& shape) { return (static_cast<size_t>(shape.elements()) + 15) / 16 * 16; }

size_t buffer_bytes(DType dtype, const Shape& shape) {
  if (!is_scaled(dtype)) return static_cast<size_t>(shape.elements()) * dtype_bytes(dtype);
  const int64_t rows = shape[-1] == 0 ? 0 : shape.elements() / shape[-1];
  return scales_offset_bytes(shape) + static_cast<size_t>(rows) * sizeof(float);
}

void bind(Tensor& tensor, const Shape& buffer, void* memory) {
  char* const begin = static_cast<char*>(memory);
  tensor.data = begin + tensor.value_offset * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  if (!is_scaled(tensor.dtype)) return;
  tensor.scales =
      reinterpret_cast<float*>(begin + scales_offset_bytes(buffer)) + tensor.value_offset / tensor.row_stride;
}

}  // namespace tendon
