// Matrix products through oneDNN: primitives are made once and kept, calls only set pointers.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <oneapi/dnnl/dnnl.h>

#include "base/dtype.h"
#include "base/status.h"

namespace tendon {

// c (m, n) f32 = a (m, k) · b, with b stored (n, k) (a weight) or (k, n). a and b have one type, f32 or bf16.
// Strides in elements. Products run on the calling thread: the kernels split their work themselves.
struct MatmulDesc {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool b_is_nk = true;
  DType dtype = DType::kF32;
  auto operator<=>(const MatmulDesc&) const = default;
};

class MatmulPrimitive {
 public:
  MatmulPrimitive(const MatmulDesc& desc, dnnl_engine_t engine);
  ~MatmulPrimitive();
  MatmulPrimitive(const MatmulPrimitive&) = delete;
  MatmulPrimitive& operator=(const MatmulPrimitive&) = delete;

  size_t scratch_bytes() const { return dnnl_memory_desc_get_size(&scratch_); }
  std::string implementation() const;

 private:
  friend class Matmul;
  dnnl_memory_desc_t a_{}, b_{}, c_{}, scratch_{};
  dnnl_primitive_desc_t description_ = nullptr;
  dnnl_primitive_t primitive_ = nullptr;
};

// The engine, the stream and every primitive made so far.
class MatmulLibrary {
 public:
  MatmulLibrary();
  ~MatmulLibrary();
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;

  const MatmulPrimitive& primitive(const MatmulDesc& desc);
  dnnl_engine_t engine() const { return engine_; }
  dnnl_stream_t stream() const { return stream_; }
  // "avx512_core_bf16"
  const std::string& isa() const { return isa_; }
  // bf16 products are faster than f32 ones only with matrix tiles (AMX); with AVX512-BF16 oneDNN 2.6 reaches 150
  // GFLOP/s where its f32 path reaches 280 (Xeon 4th generation, 2 cores).
  bool native_bf16() const { return native_bf16_; }

 private:
  dnnl_engine_t engine_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  std::string isa_;
  bool native_bf16_ = false;
  std::mutex mutex_;
  std::map<MatmulDesc, std::unique_ptr<MatmulPrimitive>> primitives_;
};

// A primitive with its own memory handles: one per kernel and thread.
class Matmul {
 public:
  Matmul() = default;
  Matmul(MatmulLibrary& library, const MatmulDesc& desc, void* scratch);
  Matmul(Matmul&& other) noexcept { swap(other); }
  Matmul& operator=(Matmul&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Matmul();

  bool run(const void* a, const void* b, float* c) const noexcept;

 private:
  void swap(Matmul& other) noexcept;
  dnnl_primitive_t primitive_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  dnnl_memory_t a_ = nullptr, b_ = nullptr, c_ = nullptr, scratch_ = nullptr;
};

}  // namespace tendon
