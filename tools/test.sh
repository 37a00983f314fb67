#!/usr/bin/env bash
# Set-up, build, all tests. What failed is shown in full, what was skipped by name; last line: N passed, N failed (test cases).
# --long: GPU kernels are compiled for every kind of GPU that is supported, not only for this machine's, and a model of
# characters is trained to its end; 10 minutes more.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  "") ;;
  --long) export CUDAARCHS=${CUDAARCHS:-80-real;90a-real;100-real} TRAINER_TEST_LONG=1 ;;
  *) echo "usage: tools/test.sh [--long]" >&2; exit 2 ;;
esac
tools/setup.sh
tools/build.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
# Tests run side by side, one more than there are cores, since some do little but wait. Threads that wait let go of
# their core soon (tools/main.cpp says why).
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-2000}
ctest --test-dir build --verbose --parallel "$(($(nproc) + 1))" 2>&1 | tee "$log" | grep --line-buffered -E '^ *[0-9]+/[0-9]+ Test ' || status=$?

# ctest prefixes the output of test n with "n: ". A test without doctest's summary (it crashed, or is no doctest) counts as
# one case; so does one that fails although its cases passed.
awk '
  match($0, /^[0-9]+: /) { n = substr($0, 1, RLENGTH - 2) + 0; text = substr($0, RLENGTH + 1) }
  /^[0-9]+: \[doctest\] test cases:/ { split(text, part, "|"); split(part[2], p, " "); split(part[3], f, " "); passed[n] = p[1]; failed[n] = f[1]; split(part[4], s, " "); skipped += s[1] }
  /^[0-9]+: / { output[n] = output[n] text "\n"; if (tolower(text) ~ /skipped: |skipping/) reason[++reasons] = text; next }
  /^ *[0-9]+\/[0-9]+ Test +#/ {
    match($0, /#[0-9]+/); n = substr($0, RSTART + 1, RLENGTH - 1) + 0
    good = $0 ~ / Passed /
    if (!(n in passed)) passed[n] = good
    if (!good && failed[n] + 0 == 0) failed[n] = 1
    ok += passed[n]; bad += failed[n]
    if (!good) broken[++breaks] = n
  }
  END {
    for (i = 1; i <= breaks; ++i) printf "\n---- output of test %d\n%s", broken[i], output[broken[i]]
    for (i = 1; i <= reasons; ++i) print reason[i]
    if (skipped > 0) print skipped " skipped"
    print ok + 0 " passed, " bad + 0 " failed"
    exit bad > 0 || ok == 0
  }' "$log" || status=1
exit "$status"
