#!/usr/bin/env bash
# Everything that only a GPU can show, what is worth most first: builds for the GPU it finds, holds every kernel to its formula and whole models
# to the CPU, times real sizes and checks their losses, runs 2 and 4 NCCL ranks on the one GPU, looks for bad accesses and races, and times
# torch.compile. Needs the CUDA Toolkit, cmake, ninja, python3 and, for the peer, PyTorch; cuDNN and NCCL from the Toolkit's folders or from
# Python's packages (nvidia-cudnn-cu13, nvidia-nccl-cu13), the headers of cuDNN's frontend from tools/setup.sh, carry.sh's archive or its package
# (nvidia-cudnn-frontend); where other libraries are missing, the archive of carry.sh. Ends within 9 minutes.
#
#   tools/gpu/check.sh [--out DIR] [--only build,kernels,models,speed,ranks,sanitizer,peers] [--minutes 9]
#
# A part that fails does not stop the others. Each has its budget, and may use what those before it left. Results are printed as they
# come; left in DIR (default: $OUT, else build-gpu/check): log.txt with everything, table.md. Exit status: 0 if nothing failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 74

parts=(build kernels models speed ranks sanitizer peers)
declare -A budget=([build]=220 [kernels]=60 [models]=30 [speed]=110 [ranks]=45 [sanitizer]=30 [peers]=30)  # seconds: below 9 minutes in all
out=${OUT:-build-gpu/check} minutes=9
only=$(IFS=,; printf '%s' "${parts[*]}")
while (($#)); do
  case $1 in
    --out) out=${2:?} ;;
    --only) only=${2:?} ;;
    --minutes) minutes=${2:?} ;;
    *) sed -n '2,11p' "$0" >&2; exit 64 ;;
  esac
  shift 2
