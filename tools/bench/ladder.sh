#!/usr/bin/env bash
# What `strategy: auto` chooses from 10 million to 405 billion parameters and from 1 to 4,096 GPUs: a row each of a Markdown table. Plans
# alone, no GPU. Usage: tools/bench/ladder.sh [TRAINER]; LADDER_WHY=1 adds each choice's paragraph.
set -euo pipefail
trainer=${1:-build/trainer}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# name graph "with" seq global_batch hardware nodes devices
row() {
  local name=$1 graph=$2 with=$3 seq=$4 batch=$5 hardware=$6 nodes=$7 devices=$8
  cat >"$folder/job.yaml" <<JOB
name: $name
model: {graph: models/$graph.yaml, with: {$with}}
data: {format: tokens, train: [ids.bin], seq_len: $seq}
train: {steps: 1000, batch: {global: $batch}}
precision: {compute: bf16}
cluster: {hardware: $hardware, nodes: $nodes, devices_per_node: $devices}
JOB
  local start end text
  start=$(date +%s%N)
  text=$("$trainer" plan "$folder/job.yaml" 2>/dev/null) || true
  end=$(date +%s%N)
  local chosen step mfu memory
  chosen=$(sed -nE '/ taken$/{s/^ +//; s/ {2,}.*//; p; q}' <<<"$text")
  [ -n "$chosen" ] || chosen="one GPU, $(sed -nE 's/^batch: .*× ([0-9]+)$/micro-batch \1/p' <<<"$text")"
  step=$(sed -nE 's/^a step on [^:]*: ([0-9.,]+ [mµ]?s).*/\1/p' <<<"$text")
  mfu=$(sed -nE 's/^a step on .* ([0-9.]+%) of the peak.*/\1/p' <<<"$text")
  memory=$(sed -nE 's/^memory of a rank[^:]*: ([0-9.]+ [KMG]iB).* of ([0-9.]+ [KMG]iB)$/\1 of \2/p' <<<"$text")
  echo "| $name | $((nodes * devices)) × $hardware | $batch × $seq | $chosen | $step | $mfu | $memory | $(((end - start) / 1000000)) ms |"
  if [ -n "${LADDER_WHY:-}" ]; then sed -n '/^the choice/,/^ *alternatives/p' <<<"$text" | sed '1d;$d'; fi
}

gpt() { echo "layers: $1, heads: $2, dim: $3, vocab: ${5:-50304}, context: $4"; }
llama() { echo "layers: $1, heads: $2, kv_heads: $3, dim: $4, hidden: $5, vocab: 128256"; }

echo "| model | on | batch | chosen | a step | MFU | memory of a rank | planned in |"
echo "|---|---|---|---|---|---|---|---|"
row gpt-10m gpt2 "$(gpt 6 6 384 256 256)" 256 64 rtx4090 1 1
row gpt-124m gpt2 "$(gpt 12 12 768 1024)" 1024 512 a100-40gb 1 1
row gpt-124m gpt2 "$(gpt 12 12 768 1024)" 1024 512 h100-sxm 1 8
row gpt-350m gpt2 "$(gpt 24 16 1024 1024)" 1024 512 a100-40gb 1 8
row gpt-1.5b gpt2 "$(gpt 48 25 1600 1024)" 1024 512 h100-sxm 1 8
row llama-1b llama "$(llama 16 32 8 2048 8192)" 8192 128 h100-sxm 1 8
row llama-8b llama "$(llama 32 32 8 4096 14336)" 8192 128 h100-sxm 1 8
row llama-8b llama "$(llama 32 32 8 4096 14336)" 8192 512 h100-sxm 16 8
row llama-8b llama "$(llama 32 32 8 4096 14336)" 8192 1024 a100-80gb 32 8
row llama-70b llama "$(llama 80 64 8 8192 28672)" 8192 256 h100-sxm 8 8
row llama-70b llama "$(llama 80 64 8 8192 28672)" 8192 1024 h100-sxm 64 8
row llama-70b llama "$(llama 80 64 8 8192 28672)" 8192 512 h200 16 8
row llama-405b llama "$(llama 126 128 8 16384 53248)" 8192 512 h100-sxm 64 8
row llama-405b llama "$(llama 126 128 8 16384 53248)" 8192 2048 h100-sxm 512 8
