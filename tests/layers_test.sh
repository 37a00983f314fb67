#!/usr/bin/env bash
# Who may include whom: every folder's includes against the layers that CONTRIBUTING.md draws. The linker sees only calls;
# this sees headers too. Prints each include that reaches where it may not, and fails if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A may=(
  [engine/core]=""
  [engine/job]=""
  [engine/graph]=""
  [engine/ops]="engine/graph"
  [engine/build]="engine/job engine/graph engine/ops"
  [engine/plan]="engine/graph engine/ops"
  [engine/cost]="engine/job engine/graph engine/ops engine/plan strategies"
  [engine/run]="engine/plan kernels"
  [engine/data]="engine/job"
  [engine/checkpoint]=""
  [engine/monitor]=""
  [engine/compile]="engine/job engine/graph engine/ops engine/build engine/plan engine/cost strategies"
  [engine/train]="engine/job engine/plan engine/compile engine/run engine/data engine/checkpoint engine/monitor"
  [strategies]="engine/job engine/graph engine/ops engine/plan"
  [kernels]=""
)

bad=0
for folder in "${!may[@]}"; do
  allowed=" engine/core $folder ${may[$folder]} "
  while IFS=: read -r file line include; do
    target=$(sed -E 's/.*"([^"]+)".*/\1/' <<<"$include")
    case $target in
      engine/*) layer=$(cut -d/ -f1-2 <<<"$target") ;;
      kernels/* | strategies/* | tools/* | tests/*) layer=${target%%/*} ;;
      *) echo "$file:$line: included from the root of the tree, please: $target"; bad=1; continue ;;
    esac
    if [[ $allowed != *" $layer "* ]]; then
      echo "$file:$line: $folder may not see $layer"
      bad=1
    fi
  done < <(grep -rnE '^#include "' "$folder" --include='*.h' --include='*.cpp' || true)
done
exit $bad
