#!/usr/bin/env bash
# Runs a test where there is an NVIDIA GPU; elsewhere says that it is skipped.
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: $(basename "$1") was compiled and linked, and not run: no NVIDIA GPU here"
  exit 0
fi
exec "$@"
