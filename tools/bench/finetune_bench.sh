#!/usr/bin/env bash
# `trainer run` and PyTorch with peft on the same fine-tuning steps, in turns, in one run: tokens/s, ratios, memory, packing.
# Needs a Python with torch, transformers and peft: PYTHON=/path/to/python tools/bench/finetune_bench.sh [--quick] …
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tools/bench/finetune_bench.py "$@"
