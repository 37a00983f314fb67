#!/usr/bin/env bash
# Configures and builds the release tree in build/. Called by quickstart.sh and test.sh. A unity build: several sources are compiled as one,
# which takes half the time from scratch. Where CI is set, as CI systems do, warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON "-DTRAINER_WERROR=${CI:+ON}" >build.log 2>&1 || { cat build.log >&2; exit 1; }
rm -f build.log
cmake --build build -j "$(nproc)" "$@"
