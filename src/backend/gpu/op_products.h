// The products in fused operations, and what stands in front of them.
#pragma once

#include "backend/gpu/launch.h"
#include "backend/gpu/products.h"
#include "ops/ops.h"

namespace tendon::gpu {

// Hands out parts of the workspace; without one, only counts.
class Scratch {
 public:
  explicit Scratch(void* workspace) : base_(static_cast<char*>(workspace)) {}
  Tensor take(DType dtype, const Shape& shape);
  size_t used() const { return used_; }
  void* rest() const { return base_ + used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// Where the rows of x are when a product with w reads them: cast to its codes in the scratch memory, or as they are (in
// such codes already, or with w in another type).
Tensor operand_rows(const Tensor& x, const Tensor& w, Scratch& scratch);

// The product with its result in a scratch tensor of this type where it would be codes; else as it is.
Product without_codes(const Product& p, DType type, Scratch& scratch);

// `rows` are what the weights are multiplied with: x, or its norm, or their codes.
Product product_in(const LinearResidual& a, const Tensor& rows);
Product product_in(const LayerNormLinear& a, const Tensor& rows, Scratch& scratch);
Product product_in(const LayerNormQkv& a, const Tensor& rows, Scratch& scratch);
Product product_in(const NormGateUpGelu& a, const Tensor& rows, Scratch& scratch);
Product product_in(const NormQkvRope& a, const Tensor& rows, Scratch& scratch);

// One of the matrices that the rows are multiplied with: all have its type.
inline const Tensor& weight_of(const LayerNormLinear& a) { return a.w; }
inline const Tensor& weight_of(const LayerNormQkv& a) { return a.wq; }
inline const Tensor& weight_of(const NormGateUpGelu& a) { return a.w_gate; }
inline const Tensor& weight_of(const NormQkvRope& a) { return a.wk; }

// The norm in front, into h; norm_makes_codes: h may be codes like these rows.
Launch norm_launch(const LayerNormLinear& a, const Tensor& h);
Launch norm_launch(const LayerNormQkv& a, const Tensor& h);
Launch norm_launch(const NormGateUpGelu& a, const Tensor& h);
Launch norm_launch(const NormQkvRope& a, const Tensor& h);
bool norm_makes_codes(const LayerNormLinear& a, const Tensor& rows);
bool norm_makes_codes(const LayerNormQkv& a, const Tensor& rows);
bool norm_makes_codes(const NormGateUpGelu& a, const Tensor& rows);
bool norm_makes_codes(const NormQkvRope& a, const Tensor& rows);

}  // namespace tendon::gpu
