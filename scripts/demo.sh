#!/usr/bin/env bash
# From a fresh checkout to one action chunk: installs what is missing, builds, runs the policy on examples/observation.
#
# Environment:
#   TENDON_CHECKPOINT   a checkpoint directory instead of the built-in synthetic weights
#   TENDON_PRESET       policy preset (default pi0_aloha)
#   TENDON_TOKENIZER    a SentencePiece model; with it the prompt is text, without it the example's token ids
#   TENDON_PROMPT       the text (default examples/observation/prompt.txt)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
scripts/build.sh cpu tendon

full_size_kb=10000000 # 6.5 GB of weights, the caches, and room to breathe
checkpoint=${TENDON_CHECKPOINT:-}
if [[ -z $checkpoint ]]; then
  available=$(available_memory_kb)
  if ((available < full_size_kb)); then
    checkpoint=synthetic:pi0-tiny
    say "$((available / 1000000)) GB of memory available, the full-size model wants 10 GB: running the tiny one"
  else
    checkpoint=synthetic:pi0
    say "running the full-size model with synthetic weights (its actions mean nothing, its work is real)"
  fi
fi

observation=examples/observation
command=(build/cpu/cli/tendon run
  --checkpoint "$checkpoint"
  --preset "${TENDON_PRESET:-pi0_aloha}"
  --image "base=$observation/base.jpg"
  --image "left=$observation/left_wrist.jpg"
  --image "right=$observation/right_wrist.png"
  --state "$observation/state.json")
if [[ -n ${TENDON_TOKENIZER:-} ]]; then
  command+=(--prompt "${TENDON_PROMPT:-$(<"$observation/prompt.txt")}" --tokenizer "$TENDON_TOKENIZER")
elif [[ $checkpoint == synthetic:*-tiny ]]; then
  command+=(--tokens '2,107,255,193,442,90,134') # the tiny vocabulary has 512 pieces
else
  command+=(--tokens "$observation/tokens.json")
fi
printf '+%s\n' "$(printf ' %q' "${command[@]}")" >&2
exec "${command[@]}"
