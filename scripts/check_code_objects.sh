#!/usr/bin/env bash
# Checks what a compiler made of the kernels for AMD cards, by the notes and the disassembly of their code objects.
#
#   scripts/check_code_objects.sh BUDGETS ARCHITECTURES OBJECT...
#
# BUDGETS: src/backend/hip/budgets.txt; ARCHITECTURES: "gfx942;gfx950" or with spaces; OBJECT: what tendon_hip_library() builds.
# Prints a line for every kernel that uses more than it may, or lacks an instruction; exit code 1 when there is one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

budgets=$1 architectures=${2//;/ }
shift 2
for tool in llvm-objcopy clang-offload-bundler llvm-readelf llvm-objdump llvm-cxxfilt; do
  command -v "$tool-22" >/dev/null || die "check_code_objects.sh: there is no $tool-22 (packages llvm-22 clang-tools-22)"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One line a kernel: vector registers, scalar spills, vector spills, scratch, shared bytes, wave, symbol
numbers() {
  llvm-readelf-22 --notes "$1" | awk '
    /\.group_segment_fixed_size:/ { shared = $NF }
    /\.private_segment_fixed_size:/ { scratch = $NF }
    /\.sgpr_spill_count:/ { scalar = $NF }
    /\.symbol:/ { symbol = $NF; sub(/\.kd$/, "", symbol) }
    /\.vgpr_count:/ { vector = $NF }
    /\.vgpr_spill_count:/ { spilled = $NF }
    /\.wavefront_size:/ { print vector, scalar, spilled, scratch, shared, $NF, symbol }'
}

kernels=0 bad=0
for object in "$@"; do
  llvm-objcopy-22 --dump-section .hip_fatbin="$work/bundle" "$object" /dev/null
  for architecture in $architectures; do
    clang-offload-bundler-22 --unbundle --type=o --input="$work/bundle" --output="$work/code" \
      --targets="hipv4-amdgcn-amd-amdhsa--$architecture"
    numbers "$work/code" >"$work/numbers"
    [[ -s $work/numbers ]] || die "check_code_objects.sh: $object has no kernels for $architecture"
    llvm-objdump-22 -d --no-show-raw-insn --no-leading-addr "$work/code" >"$work/text"
    units='@bf16 v_mfma_f32_16x16x16_bf16 @bf16x32 v_mfma_f32_32x32x8_bf16
           @e4m3 v_mfma_f32_16x16x32_fp8_fp8 @e4m3x32 v_mfma_f32_32x32x16_fp8_fp8
           @i8 v_mfma_i32_16x16x32_i8 @i8x32 v_mfma_i32_32x32x16_i8'
    [[ $architecture != gfx950 ]] ||
      units='@bf16 v_mfma_f32_16x16x32_bf16 @bf16x32 v_mfma_f32_32x32x16_bf16
             @e4m3 v_mfma_f32_16x16x128_f8f6f4 @e4m3x32 v_mfma_f32_32x32x64_f8f6f4
             @i8 v_mfma_i32_16x16x64_i8 @i8x32 v_mfma_i32_32x32x32_i8'
    while read -r report; do
      case $report in
        kernels*) kernels=$((kernels + ${report#kernels })) ;;
        *)
          bad=$((bad + 1))
          printf '%s: %s\n' "$architecture" "$report" | llvm-cxxfilt-22
          ;;
      esac
    done < <(paste -d' ' "$work/numbers" <(awk '{ print $7 }' "$work/numbers" | llvm-cxxfilt-22) |
      awk -v units="${units//$'\n'/ }" -v budgets="$budgets" -v text="$work/text" '
        BEGIN {
          count = split(units, unit, / +/)
          for (i = 1; i < count; i += 2) named[unit[i]] = unit[i + 1]
          while ((getline line < budgets) > 0) {
            if (line ~ /^ *(#|$)/) continue
            rules += 1
            count = split(line, field, / +/)
            pattern[rules] = field[1]; most[rules] = field[2]; most_scalar[rules] = field[3]; most_shared[rules] = field[4]
            for (i = 5; i <= count; ++i) needs[rules, ++need_count[rules]] = field[i] in named ? named[field[i]] : field[i]
          }
          while ((getline line < text) > 0) {
            if (line ~ /^<.*>:$/) { symbol = substr(line, 2, length(line) - 3); continue }
            split(line, word, /[ \t]+/)
            found[symbol, word[1] == "" ? word[2] : word[1]] = 1
          }
          for (key in found) { split(key, part, SUBSEP); instructions[part[1]] = instructions[part[1]] " " part[2] }
        }
        {
          kernels += 1
          symbol = $7
          name = $0
          for (i = 1; i <= 7; ++i) sub(/^[^ ]+ /, "", name)
          for (rule = 1; rule <= rules && name !~ pattern[rule]; ++rule) {}
          if (rule > rules) { print "no budget for " symbol; next }
          if ($1 > most[rule]) print $1 " vector registers, " most[rule] " allowed: " symbol
          if ($2 > most_scalar[rule]) print $2 " scalar registers spilled, " most_scalar[rule] " allowed: " symbol
          if ($3 > 0) print $3 " vector registers spilled: " symbol
          if ($4 > 0) print $4 " bytes of scratch memory: " symbol
          if ($5 > most_shared[rule]) print $5 " bytes of shared memory, " most_shared[rule] " allowed: " symbol
          if ($6 != 64) print "waves of " $6 " lanes: " symbol
          for (i = 1; i <= need_count[rule]; ++i)
            if (instructions[symbol] " " !~ " " needs[rule, i] "[_a-z0-9]* ") print "no " needs[rule, i] " in " symbol
        }
        END { print "kernels " kernels + 0 }')
  done
done
((kernels > 0)) || die "check_code_objects.sh: no kernels"
say "$kernels kernels in the code objects for $architectures, $bad outside their budgets"
((bad == 0))
