// Kernels of kernels.h that have no version for AMD cards: the operations run as their parts instead.
#include "backend/gpu/kernels.h"
#include "base/check.h"

namespace tendon::gpu {

bool takes_few_rows(const NormQkvRope&) { return false; }
bool takes_few_rows(const NormGateUpGelu&) { return false; }
bool takes_few_rows(const LinearResidual&) { return false; }
void launch_few_rows_norm_qkv_rope(const NormQkvRope&, Stream) { throw_device("few_rows has no kernel here"); }
void launch_few_rows_norm_gate_up_gelu(const NormGateUpGelu&, Stream) { throw_device("few_rows has no kernel here"); }
void launch_few_rows_linear_residual(const LinearResidual&, Stream) { throw_device("few_rows has no kernel here"); }

bool takes_attention_cluster(const Attention&) { return false; }
void launch_attention_cluster(const Attention&, Stream) { throw_device("there are no clusters of blocks here"); }

}  // namespace tendon::gpu
