// The weights as kernels see them: in the compute type, in device memory, used in place where the backend reads host
// memory and the stored type fits.
#pragma once

#include "backend/backend.h"
#include "model/weights/folds.h"
#include "model/weights/static_scales.h"
#include "model/weights/tables.h"
#include "model/weights/weights.h"

namespace tendon {

class WeightStore {
 public:
  // `host` and its source must outlive the store when weights are used in place. Weights without host memory are made
  // on the device where it can, else by their source. `compute` is f32, bf16, e4m3 or i8: matrices become bf16 in a
  // bf16 engine, those of `coded` codes with a scale for each row in the last two; an f32 engine keeps bf16 ones as
  // they are (kernels widen them, which is exact) and f32 ones as f32. `coded.expert_weights` rounds the expert's
  // matrices to what i8 codes can hold, in the last two. With `maxima`, what is behind attention and GELU
  // gets static scales where it has codes. Throws Error(kBadInput) then, naming a weight that is kept in codes or in
  // f32 and holds a number that is not finite.
  WeightStore(Backend& backend, const Weights& host, const ModelConfig& config, const Folds& folds, DType compute,
              const CodedProducts& coded, const HostTables& tables, const OperandMaxima* maxima = nullptr);

  const Weights& weights() const { return weights_; }
  const Tables& tables() const { return tables_; }
  size_t copied_bytes() const { return block_.bytes(); }     // tables and weights converted, uploaded or made there
  size_t made_bytes() const { return made_bytes_; }          // of these, made on the device by a rule
  size_t in_place_bytes() const { return in_place_bytes_; }  // weights read where the checkpoint maps them

 private:
  Weights weights_;
  Tables tables_;
  DeviceBlock block_;
  size_t in_place_bytes_ = 0, made_bytes_ = 0;
};

}  // namespace tendon
