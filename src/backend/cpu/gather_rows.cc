// gather_rows: out[r] = x[rows[r]], byte for byte.
#include <cstring>

#include "backend/cpu/op_table.h"

namespace tendon {
namespace {

bool can_gather_rows(const GatherRows& a) { return a.x.dtype == a.out.dtype && is_i32(a.rows); }

Status run_gather_rows(const GatherRows& a, const char* label) {
  if (Status status = check_index(a.rows, "rows", 0, a.x.rows(), label); !status.is_ok()) return status;
  const int32_t* rows = a.rows.as<int32_t>();
  const auto bytes = static_cast<int64_t>(dtype_bytes(a.x.dtype));
  parallel_for(a.out.rows(), row_grain(a.out.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(a.out.as<char>() + r * a.out.row_stride * bytes, a.x.as<char>() + rows[r] * a.x.row_stride * bytes,
                  static_cast<size_t>(a.out.cols() * bytes));
    }
  });
  return Status::ok();
}

}  // namespace

CpuOp cpu_gather_rows() { return plain_op<GatherRows, can_gather_rows, run_gather_rows>(); }

}  // namespace tendon
