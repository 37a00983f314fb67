#!/usr/bin/env bash
# Pairs for configs/chat/preferences.yaml: a sum of two numbers below a hundred, the right answer and a wrong one near it.
#
#   configs/chat/pairs.sh > runs/chat/pairs.jsonl
set -euo pipefail
awk 'BEGIN {
  srand(11)
  for (i = 0; i < 4000; ++i) {
    a = int(rand() * 100); b = int(rand() * 100); off = 1 + int(rand() * 9)
    wrong = a + b + (rand() < 0.5 && a + b > off ? -off : off)
    if ((a * 100 + b) % 10 == 3) continue  # held out by configs/chat/demo.sh
    printf "{\"prompt\": [{\"role\": \"user\", \"content\": \"What is %d + %d?\"}], ", a, b
    printf "\"chosen\": [{\"role\": \"assistant\", \"content\": \"%d\"}], ", a + b
    printf "\"rejected\": [{\"role\": \"assistant\", \"content\": \"%d\"}]}\n", wrong
  }
}'
