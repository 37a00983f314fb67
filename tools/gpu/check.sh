#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: builds for the GPU it finds, holds every kernel to its formula and whole models to the CPU,
# runs 2 and 4 NCCL ranks on the one GPU, looks for bad accesses and races, times. Needs the CUDA Toolkit, cmake, ninja and, for the peer,
# a python3 with PyTorch; where libraries are missing, the archive of carry.sh. Ends within 9 minutes on 16 cores.
#
#   tools/gpu/check.sh [--out DIR] [--only build,kernels,models,ranks,sanitizer,speed] [--minutes 9]
#
# A part that fails does not stop the others. Left in DIR (default: $OUT, else build-gpu/check): log.txt with everything, table.md.
# Exit status: 0 if nothing failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

out=${OUT:-build-gpu/check} only=build,kernels,models,ranks,sanitizer,speed minutes=9
while (($#)); do
  case $1 in
    --out) out=$2 ;;
    --only) only=$2 ;;
    --minutes) minutes=$2 ;;
    *) sed -n '2,10p' "$0" >&2; exit 64 ;;
  esac
  shift 2
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
log=$out/log.txt table=$out/table.md
: >"$log"
: >"$table"
deadline=$((SECONDS + minutes * 60))
failed=0

say() { printf '%s\n' "$*" | tee -a "$log"; }
# row PART WHAT RESULT: a line of the table.
row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3" >>"$table"; say "  $1 | $2 | $3"; }
wants() { [[ ,$only, == *,$1,* ]]; }
# part NAME SECONDS WHAT COMMAND…: runs it within its time and the whole's, all of its output in the log.
part() {
  local name=$1 limit=$2 what=$3 begin=$SECONDS left status
  shift 3
  left=$((deadline - SECONDS))
  if ((left < 5)); then row "$name" "$what" "NOT RUN: no time left"; failed=1; return 1; fi
  ((limit > left)) && limit=$left
  printf '\n==== %s: %s\n' "$name" "$what" >>"$log"
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1
  status=$?
  if ((status == 0)); then
    row "$name" "$what" "passed, $((SECONDS - begin)) s"
  else
    row "$name" "$what" "**FAILED** ($([[ $status == 124 ]] && echo "not done in $limit s" || echo "status $status")), $((SECONDS - begin)) s"
    tail -n 15 "$log" | sed 's/^/    /'
    failed=1
  fi
  return $status
}

# ---- The machine --------------------------------------------------------------------------------------------------

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >>"$log" 2>&1; then
  say "check: no NVIDIA GPU here (nvidia-smi finds none)"
  exit 1
fi
gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader | head -1)
IFS=, read -r gpu_name capability driver memory <<<"$gpu"
capability=${capability// /}
arch=${capability/./}
((arch == 90 || arch == 100)) && arch=${arch}a
export PATH=$PATH:/usr/local/cuda/bin
{
  printf '# GPU check\n\n%s, %s: %s, driver%s,%s; %s; commit %s\n\n' "$(date -u +%F)" "$(nproc) cores" "$gpu_name" "$driver" "$memory" "$(nvcc --version | grep -o 'release [0-9.]*')" \
    "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  printf '| part | what | result |\n|---|---|---|\n'
} >>"$table"
cat "$table"

# ---- Building -------------------------------------------------------------------------------------------------------

build=build-gpu
if wants build; then
  prefix=()
  if ! echo '#include <yaml-cpp/yaml.h>' | c++ -x c++ -fsyntax-only - 2>/dev/null && [[ -e .carry/deps.tar.xz ]]; then
    mkdir -p .carry/deps && tar -C .carry/deps -xJf .carry/deps.tar.xz
    prefix=(-DCMAKE_PREFIX_PATH="$PWD/.carry/deps")
  fi
  part build 60 "configured for sm_$arch" cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRAINER_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=$arch-real" "${prefix[@]}"
  part build 240 "trainer, GPU tests and benchmarks" cmake --build $build -j "$(nproc)" --target trainer gpu_tests || { cat "$table"; exit 1; }
fi
[[ -d .carry/deps/lib ]] && export LD_LIBRARY_PATH=$PWD/.carry/deps/lib:$PWD/.carry/deps/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# ---- Kernels and models ---------------------------------------------------------------------------------------------

wants kernels && part kernels 120 "every kernel against its formula in f64" $build/tests/cuda/test_kernels_gpu
wants kernels && part kernels 60 "every op and its gradient on the operands of PyTorch's goldens" $build/tests/cuda/test_kernel_goldens_gpu
wants models && part models 120 "whole models against the CPU, captured against issued, reruns, bytes" $build/tests/cuda/test_models_gpu

# ---- Ranks on one GPU -----------------------------------------------------------------------------------------------

# Each rank takes itself for a machine of its own (NCCL_HOSTID), since NCCL refuses two ranks on one device of a machine.
ranks() {
  local name=$1 world=$2
  shift 2
  local dir=$out/ranks/$name
  mkdir -p "$dir"
  part ranks 60 "$name on $world NCCL ranks" env TRAINER_SHARE_GPU=1 $build/trainer run tools/gpu/ranks.yaml "cluster.devices_per_node=$world" "log.jsonl=$dir/log.jsonl" "$@" || return
  # The largest difference of a loss, relative.
  local difference
  difference=$(paste -d' ' <(grep -o '"loss":[^,}]*' "$out/ranks/one/log.jsonl" | cut -d: -f2) <(grep -o '"loss":[^,}]*' "$dir/log.jsonl" | cut -d: -f2) |
    awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; n++ } END { printf "%d %.3g", n, worst }')
  read -r steps worst <<<"$difference"
  if [[ $steps == 20 ]] && awk -v w="$worst" 'BEGIN { exit !(w <= 2e-4) }'; then
    row ranks "$name on $world ranks against one" "passed: losses of 20 steps differ by $worst at most (2e-4)"
  else
    row ranks "$name on $world ranks against one" "**FAILED**: $steps steps, losses differ by $worst (2e-4)"
    failed=1
  fi
}
if wants ranks; then
  mkdir -p "$out/ranks/one"
  if part ranks 60 "one rank" $build/trainer run tools/gpu/ranks.yaml cluster.devices_per_node=1 strategy=ddp "log.jsonl=$out/ranks/one/log.jsonl"; then
    for world in 2 4; do
      for strategy in ddp zero1 zero2 zero3 fsdp tensor pipeline; do ranks "$strategy" $world "strategy=$strategy"; done
    done
    ranks fsdp-tensor 4 'strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}}'
    ranks pipeline-tensor 4 'strategy={pipeline: {degree: 2}, tensor: {degree: 2}}'
    ranks hybrid 4 'strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}'
  fi
fi

# ---- Bad accesses and races ------------------------------------------------------------------------------------------

if wants sanitizer; then
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      part sanitizer 60 "$tool over the kernels' small cases" env TRAINER_TEST_SMALL=1 compute-sanitizer --tool $tool --error-exitcode 1 $build/tests/cuda/test_kernels_gpu
    done
  else
    row sanitizer "memcheck and racecheck" "NOT RUN: no compute-sanitizer here"
  fi
fi

# ---- Speed -----------------------------------------------------------------------------------------------------------

if wants speed; then
  part speed 200 "GPT-2 124M and 1558M, Llama 1B, and torch.compile in the same run" tools/bench/gpu/gpu_bench.sh --build $build --out "$out" && cat "$out/speed.md" | tee -a "$table"
fi

say ""
cat "$table"
((failed == 0)) && say "check: nothing failed" || say "check: something failed; $log has everything"
exit $failed
