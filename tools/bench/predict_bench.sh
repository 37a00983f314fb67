#!/usr/bin/env bash
# Predicted against measured step times on this machine, after `trainer calibrate`: a table with errors, their median and the worst.
#   tools/bench/predict_bench.sh [--rounds 3] [--only llama] [--hardware this.yaml]
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tools/bench/predict_bench.py "$@"
