#!/usr/bin/env bash
# tools/gpu/check.sh and the benchmarks for GPUs where there is no GPU: commands that do nothing stand in for the driver, CMake, the tests and
# the trainer. Held: libraries are found in Python's packages and named with their versions, one that is missing fails, parts come in their
# order and within the time, losses that are wrong are found.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "skipped: no python3 here, so check.sh is not tried"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; cat "$work/said" >&2 2>/dev/null; exit 1; }

# ---- What stands in -------------------------------------------------------------------------------------------------

mkdir -p "$work/repo" "$work/bin"
cp -r tools "$work/repo/"
library() { # FOLDER HEADER LIBRARY TEXT
  mkdir -p "$work/python/nvidia/$1/include" "$work/python/nvidia/$1/lib"
  printf '%b' "$4" >"$work/python/nvidia/$1/include/$2"
  : >"$work/python/nvidia/$1/lib/$3"
}
library cudnn cudnn_version.h libcudnn.so.9 '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 12\n#define CUDNN_PATCHLEVEL 3\n'
: >"$work/python/nvidia/cudnn/include/cudnn.h"
mkdir -p "$work/repo/.deps/include" && : >"$work/repo/.deps/include/cudnn_frontend.h"
library nccl nccl.h libnccl.so.2 '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n#define NCCL_VERSION_CODE 22809\n'

cat >"$work/bin/nvidia-smi" <<'END'
#!/usr/bin/env bash
[[ $1 == -L ]] && echo "GPU 0: none" || echo "NVIDIA H100 80GB HBM3, 9.0, 580.1, 81559 MiB"
END
printf '#!/usr/bin/env bash\necho "Cuda compilation tools, release 13.0"\n' >"$work/bin/nvcc"
printf '#!/usr/bin/env bash\necho "$@"\n' >"$work/bin/compute-sanitizer"
# Configuring notes the options as CMake's cache does; building makes what is run.
cat >"$work/bin/cmake" <<'END'
#!/usr/bin/env bash
if [[ $1 == -S ]]; then
  mkdir -p build-gpu/tests/cuda
  printf '%s\n' "$@" | sed -n 's/^-D\([A-Z_]*\)=/\1:PATH=/p' >build-gpu/CMakeCache.txt
  exit
fi
for test in kernels_gpu kernel_goldens_gpu gpu_bench_gpu models_gpu; do
  printf '#!/usr/bin/env bash\n' >build-gpu/tests/cuda/test_$test
done
cat >build-gpu/trainer <<'RUN'
#!/usr/bin/env bash
for word in "$@"; do
  [[ $word == log.jsonl=* ]] && for step in {0..19}; do echo "{\"step\": $step, \"loss\": 5.$((99 - step)), \"lr\": 1}"; done >"${word#*=}"
done
exit 0
RUN
chmod +x build-gpu/trainer build-gpu/tests/cuda/*
END
chmod +x "$work"/bin/*

check() { (cd "$work/repo" && PATH=$work/bin:$PATH PYTHONPATH=$work/python tools/gpu/check.sh --out "$work/out" "$@" >"$work/said" 2>&1); }
says() { grep -qF -- "$1" "$work/out/table.md" || fail "the table lacks: $1"; }

# ---- check.sh -------------------------------------------------------------------------------------------------------

check --only build,kernels,models,ranks,sanitizer || fail "all that runs is right, and check.sh fails"
says "| build | CUDNN | 9.12.3: $work/python/nvidia/cudnn/lib/libcudnn.so.9 |"
says "| build | cuDNN's frontend | $work/repo/.deps/include |"
says "| build | NCCL | 2.28.9: $work/python/nvidia/nccl/lib/libnccl.so.2 |"
says "| ranks | pipeline on 4 ranks against one | passed: losses of 20 steps differ by 0 at most (2e-4) |"
[[ $(sed -n 's/^| \([a-z]*\) |.*/\1/p' "$work/out/table.md" | uniq | tr '\n' ' ') == "part build kernels models ranks sanitizer " ]] || fail "parts are out of order"
grep -q -- '--kernel-regex kns=trainer' "$work/out/log.txt" || fail "the sanitizer looks at the libraries' kernels"
grep -q -- 'TRAINER_WERROR:PATH=OFF' "$work/repo/build-gpu/CMakeCache.txt" || fail "warnings of an unknown compiler are errors"

rm "$work/repo/.deps/include/cudnn_frontend.h"
check --only build && fail "check.sh passes without cuDNN's frontend"
says "| build | cuDNN's frontend | **FAILED**"

rm -r "$work/python/nvidia/nccl"
check --only build && fail "check.sh passes without NCCL"
says "| build | NCCL | **FAILED**"

printf '#!/usr/bin/env bash\nexec sleep 100\n' >"$work/repo/build-gpu/tests/cuda/test_kernels_gpu"
begin=$SECONDS
check --only kernels,models --minutes 0 && fail "check.sh passes where there is no time"
says "NOT RUN: no time left"
((SECONDS - begin < 30)) || fail "check.sh takes longer than it may"
check --only nothing && fail "check.sh knows a part that is none"

sum=0
for seconds in $(sed -n 's/^declare -A budget=(\(.*\)).*/\1/p' tools/gpu/check.sh | grep -o '=[0-9]*' | tr -d =); do sum=$((sum + seconds)); done
((sum > 400 && sum <= 535)) || fail "budgets of $sum s do not fit into 9 minutes"

# ---- Benchmarks -----------------------------------------------------------------------------------------------------

for job in tools/bench/gpu/*.yaml; do
  grep -q 'hardware: auto' "$job" || fail "$job is for one kind of GPU"
done
losses() { for loss in $1; do echo "{\"step\": 0, \"loss\": $loss}"; done >"$work/gpt2-124m.$2.jsonl"; }
numbers() { python3 tools/bench/gpu/numbers.py "$work" gpt2-124m >"$work/said" 2>&1; }
losses "10.98 10.95 10.9" log
losses "10.98 10.95" works
numbers || fail "right losses are taken for wrong"
losses "10.98 10.94" works
numbers && fail "issued steps have other losses than captured ones"
losses "10.6 10.5" log && losses "10.6 10.5" works
numbers && fail "a first loss that no initialisation gives passes"
losses "10.98 NaN" log && losses "10.98" works
numbers && fail "a loss that is no number passes"
losses "10.98 10.99" log
numbers && fail "losses that rise pass"
echo "check.sh and numbers.py do what they say"
