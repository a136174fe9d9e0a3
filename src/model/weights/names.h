// Canonical tensor names: openpi's PyTorch layout.
#pragma once

#include <string>

#include "checkpoint/key_styles.h"

namespace tendon {

inline const std::string kVision = "paligemma_with_expert.paligemma.model.vision_tower.vision_model.";
inline const std::string kProjector = "paligemma_with_expert.paligemma.model.multi_modal_projector.linear.";
inline const std::string kPrefix = "paligemma_with_expert.paligemma.model.language_model.";
inline const std::string kExpert = "paligemma_with_expert.gemma_expert.model.";
inline const std::string kEmbedding{kEmbeddingName};
inline const std::string kExpertHead = "paligemma_with_expert.gemma_expert.lm_head.weight";

}  // namespace tendon
