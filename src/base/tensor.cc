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
  Tensor view = *this;
  view.shape = dims;
  if (!rows_stay) view.row_stride = dims[-1];
  return view;
}

}  // namespace tendon
