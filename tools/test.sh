#!/usr/bin/env bash
# Set-up, build, all tests. Last line: N passed, N failed.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
tools/build.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
ctest --test-dir build --output-on-failure -j 2 2>&1 | tee "$log" || status=$?
total=$(sed -n 's/.*tests failed out of \([0-9]*\)$/\1/p; s/.*tests passed, .* out of \([0-9]*\)$/\1/p' "$log" | tail -1)
failed=$(sed -n 's/.*, \([0-9]*\) tests failed out of .*/\1/p' "$log" | tail -1)
echo "$((${total:-0} - ${failed:-0})) passed, ${failed:-0} failed"
exit "$status"
