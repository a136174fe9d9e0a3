// Runs a case on a backend with guard bands and poisoned outputs, and compares every byte with the oracle.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "values.h"

namespace tendon::op_check {

// Faults that the self-test plants in the result before it is compared.
enum class Tamper {
  kNone,
  kWrongElement,    // one output element off by three times its bound or two units in the last place
  kMissingElement,  // one output element never written
  kGuardBefore,     // a byte in front of an output
  kGuardAfter,      // a byte behind it
  kOutsideView,     // an element between the rows of a view
  kInput,           // a changed input
};

struct Outcome {
  std::string failure;     // empty: passed
  double worst_share = 0;  // largest |difference| / bound over the compared elements
  bool composed = false;   // the backend has no kernel for it and ran its composition
  int64_t compared = 0;    // elements
  bool ok() const { return failure.empty(); }
};

Outcome run_case(Backend& backend, const Case& test, Tamper tamper = Tamper::kNone);

// Runs a case with wrong index data; passes when the status names the operation and holds `expected`.
Outcome run_fault(Backend& backend, const Case& bad, const std::string& expected);

// The operation as a plan asks for its kernels: what it only reads is constant, as weights are.
Op as_planned(const Case& test);

// The operations that the backend runs for this one: itself, or its composition; adds values to `recorder`.
std::vector<Op> operations_for(const Backend* backend, const Op& op, std::vector<Value>& values);

// Device memory for values, each between guard bands, and the workspace.
class BoundOps {
 public:
  // `contents` point to the initial content of the first values and must outlive this; the others (temporaries) start
  // as NaN bytes.
  BoundOps(Backend& backend, std::vector<Op> ops, const std::vector<Value>& values,
           const std::vector<const std::vector<std::byte>*>& contents);

  Executable& executable() { return *executable_; }
  size_t operations() const { return operations_; }
  void reset();
  std::vector<std::byte> read(size_t value) const;
  void write(size_t value, int64_t offset_bytes, std::byte byte);
  // "" or which guard band was overwritten.
  std::string damaged_guard() const;

 private:
  struct Block {
    DeviceBlock memory;
    const std::vector<std::byte>* initial = nullptr;
  };
  static constexpr size_t kGuardBytes = 4096;
  static constexpr std::byte kGuardByte{0xa5};
  void upload(Block& block);

  Backend& backend_;
  std::vector<Block> blocks_;                        // values, then the workspace
  std::deque<std::vector<std::byte>> nan_contents_;  // of those that the caller did not give
  std::vector<std::string> names_;
  size_t operations_ = 0;
  std::unique_ptr<Executable> executable_;
};

}  // namespace tendon::op_check
