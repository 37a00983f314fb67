#!/usr/bin/env bash
# GPT-2 124M and 1558M and Llama 1B on one GPU, here and by torch.compile, in turns in one run: tokens/s, share of the peak as llm.c counts it
# (6 N + 6 L C T FLOPs a token), and what each kernel took beside its floor.
#
#   tools/bench/gpu/gpu_bench.sh [--build build] [--out DIR] [--cells gpt2-124m,gpt2-1558m,llama-1b] [--steps 30] [--no-peer]
#
# Leaves speed.md and the JSON of every run in DIR. PYTHON (python3) has PyTorch; perl makes the tokens.
set -euo pipefail
cd "$(dirname "$0")/../../.."

build=build out=build/bench-gpu cells=gpt2-124m,gpt2-1558m,llama-1b steps=30 peer=1
while (($#)); do
  case $1 in
    --build) build=$2; shift ;;
    --out) out=$2; shift ;;
    --cells) cells=$2; shift ;;
    --steps) steps=$2; shift ;;
    --no-peer) peer=0 ;;
    *) sed -n '2,9p' "$0" >&2; exit 64 ;;
  esac
  shift
done
mkdir -p "$out"
out=$(cd "$out" && pwd)

# cell NAME: where its random tokens are, vocabulary, token type, N parameters as the plan counts them, layers · dim · seq.
tokens() {
  local file=$out/$1.bin vocab=$2 pack=$3 count=$4
  [[ -s $file ]] || perl -e 'srand 1; my ($v, $p, $n) = @ARGV; binmode STDOUT; for (my $i = 0; $i < $n; $i += 65536) { print pack("$p*", map { int rand $v } 1 .. 65536) }' "$vocab" "$pack" "$count" >"$file"
  printf '%s' "$file"
}

IFS=, read -ra names <<<"$cells"
for name in "${names[@]}"; do
  case $name in
    gpt2-*) file=$(tokens "$name" 50257 v 4194304) ;;
    llama-*) file=$(tokens "$name" 128256 V 4194304) ;;
    *) echo "gpu_bench: no such cell: $name" >&2; exit 64 ;;
  esac
  job=tools/bench/gpu/$name.yaml
  echo "== $name: trainer" >&2
  "$build/trainer" run "$job" "data.train=$file" "train.steps=$steps" --json >"$out/$name.json"
  # The kernels' times come from a run whose steps are issued one by one, between events.
  "$build/trainer" run "$job" "data.train=$file" train.steps=4 "log.trace=$out/$name.trace.json" --json >"$out/$name.works.json"
  if ((peer)); then
    echo "== $name: torch.compile" >&2
    "${PYTHON:-python3}" tools/bench/gpu/peer.py --cells "$name" --steps "$steps" | tee "$out/$name.peer.json" >&2
  fi
done
"${PYTHON:-python3}" tools/bench/gpu/speed_table.py "$out" "${names[@]}" >"$out/speed.md"
cat "$out/speed.md"
