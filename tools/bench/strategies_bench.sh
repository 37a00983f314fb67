#!/usr/bin/env bash
# Time of a step under each strategy on 2 ranks as threads, against one rank with the same cores, on nanoGPT's character shape (6 layers of
# 384 channels, 64 × 256 tokens a step). What it takes more is communication that computation does not hide, and smaller products.
#
#   tools/bench/strategies_bench.sh TEXT [precision…]     TEXT: a text file; precisions: f32 bf16 (both)
#
# Strategies are taken in turns, ROUNDS times (3), and the best median of each counts: machines are noisy.
set -euo pipefail
cd "$(dirname "$0")/../.."
text=${1:?usage: strategies_bench.sh TEXT [precision…]}
shift
precisions=("$@")
((${#precisions[@]})) || precisions=(f32 bf16)
rounds=${ROUNDS:-3} steps=${STEPS:-4} trainer=${TRAINER:-build/trainer}

names=(one ddp zero1 zero2 zero3 fsdp "tensor 2" "sequence parallel 2" "pipeline 2, 1f1b" "pipeline 2, zb_h1")
strategies=("ddp" "ddp" "zero1" "zero2" "zero3" "fsdp" "{tensor: {degree: 2}}" "{tensor: {degree: 2, sequence_parallel: true}}"
            "{pipeline: {degree: 2}}" "{pipeline: {degree: 2, schedule: zb_h1}}")
micro=(64 32 32 32 32 32 64 64 8 8)

# The median of the steps but the first, in milliseconds.
step_ms() {
  local ranks=2
  [[ $1 == one ]] && ranks=1
  "$trainer" run configs/nanogpt-char.yaml "data.train=$text" eval.batches=1 "train.steps=$steps" "precision.compute=$4" \
    "checkpoint={dir: null}" "log={jsonl: null}" "cluster.devices_per_node=$ranks" "train.batch.micro=$3" "strategy=$2" --json 2>/dev/null |
    sed -n 's/.*"median": *\([0-9.]*\).*/\1/p'
}

for precision in "${precisions[@]}"; do
  best=()
  for ((round = 0; round < rounds; ++round)); do
    for i in "${!names[@]}"; do
      ms=$(step_ms "${names[i]}" "${strategies[i]}" "${micro[i]}" "$precision")
      best[i]=$(awk -v a="${best[i]:-1e30}" -v b="$ms" 'BEGIN { print (b < a ? b : a) }')
    done
  done
  echo "$precision: strategy, ms a step, times one rank"
  for i in "${!names[@]}"; do awk -v n="${names[i]}" -v a="${best[i]}" -v b="${best[0]}" 'BEGIN { printf "  %-22s %9.1f  %5.2f\n", n, a, a / b }'; done
done
