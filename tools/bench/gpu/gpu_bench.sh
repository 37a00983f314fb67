#!/usr/bin/env bash
# GPT-2 124M and 1558M and Llama 1B on one GPU, here and by torch.compile in the same run: numbers checked, tokens/s, share of the peak as
# llm.c counts it (6 N + 6 L C T FLOPs a token), and what each kernel took beside its floor. Any GPU does that has a hardware file; a cell
# that does not fit it says so. The trainer's cells come before the peer's, and speed.md is written again after each.
#
#   tools/bench/gpu/gpu_bench.sh [--build build] [--out DIR] [--cells gpt2-124m,gpt2-1558m,llama-1b] [--steps 30] [--no-peer] [--no-trainer]
#
# Leaves speed.md and the JSON and log of every run in DIR. PYTHON (python3) makes the table and, with PyTorch, the peer; perl makes the tokens.
# Exit status: 0 if every cell ran, or did not fit, and its numbers are right.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 74

build=build out=build/bench-gpu cells=gpt2-124m,gpt2-1558m,llama-1b steps=30 peer=1 trainer=1
while (($#)); do
  case $1 in
    --build) build=$2; shift ;;
    --out) out=$2; shift ;;
    --cells) cells=$2; shift ;;
    --steps) steps=$2; shift ;;
    --no-peer) peer=0 ;;
    --no-trainer) trainer=0 ;;
    *) sed -n '2,10p' "$0" >&2; exit 64 ;;
  esac
  shift
done
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 74
python=${PYTHON:-python3}
failed=0

# tokens NAME VOCAB PACK COUNT: the file of a cell's random tokens.
tokens() {
  local file=$out/$1.bin
  [[ -s $file ]] ||
    perl -e 'srand 1; my ($v, $p, $n) = @ARGV; binmode STDOUT; for (my $i = 0; $i < $n; $i += 65536) { print pack("$p*", map { int rand $v } 1 .. 65536) }' "$2" "$3" "$4" >"$file.part" && mv "$file.part" "$file" || return
  printf '%s' "$file"
}

# run_cell NAME TOKENS: a captured run for its speed, one that is issued kernel by kernel for the kernels' times, and the numbers of both.
run_cell() {
  local name=$1 file=$2 job=tools/bench/gpu/$1.yaml
  rm -f "$out/$name".{json,works.json,log.jsonl,works.jsonl,failed}
  if ! "$build/trainer" plan "$job" --json >"$out/$name.plan.json" && grep -q '"fits": false' "$out/$name.plan.json"; then
    echo "does not fit this GPU" >"$out/$name.failed"
    return 0
  fi
  echo "did not run" >"$out/$name.failed"
  "$build/trainer" run "$job" "data.train=$file" "train.steps=$steps" "log.jsonl=$out/$name.log.jsonl" --json >"$out/$name.json" || return 1
  "$build/trainer" run "$job" "data.train=$file" train.steps=4 "log.jsonl=$out/$name.works.jsonl" "log.trace=$out/$name.trace.json" --json >"$out/$name.works.json" || return 1
  echo "its numbers are wrong" >"$out/$name.failed"
  "$python" tools/bench/gpu/numbers.py "$out" "$name" && rm "$out/$name.failed"
}

write_table() { "$python" tools/bench/gpu/speed_table.py "$out" "${names[@]}" >"$out/speed.md" || failed=1; }

IFS=, read -ra names <<<"$cells"
if ((trainer)); then
  for name in "${names[@]}"; do
    case $name in
      gpt2-*) file=$(tokens "$name" 50257 v 4194304) ;;
      llama-*) file=$(tokens "$name" 128256 V 4194304) ;;
      *) echo "gpu_bench: no such cell: $name" >&2; exit 64 ;;
    esac || { echo "gpu_bench: no tokens for $name" >&2; exit 74; }
    echo "== $name: trainer" >&2
    run_cell "$name" "$file" || failed=1
    write_table
  done
fi
if ((peer)); then
  for name in "${names[@]}"; do
    echo "== $name: torch.compile" >&2
    "$python" tools/bench/gpu/peer.py --cells "$name" --steps "$steps" | tee "$out/$name.peer.json" >&2 || failed=1
    write_table
  done
fi
cat "$out/speed.md"
exit $failed