done
for name in ${only//,/ }; do
  [[ -n ${budget[$name]:-} ]] || { echo "check: no such part: $name; there are ${parts[*]}" >&2; exit 64; }
done
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 74
log=$out/log.txt table=$out/table.md
: >"$log"
: >"$table"
time=$((minutes * 60 - 5))  # what is over its time has 5 s to end
deadline=$((SECONDS + time))
until=$deadline
budgets=0
for name in ${only//,/ }; do budgets=$((budgets + budget[$name])); done
failed=0

say() { printf '%s\n' "$*" | tee -a "$log"; }
# row PART WHAT RESULT: a line of the table.
row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3" >>"$table"; say "  $1 | $2 | $3"; }
fail() { row "$1" "$2" "**FAILED**: $3"; failed=1; }
# wants PART: whether it is asked for; then it may go on until only the budgets of those after it are left.
wants() {
  [[ ,$only, == *,$1,* ]] || return 1
  local name after=0 later=0
  for name in "${parts[@]}"; do
    ((after)) && [[ ,$only, == *,$name,* ]] && later=$((later + budget[$name]))
    [[ $name == "$1" ]] && after=1
  done
  ((budgets > time)) && later=$((later * time / budgets))
  until=$((deadline - later))
}
# part NAME SECONDS WHAT COMMAND…: runs it, for so long at most and no longer than its part may go on; all of its output is in the log.
part() {
  local name=$1 limit=$2 what=$3 begin=$SECONDS left status why
  shift 3
  left=$((until - SECONDS))
  if ((left < 5)); then row "$name" "$what" "NOT RUN: no time left"; failed=1; return 1; fi
  ((limit > left)) && limit=$left
  printf '\n==== %s: %s\n' "$name" "$what" >>"$log"
  timeout -k 5 "$limit" "$@" >"$out/current.txt" 2>&1
  status=$?
  cat "$out/current.txt" >>"$log"
  if ((status == 0)); then
    row "$name" "$what" "passed, $((SECONDS - begin)) s"
  else
    why="status $status"
    ((status == 124 || status == 137)) && why="not done in $limit s"
    row "$name" "$what" "**FAILED** ($why), $((SECONDS - begin)) s"
    tail -n 15 "$out/current.txt" | sed 's/^/    /'
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
((arch >= 90)) && arch=${arch}a
export PATH=$PATH:/usr/local/cuda/bin
{
  printf '# GPU check\n\n%s, %s: %s, driver%s,%s; %s; commit %s\n\n' "$(date -u +%F)" "$(nproc) cores" "$gpu_name" "$driver" "$memory" "$(nvcc --version | grep -o 'release [0-9.]*')" \
    "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  printf '| part | what | result |\n|---|---|---|\n'
} >>"$table"
cat "$table"

# ---- Building -------------------------------------------------------------------------------------------------------

build=build-gpu
python=${PYTHON:-python3}

# version FILE PREFIX: "9.19.0" from the macros PREFIX_MAJOR, _MINOR and _PATCHLEVEL or _PATCH of a header.
version() { sed -n "s/^#define $2_\(MAJOR\|MINOR\|PATCHLEVEL\|PATCH\) *\([0-9]*\).*/\2/p" "$1" | paste -sd.; }
# found NAME HEADER PREFIX: which of a library the build has, as CMake says.
found() {
  local include library
  include=$(sed -n "s/^$1_INCLUDE:[^=]*=//p" $build/CMakeCache.txt) library=$(sed -n "s/^$1_LIBRARY:[^=]*=//p" $build/CMakeCache.txt)
  if [[ -f $include/$2 && -f $library ]]; then
    row build "$1" "$(version "$include/$2" "$3"): $library"
  else
    fail build "$1" "not found beside the Toolkit, nor among Python's packages: what needs it is not built"
  fi
}
# wheel FOLDER HEADER LIBRARY NAME: CMake's options for a library in Python's packages, where it is there.
wheel() {
  local folder
  while read -r folder; do
    if [[ -f $folder/$1/include/$2 && -f $folder/$1/lib/$3 ]]; then
      options+=("-D$4_INCLUDE=$folder/$1/include" "-D$4_LIBRARY=$folder/$1/lib/$3")
      return
    fi
  done < <("$python" -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null)
}

if wants build; then
  options=(-DCMAKE_BUILD_TYPE=Release -DTRAINER_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=$arch-real" -DTRAINER_WERROR=OFF -DTRAINER_BENCHMARKS=OFF)
  if [[ -e .carry/deps.tar.xz ]]; then
    mkdir -p .carry/frontend && tar -C .carry/frontend -xJf .carry/deps.tar.xz --wildcards './include/cudnn_*'
    if ! echo '#include <yaml-cpp/yaml.h>' | c++ -x c++ -fsyntax-only - 2>/dev/null; then
      mkdir -p .carry/deps && tar -C .carry/deps -xJf .carry/deps.tar.xz
      options+=(-DCMAKE_PREFIX_PATH="$PWD/.carry/deps")
    fi
  fi
  # The headers of cuDNN's frontend: of tools/setup.sh, of the archive, or of Python's package.
  for folder in .deps/include .carry/frontend/include "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)/include"; do
    if [[ -f $folder/cudnn_frontend.h ]]; then options+=("-DCUDNN_FRONTEND_INCLUDE=$(realpath "$folder")"); break; fi
  done
  wheel cudnn cudnn.h libcudnn.so.9 CUDNN
  wheel nccl nccl.h libnccl.so.2 NCCL
  part build 60 "configured for sm_$arch" cmake -S . -B $build -G Ninja "${options[@]}" || { cat "$table"; exit 1; }
  found CUDNN cudnn_version.h CUDNN
  frontend=$(sed -n 's/^CUDNN_FRONTEND_INCLUDE:[^=]*=//p' $build/CMakeCache.txt)
  if [[ ! -f $frontend/cudnn_frontend.h ]]; then
    fail build "cuDNN's frontend" "not found in .deps, .carry, or Python's package nvidia-cudnn-frontend: attention is by the own kernels"
  elif grep -q '^TRAINER_CUDNN:[^=]*=OFF' $build/CMakeCache.txt; then
    fail build "cuDNN's frontend" "$frontend: too old, or the Toolkit has no NVRTC: attention is by the own kernels"
  else
    row build "cuDNN's frontend" "$frontend"
  fi
  found NCCL nccl.h NCCL
  part build "${budget[build]}" "trainer and the GPU tests" cmake --build $build -j "$(nproc)" --target trainer gpu_tests || { cat "$table"; exit 1; }
fi
[[ -d .carry/deps/lib ]] && export LD_LIBRARY_PATH=$PWD/.carry/deps/lib:$PWD/.carry/deps/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# ---- Kernels and models ---------------------------------------------------------------------------------------------

if wants kernels; then
  part kernels 120 "every kernel against its formula in f64" $build/tests/cuda/test_kernels_gpu
  TRAINER_CUDNN=0 part kernels 60 "attention by the own kernels" $build/tests/cuda/test_kernels_gpu -tc='*attention*,*RoPE*,*heads*'
  part kernels 60 "every op and its gradient on the operands of PyTorch's goldens" $build/tests/cuda/test_kernel_goldens_gpu
  part kernels 20 "kernels timed one by one" $build/tests/cuda/test_gpu_bench_gpu
fi
wants models && part models 120 "whole models against the CPU, captured against issued, reruns, bytes" $build/tests/cuda/test_models_gpu

# ---- Real sizes: losses and speed -----------------------------------------------------------------------------------

cells=(gpt2-124m gpt2-1558m llama-1b)
export TRAINER_CACHE=$out/cache  # the first run of each cell times its products
if wants speed; then
  for cell in "${cells[@]}"; do
    part speed 100 "$cell: losses where they should be, captured as issued; times" tools/bench/gpu/gpu_bench.sh --build $build --out "$out" --cells "$cell" --no-peer
    [[ -s $out/speed.md ]] && cp "$out/speed.md" "$out/speed-$cell.md" && head -4 "$out/speed.md"
  done
  TRAINER_CUDA_TUNE=0 part speed 60 "gpt2-124m by the library's first algorithms, not the fastest" tools/bench/gpu/gpu_bench.sh --build $build --out "$out/first" --cells gpt2-124m --no-peer
  [[ -s $out/first/speed.md ]] && head -4 "$out/first/speed.md"
fi

# What `trainer calibrate` measures of a cell, and the step that follows from it: beside the times above.
if wants speed; then
  for cell in "${cells[@]}"; do
    file=$out/calibrated-$cell.yaml
    part speed 30 "$cell: its kernels, timed one by one" $build/trainer calibrate --device cuda --job "tools/bench/gpu/$cell.yaml" --out "$file" &&
      row speed "$cell: predicted from them" "$($build/trainer plan "tools/bench/gpu/$cell.yaml" cluster.hardware="$file" 2>>"$log" | grep '^a step on')"
  done
fi

# ---- Ranks on one GPU -----------------------------------------------------------------------------------------------

# Each rank takes itself for a machine of its own (NCCL_HOSTID), since NCCL refuses two ranks on one device of a machine. So they meet over
# sockets: this shows that programs, groups and sums are right, and nothing of NVLink, of peers' memory or of windows.
ranks() {
  local name=$1 world=$2
  shift 2
  local dir=$out/ranks/$name-$world
  rm -rf "$dir"
  mkdir -p "$dir"
  part ranks 60 "$name on $world NCCL ranks" env TRAINER_SHARE_GPU=1 $build/trainer run tools/gpu/ranks.yaml "cluster.devices_per_node=$world" "log.jsonl=$dir/log.jsonl" "$@" || return
  # The largest difference of a loss, relative.
  local difference steps worst
  difference=$(paste -d' ' <(grep -o '"loss":[^,}]*' "$out/ranks/one/log.jsonl" | cut -d: -f2) <(grep -o '"loss":[^,}]*' "$dir/log.jsonl" | cut -d: -f2) |
    awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; n += NF == 2 } END { printf "%d %.3g", n, worst }')
  read -r steps worst <<<"$difference"
  if [[ $steps == 20 ]] && awk -v w="$worst" 'BEGIN { exit !(w <= 2e-4) }'; then
    row ranks "$name on $world ranks against one" "passed: losses of 20 steps differ by $worst at most (2e-4)"
  else
    fail ranks "$name on $world ranks against one" "$steps steps, losses differ by $worst (2e-4)"
  fi
}
if wants ranks; then
  rm -rf "$out/ranks/one"
  mkdir -p "$out/ranks/one"
  if part ranks 60 "one rank" $build/trainer run tools/gpu/ranks.yaml cluster.devices_per_node=1 strategy=ddp "log.jsonl=$out/ranks/one/log.jsonl"; then
    for strategy in ddp fsdp tensor pipeline zero1 zero2 zero3; do ranks "$strategy" 2 "strategy=$strategy"; done
    ranks fsdp-tensor 4 'strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}}'
    ranks pipeline-tensor 4 'strategy={pipeline: {degree: 2}, tensor: {degree: 2}}'
    ranks hybrid 4 'strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}'
    for strategy in ddp fsdp tensor pipeline zero1 zero2 zero3; do ranks "$strategy" 4 "strategy=$strategy"; done
  fi
fi

# ---- Bad accesses and races ------------------------------------------------------------------------------------------

# Our kernels, whose names have the namespace in them: the libraries' are slow under it, and some have hazards that are none.
if wants sanitizer; then
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      part sanitizer 180 "$tool over the kernels' small cases" env TRAINER_TEST_SMALL=1 compute-sanitizer --tool $tool --kernel-regex kns=trainer --error-exitcode 1 \
        $build/tests/cuda/test_kernels_gpu
    done
  else
    row sanitizer "memcheck and racecheck" "NOT RUN: no compute-sanitizer here"
    failed=1
  fi
fi

# ---- The peer --------------------------------------------------------------------------------------------------------

if wants peers; then
  for cell in "${cells[@]}"; do
    part peers 120 "$cell by torch.compile" tools/bench/gpu/gpu_bench.sh --build $build --out "$out" --cells "$cell" --no-trainer &&
      cp "$out/speed.md" "$out/speed-$cell.md"
  done
fi

say ""
for cell in "${cells[@]}"; do
  [[ -s $out/speed-$cell.md ]] && { printf '\n'; cat "$out/speed-$cell.md"; } >>"$table"
done
cat "$table"
if ((failed == 0)); then say "check: nothing failed"; else say "check: something failed; $log has everything"; fi
exit $failed
