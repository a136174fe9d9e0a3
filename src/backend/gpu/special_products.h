// Products on kernels that one architecture alone has, beside the portable ones and the library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/gpu/gemm.h"
#include "backend/gpu/launch.h"

namespace tendon::gpu {

class SpecialProducts {
 public:
  virtual ~SpecialProducts() = default;
  // The word before the colon of a kernel in a GEMM table: "wgmma".
  virtual std::string_view name() const = 0;
  // The kernel behind the colon exists, for whatever products.
  virtual bool exists(std::string_view kernel) const = 0;
  // Names of the kernels that run this product. Planned memory counts as fitting.
  virtual std::vector<std::string> kernels(const Product& p) const = 0;
  virtual bool takes(const Product& p, std::string_view kernel) const = 0;
  // A launch allocates nothing and may be captured. Null when this kernel does not run it.
  virtual Launch prepare(const Product& p, std::string_view kernel) const = 0;
};

}  // namespace tendon::gpu
