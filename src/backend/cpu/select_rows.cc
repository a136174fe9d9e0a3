// select_rows: out[r] = y[r] where chosen[r] is not 0, else x[r], byte for byte.
#include <cstring>

#include "backend/cpu/op_table.h"

namespace tendon {
namespace {

bool can_select_rows(const SelectRows& a) { return all_float(a.x, a.y, a.out) && is_i32(a.chosen); }

const char* row_bytes(const Tensor& t, int64_t row) {
  return t.as<const char>() + row * t.row_stride * static_cast<int64_t>(dtype_bytes(t.dtype));
}

Status run_select_rows(const SelectRows& a, const char*) {
  const auto bytes = static_cast<size_t>(a.out.cols()) * dtype_bytes(a.out.dtype);
  const int32_t* const chosen = a.chosen.as<const int32_t>();
  parallel_for(a.out.rows(), row_grain(a.out.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const char* const source = row_bytes(chosen[row] != 0 ? a.y : a.x, row);
      char* const target = const_cast<char*>(row_bytes(a.out, row));
      if (source != target) std::memcpy(target, source, bytes);
    }
  });
  return Status::ok();
}

}  // namespace

CpuOp cpu_select_rows() { return plain_op<SelectRows, can_select_rows, run_select_rows>(); }

}  // namespace tendon
