// A view of numbers somewhere (host, device, or a buffer that the plan will place): dtype, shape, row stride.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/dtype.h"

namespace tendon {

// Up to four dimensions, row-major. More throw Error(kInternal).
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis < 0 ? axis + rank_ : axis)]; }
  void push_back(int64_t dim);
  int64_t elements() const {
    int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= (*this)[axis];
    return product;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// "[3, 224, 224]"
std::string to_string(const Shape& shape);

// Non-owning. The last dimension is contiguous; all leading dimensions flatten to rows() rows that lie row_stride
// elements apart. While a forward is being recorded `data` is null and `value` names the planned buffer.
struct Tensor {
  DType dtype = DType::kF32;
  Shape shape;
  int64_t row_stride = 0;    // elements
  void* data = nullptr;      // null until bound
  int32_t value = -1;        // id of the planned buffer, -1 for memory that exists already (weights)
  int64_t value_offset = 0;  // elements from the start of the planned buffer
  float* scales = nullptr;   // of codes alone: one a row; bound together with `data`

  Tensor() = default;
  Tensor(DType type, const Shape& dims, void* memory = nullptr)
      : dtype(type), shape(dims), row_stride(dims.rank() == 0 ? 1 : dims[-1]), data(memory) {}

  bool defined() const { return data != nullptr || value >= 0; }
  int64_t cols() const { return shape.rank() == 0 ? 1 : shape[-1]; }
  int64_t rows() const { return cols() == 0 ? 0 : shape.elements() / cols(); }
  int64_t elements() const { return shape.elements(); }
  bool contiguous() const { return rows() <= 1 || row_stride == cols(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype); }  // without scales

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  // Rows begin..begin+count as a matrix (count, cols).
  Tensor row_range(int64_t begin, int64_t count) const;
  // Columns begin..begin+count of every row; the leading dimensions stay.
  Tensor col_range(int64_t begin, int64_t count) const;
  // Same elements, other leading dimensions (the last one stays).
  Tensor reshaped(const Shape& dims) const;

 private:
  Tensor shifted(int64_t elements) const;
};

// Where the scales of a matrix of this shape begin when they share a buffer with its codes, in bytes.
size_t scales_offset_bytes(const Shape& shape);
// What a buffer for a tensor has to hold, scales included.
size_t buffer_bytes(DType dtype, const Shape& shape);
// Binds a tensor to a buffer of that kind, whose shape may be wider than the tensor's.
void bind(Tensor& tensor, const Shape& buffer, void* memory);

}  // namespace tendon
