#!/usr/bin/env bash
# A compiler launcher for nvcc: `keep_ptxas.sh COMPILER ARGUMENTS…` runs the compiler with -Xptxas -v and keeps what ptxas says of each kernel
# (registers, spills) beside the object, in OBJECT.ptxas, which tests/cuda/budgets_test.cpp reads. Everything else it passes on.
set -uo pipefail
object=
for ((i = 1; i < $#; ++i)); do
  if [[ ${!i} == -o ]]; then
    next=$((i + 1)) object=${!next}
  fi
done
[[ -n $object ]] || exec "$@"

words=$object.words
"$@" -Xptxas -v 2>"$words"
code=$?
about_kernels='^ptxas info|^ +[0-9]+ bytes stack frame'
grep -E "$about_kernels" "$words" >"$object.ptxas"
grep -vE "$about_kernels" "$words" >&2
rm -f "$words"
exit $code
