// From the word after --checkpoint to weights in host memory.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights/synth.h"
#include "model/weights/weights.h"

namespace tendon {

struct LoadOptions {
  std::optional<Variant> variant;       // must agree with the tensors
  LengthChoice horizon, max_token_len;  // option, preset; the checkpoint's config comes last
  Making making = Making::kAtOnce;      // of synthetic weights; kWhenAsked for a device that makes its own
};

struct LoadedModel {
  std::unique_ptr<TensorSource> source;  // owns what the weights point to
  Checkpoint* checkpoint = nullptr;      // the source when it is a checkpoint on disk, else null
  ModelConfig config;
  Weights weights;  // host views
};

// `checkpoint` is a directory, a .safetensors file, or synthetic:pi0 | synthetic:pi05 | synthetic:pi0-tiny |
// synthetic:pi05-tiny. Throws Error(kBadInput, kBadUse) as its parts do.
LoadedModel load_model(const std::string& checkpoint, const LoadOptions& options = {}, const LogSink& log = {},
                       const Progress& progress = {});

}  // namespace tendon
