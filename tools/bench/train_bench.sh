#!/usr/bin/env bash
# `trainer run` and PyTorch on the same training steps, in turns, in one run: tokens/s, ratios and floors.
# Needs a Python with PyTorch: PYTHON=/path/to/python tools/bench/train_bench.sh [--cells nano,char] [--rounds 3] …
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tools/bench/train_bench.py "$@"
