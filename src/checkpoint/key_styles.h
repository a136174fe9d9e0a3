// Names under which tools store the same tensor, and the one canonical name that tendon uses (see tensor_source.h).
//
// Abbreviations: PWE = paligemma_with_expert, PG = PWE.paligemma, EX = PWE.gemma_expert.model.
//   stored                                              canonical
//   model.<PWE|state_proj|action_*|time_mlp_*>...       without the outer "model." (LeRobot training)
//   PG.language_model.model.X, PG.language_model.X      PG.model.language_model.X (transformers before 4.52)
//   PG.model.language_model.model.X                     PG.model.language_model.X
//   PG.language_model.lm_head.X                         PG.lm_head.X
//   PG.[model.]vision_tower.X                           PG.model.vision_tower.vision_model.X
//   PG.[model.]vision_tower.vision_model.X              PG.model.vision_tower.vision_model.X
//   PG.multi_modal_projector.X                          PG.model.multi_modal_projector.X
// What depends on more than the name (the embedding table, time_mlp_* against action_time_mlp_*) is settled in
// checkpoint.cc.
#pragma once

#include <string>
#include <string_view>

namespace tendon {

// The token embedding table (V, E) and the other name that it may be stored under.
inline constexpr std::string_view kEmbeddingName = "paligemma_with_expert.paligemma.lm_head.weight";
inline constexpr std::string_view kEmbedTokensName =
    "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight";

enum class KeyKind {
  kWeight,   // belongs to the model, if the model knows the canonical name
  kIgnored,  // known not to be needed; `note` says why
  kStats,    // normalisation statistics among the weights (old LeRobot); canonical is "normalize_inputs.…" and so on
  kRefused,  // makes the checkpoint unusable; `note` says why and what to do
};

struct KeyMapping {
  KeyKind kind = KeyKind::kWeight;
  std::string canonical;
  std::string_view note;
};

// Never throws; unknown names come back as weights of the same name, for the model to report as unexpected.
KeyMapping map_key(std::string_view stored);

// How to call a canonical name in a message about a missing tensor: the name, and for the embedding table also the
// other key it is accepted under.
std::string describe_key(std::string_view canonical);

}  // namespace tendon
