// scatter_rows: out[rows[r]] = x[r], byte for byte; rows below 0 are skipped. When a target occurs twice the last row
// stays, so the rows are copied in order.
#include <cstring>

#include "backend/cpu/op_table.h"

namespace tendon {
namespace {

bool can_scatter_rows(const ScatterRows& a) { return a.x.dtype == a.out.dtype && is_i32(a.rows); }

Status run_scatter_rows(const ScatterRows& a, const char* label) {
  constexpr int64_t kAnyNegative = INT32_MIN;
  if (Status status = check_index(a.rows, "rows", kAnyNegative, a.out.rows(), label); !status.is_ok()) return status;
  const int32_t* rows = a.rows.as<int32_t>();
  const auto bytes = static_cast<int64_t>(dtype_bytes(a.x.dtype));
  for (int64_t r = 0; r < a.x.rows(); ++r) {
    if (rows[r] < 0) continue;
    std::memcpy(a.out.as<char>() + rows[r] * a.out.row_stride * bytes, a.x.as<char>() + r * a.x.row_stride * bytes,
                static_cast<size_t>(a.x.cols() * bytes));
  }
  return Status::ok();
}

}  // namespace

CpuOp cpu_scatter_rows() { return plain_op<ScatterRows, can_scatter_rows, run_scatter_rows>(); }

}  // namespace tendon
