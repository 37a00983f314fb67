#!/usr/bin/env bash
# Time and memory of planning: `trainer plan` as a whole, from the start of the process to its last line. Needs /usr/bin/time (Debian: time).
#
#   tools/bench/plan_bench.sh [KEY=VALUE…]     overrides for every job
#
# Of ROUNDS (3) rounds the best: wall and processor seconds (roles are planned on all processors), peak resident memory; the size is the
# instructions of a step, those of the first stage times the stages. Rounds whose plans hash differently are an error.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${ROUNDS:-3} trainer=$(realpath "${TRAINER:-build/trainer}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# job NAME MODEL WITH SEQ_LEN GLOBAL MICRO STRATEGY CLUSTER
job() {
  cat >"$folder/$1.yaml" <<END
model: {graph: models/$2.yaml, with: $3}
data: {format: tokens, train: [tokens.bin], seq_len: $4}
train: {steps: 1, batch: {global: $5, micro: $6}}
precision: {compute: bf16}
strategy: $7
cluster: $8
END
  jobs+=("$1")
}

jobs=()
gpt2="{layers: 12, heads: 12, dim: 768, vocab: 50304, context: 1024}"
llama3_405b="{layers: 126, dim: 16384, heads: 128, kv_heads: 8, hidden: 53248, vocab: 128256}"
three_d() { echo "{data: {kind: $1}, tensor: {degree: 8, sequence_parallel: true}, pipeline: {degree: 16, schedule: $2}}"; }
job gpt2-124m-ddp-8 gpt2 "$gpt2" 1024 64 4 ddp "{devices_per_node: 8}"
job gpt2-124m-3d-8 gpt2 "$gpt2" 1024 64 4 "{data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}" "{devices_per_node: 8}"
job llama-405b-16384 llama "$llama3_405b" 8192 2048 1 "$(three_d fsdp 1f1b)" "{hardware: h100-sxm, nodes: 2048, devices_per_node: 8}"
job llama-405b-16384-interleaved llama "$llama3_405b" 8192 2048 1 "$(three_d fsdp 'interleaved, virtual_stages: 4')" "{hardware: h100-sxm, nodes: 2048, devices_per_node: 8}"
job llama-405b-16384-zero1 llama "$llama3_405b" 8192 2048 1 "$(three_d zero1 1f1b)" "{hardware: h100-sxm, nodes: 2048, devices_per_node: 8}"
job llama-65b-512-micro-batches llama "{layers: 80, dim: 8192, heads: 64, kv_heads: 64, hidden: 22016, vocab: 32000}" 2048 1024 1 \
  "{data: {kind: zero1}, tensor: {degree: 8}, pipeline: {degree: 8}}" "{hardware: h100-sxm, nodes: 16, devices_per_node: 8}"
job zb_h1-16-512-micro-batches llama "{layers: 126, dim: 4096, heads: 32, kv_heads: 8, hidden: 14336, vocab: 128256}" 8192 512 1 \
  "{tensor: {degree: 8}, pipeline: {degree: 16, schedule: zb_h1}}" "{hardware: h100-sxm, nodes: 16, devices_per_node: 8}"
job zb_h1-16-4096-micro-batches gpt2 "{layers: 16, heads: 4, dim: 64, vocab: 256, context: 128}" 128 4096 1 \
  "{pipeline: {degree: 16, schedule: zb_h1}}" "{nodes: 2, devices_per_node: 8}"
job 64-stages-512-micro-batches gpt2 "{layers: 64, heads: 4, dim: 64, vocab: 256, context: 128}" 128 512 1 "{pipeline: {degree: 64}}" "{nodes: 8, devices_per_node: 8}"

printf '%-30s %12s %8s %10s %9s\n' plan instructions "wall s" "processor" "peak MiB"
for name in "${jobs[@]}"; do
  wall=1e30 processor=1e30 peak=0 hash=
  for ((round = 0; round < rounds; ++round)); do
    code=0  # 78: planned, and told that it does not fit
    /usr/bin/time -q -o "$folder/time" -f "%e %U %S %M" "$trainer" plan "$folder/$name.yaml" "$@" >"$folder/out" 2>"$folder/err" || code=$?
    first=$(head -n 1 "$folder/out")
    if [[ ($code != 0 && $code != 78) || $first != *": plan "* ]]; then
      cat "$folder/err" >&2
      exit 1
    fi
    if [[ -n $hash && $hash != "${first##* }" ]]; then
      echo "$name: two plans of one job: $hash and ${first##* }" >&2
      exit 1
    fi
    hash=${first##* }
    read -r e u s m <"$folder/time"
    wall=$(awk -v a="$wall" -v b="$e" 'BEGIN { print (b < a ? b : a) }')
    processor=$(awk -v a="$processor" -v b="$u" -v c="$s" 'BEGIN { print (b + c < a ? b + c : a) }')
    peak=$((m > peak ? m : peak))
  done
  instructions=$(sed -n 's/.*instructions: \([0-9,]*\) step.*/\1/p' "$folder/out" | tr -d ,)
  stages=$(sed -n 's/^mesh: *pipeline \([0-9]*\).*/\1/p' "$folder/out")
  printf '%-30s %12d %8.2f %10.2f %9d\n' "$name" $((instructions * stages)) "$wall" "$processor" $((peak / 1024))
done
