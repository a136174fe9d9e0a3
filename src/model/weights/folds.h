// Named simplifications of the forward. Each leaves the result the same in real arithmetic and can be switched off, so
// that its effect can be tested.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tendon {

struct Folds {
  bool pack_valid_tokens = true;
  bool last_prefix_layer_kv_only = true;
  bool state_token_once = true;
  bool time_tables = true;
  bool action_in = true;
};

struct FoldInfo {
  std::string_view name;
  bool Folds::*field;
  std::string_view meaning;
};

inline constexpr std::array<FoldInfo, 5> kFolds{{
    {"pack_valid_tokens", &Folds::pack_valid_tokens,
     "masked cameras and padded tokens are dropped before the prefix, the rest is packed"},
    {"last_prefix_layer_kv_only", &Folds::last_prefix_layer_kv_only,
     "of the last prefix layer only keys and values are computed; the prefix's final norm is dropped"},
    {"state_token_once", &Folds::state_token_once,
     "π0: keys and values of the state token are computed in the first denoise step only"},
    {"time_tables", &Folds::time_tables,
     "everything that depends on the time alone is tabulated at load: π0 the time half of action_time_mlp_in, π0.5 all "
     "adaRMS modulations"},
    {"action_in", &Folds::action_in,
     "π0 with time_tables: action_in_proj is multiplied into action_time_mlp_in (in f64), one small product instead of "
     "two"},
}};

// Throws Error(kBadUse) for a name that is not in kFolds.
void switch_off(Folds& folds, std::string_view name);

}  // namespace tendon
