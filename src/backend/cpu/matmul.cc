#include "backend/cpu/matmul.h"

#include <utility>

#include <omp.h>

#include "base/check.h"

namespace tendon {
namespace {

void require(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) throw_device("oneDNN: {} failed with status {}", what, static_cast<int>(status));
}

dnnl_memory_desc_t matrix(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, DType dtype) {
  dnnl_memory_desc_t desc;
  const dnnl_dims_t dims = {rows, cols};
  const dnnl_dims_t strides = {row_stride, col_stride};
  require(dnnl_memory_desc_init_by_strides(&desc, 2, dims, dtype == DType::kBf16 ? dnnl_bf16 : dnnl_f32, strides),
          "describing a matrix");
  return desc;
}

std::string isa_name() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
      return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
      return "avx512";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_amx";
    default:
      return "x86_64";
  }
}

}  // namespace

MatmulPrimitive::MatmulPrimitive(const MatmulDesc& desc, dnnl_engine_t engine) {
  a_ = matrix(desc.m, desc.k, desc.a_stride, 1, desc.dtype);
  b_ = desc.b_is_nk ? matrix(desc.k, desc.n, 1, desc.b_stride, desc.dtype)
                    : matrix(desc.k, desc.n, desc.b_stride, 1, desc.dtype);
  c_ = matrix(desc.m, desc.n, desc.c_stride, 1, DType::kF32);
  dnnl_matmul_desc_t operation;
  require(dnnl_matmul_desc_init(&operation, &a_, &b_, nullptr, &c_), "describing a matrix product");
  dnnl_primitive_attr_t attributes = nullptr;
  require(dnnl_primitive_attr_create(&attributes), "creating attributes");
  dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
  const int outer_threads = omp_get_max_threads();
  omp_set_num_threads(1);
  dnnl_status_t status = dnnl_primitive_desc_create(&description_, &operation, attributes, engine, nullptr);
  if (status == dnnl_success) status = dnnl_primitive_create(&primitive_, description_);
  omp_set_num_threads(outer_threads);
  dnnl_primitive_attr_destroy(attributes);
  if (status != dnnl_success && description_ != nullptr) dnnl_primitive_desc_destroy(description_);
  require(status, "creating a matrix product");
  scratch_ = *dnnl_primitive_desc_query_md(description_, dnnl_query_scratchpad_md, 0);
}

MatmulPrimitive::~MatmulPrimitive() {
  dnnl_primitive_destroy(primitive_);
  dnnl_primitive_desc_destroy(description_);
}

std::string MatmulPrimitive::implementation() const {
  const char* text = nullptr;
  if (dnnl_primitive_desc_query(description_, dnnl_query_impl_info_str, 0, static_cast<void*>(&text)) != dnnl_success) {
    return "?";
  }
  return text;
}

MatmulLibrary::MatmulLibrary() : isa_(isa_name()) {
  native_bf16_ = isa_ == "avx512_amx";
  require(dnnl_engine_create(&engine_, dnnl_cpu, 0), "creating the engine");
  require(dnnl_stream_create(&stream_, engine_, dnnl_stream_default_flags), "creating the stream");
}

MatmulLibrary::~MatmulLibrary() {
  primitives_.clear();
  dnnl_stream_destroy(stream_);
  dnnl_engine_destroy(engine_);
}

const MatmulPrimitive& MatmulLibrary::primitive(const MatmulDesc& desc) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<MatmulPrimitive>& entry = primitives_[desc];
  if (entry == nullptr) entry = std::make_unique<MatmulPrimitive>(desc, engine_);
  return *entry;
}

Matmul::Matmul(MatmulLibrary& library, const MatmulDesc& desc, void* scratch) : stream_(library.stream()) {
  const MatmulPrimitive& made = library.primitive(desc);
  primitive_ = made.primitive_;
  dnnl_engine_t engine = library.engine();
  require(dnnl_memory_create(&a_, &made.a_, engine, DNNL_MEMORY_NONE), "creating a memory handle");
  require(dnnl_memory_create(&b_, &made.b_, engine, DNNL_MEMORY_NONE), "creating a memory handle");
  require(dnnl_memory_create(&c_, &made.c_, engine, DNNL_MEMORY_NONE), "creating a memory handle");
  require(dnnl_memory_create(&scratch_, &made.scratch_, engine, scratch), "creating a memory handle");
}

Matmul::~Matmul() {
  for (dnnl_memory_t memory : {a_, b_, c_, scratch_}) {
    if (memory != nullptr) dnnl_memory_destroy(memory);
  }
}

void Matmul::swap(Matmul& other) noexcept {
  std::swap(primitive_, other.primitive_);
  std::swap(stream_, other.stream_);
  std::swap(a_, other.a_);
  std::swap(b_, other.b_);
  std::swap(c_, other.c_);
  std::swap(scratch_, other.scratch_);
}

bool Matmul::run(const void* a, const void* b, float* c) const noexcept {
  // The library's interface takes pointers to non-const for inputs too.
  if (dnnl_memory_set_data_handle(a_, const_cast<void*>(a)) != dnnl_success ||
      dnnl_memory_set_data_handle(b_, const_cast<void*>(b)) != dnnl_success ||
      dnnl_memory_set_data_handle(c_, c) != dnnl_success) {
    return false;
  }
  const dnnl_exec_arg_t arguments[] = {
      {DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}, {DNNL_ARG_SCRATCHPAD, scratch_}};
  return dnnl_primitive_execute(primitive_, stream_, 4, arguments) == dnnl_success;
}

}  // namespace tendon
