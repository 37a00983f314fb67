#!/usr/bin/env bash
# Every candidate strategy of some jobs really run on this machine, against the one that the prediction ranks first.
#   tools/bench/choice_bench.sh [--rounds 3] [--only llama] [--hardware this.yaml]
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tools/bench/choice_bench.py "$@"
