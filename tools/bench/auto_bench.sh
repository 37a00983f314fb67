#!/usr/bin/env bash
# Time of `strategy: auto`, by `trainer plan` as a whole: seven sizes from 10 million to 405 billion parameters on 1 to 4,096 H100, then published
# configs (tests/job/published). Seconds of the clock and of processors, for other programs may share the machine. Needs /usr/bin/time (Debian: time).
# Usage: tools/bench/auto_bench.sh [grid|published]; default: both.
set -euo pipefail
cd "$(dirname "$0")/../.."
trainer=$(realpath "${TRAINER:-build/trainer}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# planned NAME ARGUMENTS…: a row
planned() {
  local name=$1 wall user system chosen step
  shift
  /usr/bin/time -q -o "$folder/time" -f "%e %U %S" "$trainer" plan "$@" >"$folder/out" 2>"$folder/err" || true  # what does not fit is a row too
  read -r wall user system <"$folder/time"
  chosen=$(sed -nE '/ taken$/{s/^ +//; s/ {2,}.*//; p; q}' "$folder/out")
  [ -n "$chosen" ] || chosen=$(sed -nE 's/^strategy: *(.*)/\1/p' "$folder/out")
  grep -q 'error:' "$folder/err" && chosen="does not fit"
  step=$(sed -nE 's/^a step on [^:]*: ([0-9.,]+ [mµ]?s).*/\1/p' "$folder/out")
  printf '| %s | %.2f s | %.2f s | %s | %s |\n' "$name" "$wall" "$(awk -v u="$user" -v s="$system" 'BEGIN { print u + s }')" "$chosen" "$step"
}

# size NAME GRAPH WITH SEQ_LEN GLOBAL_BATCH
size() {
  local ranks
  for ranks in 1 8 64 512 4096; do
    cat >"$folder/job.yaml" <<JOB
model: {graph: models/$2.yaml, with: {$3}}
data: {format: tokens, train: [ids.bin], seq_len: $4}
train: {steps: 1000, batch: {global: $(($5 > ranks ? $5 : ranks))}}
precision: {compute: bf16}
cluster: {hardware: h100-sxm, nodes: $((ranks < 8 ? 1 : ranks / 8)), devices_per_node: $((ranks < 8 ? ranks : 8))}
JOB
    planned "$1 on $ranks" "$folder/job.yaml"
  done
}

gpt() { echo "layers: $1, heads: $2, dim: $3, vocab: ${5:-50304}, context: $4"; }
llama() { echo "layers: $1, heads: $2, kv_heads: $3, dim: $4, hidden: $5, vocab: 128256"; }

grid() {
  size 10M gpt2 "$(gpt 6 6 384 256 256)" 256 512
  size 124M gpt2 "$(gpt 12 12 768 1024)" 1024 512
  size 1.5B gpt2 "$(gpt 48 25 1600 1024)" 1024 512
  size 1B llama "$(llama 16 32 8 2048 8192)" 8192 256
  size 8B llama "$(llama 32 32 8 4096 14336)" 8192 512
  size 70B llama "$(llama 80 64 8 8192 28672)" 8192 1024
  size 405B llama "$(llama 126 128 8 16384 53248)" 8192 2048
}

published() {
  local row name nodes
  for row in llama-3.1-8b:1 llama-3.1-70b:2 llama-3.1-70b:4 llama-3.1-405b:12 llama-3.1-405b:16 qwen2.5-72b:2 qwen3-0.6b:1 qwen3-1.7b:1 qwen3-4b:1 qwen3-8b:1 \
    qwen3-14b:1 qwen3-32b:1 gemma-3-27b:1 gemma-3-27b:2 phi-3-mini-4k:1 phi-3-medium-4k:1; do
    name=${row%:*} nodes=${row#*:}
    planned "$name on $nodes × 8" "tests/job/published/$name" cluster.hardware=h100-sxm "cluster.nodes=$nodes"
  done
}

echo "| model, H100s | clock | processor | chosen | a step |"
echo "|---|---|---|---|---|"
case ${1:-both} in
  grid) grid ;;
  published) published ;;
  *) grid && published ;;
esac
