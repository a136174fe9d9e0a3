// Measures which kernel runs a product fastest. Used offline, by `tendon tune`; never while a plan is made or run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/gemm/table.h"
#include "ops/ops.h"

namespace tendon::gemm {

// One product on a card with memory of its own.
class Trial {
 public:
  virtual ~Trial() = default;
  // Kernels as a row names them; those of a library first, in its own order of preference.
  virtual std::vector<std::string> candidates() = 0;
  // Largest difference from a plain computation, in units of what the types allow: at most 1 is right. Infinite when
  // the kernel does not run.
  virtual double error(const std::string& kernel) = 0;
  // Median time of one run in µs, weights from memory. Stops early, and returns what it has, once the kernel is surely
  // slower than limit_us. `careful`: more samples.
  virtual double time_us(const std::string& kernel, double limit_us, bool careful) = 0;
};

// A backend whose products are chosen from a table.
class TuneTarget {
 public:
  virtual ~TuneTarget() = default;
  // Of an operation that holds a product with a choice of kernels.
  virtual std::optional<Desc> product_of(const Op& op) const = 0;
  virtual std::unique_ptr<Trial> make_trial(const Desc& desc) = 0;
};

struct Measured {
  std::string kernel;  // empty: none ran
  double us = 0;
};

// What was found for one description.
struct Finding {
  Desc desc;
  Measured library_default, library_best, own_best, chosen;
  int tried = 0, wrong = 0;  // wrong: ran, with wrong numbers
  double seconds = 0;
};

struct TuneOptions {
  bool retune = false;                 // also what the table has
  double budget_s = 1e9;               // no new description is begun after it
  std::string date = {}, commit = {};  // of the new rows
  std::function<double()> now_s = {};
  // Before each description (null finding) and after it; done of total descriptions are complete.
  std::function<void(size_t done, size_t total, const Desc&, const Finding*)> report = {};
};

// Measures every description that the table lacks and puts the fastest right kernel into it. Returns how many were left
// out for want of time.
size_t tune(TuneTarget& target, const std::vector<Desc>& descs, Table& table, const TuneOptions& options);

// All kernels of one product.
Finding measure(Trial& trial, const Desc& desc);

}  // namespace tendon::gemm
