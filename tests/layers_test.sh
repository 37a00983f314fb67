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
  [engine/transform]="engine/job engine/graph engine/ops"
  [engine/plan]="engine/graph engine/ops"
  [engine/plan/assemble]="engine/plan engine/plan/verify engine/graph engine/ops"
  [engine/plan/verify]="engine/plan engine/graph engine/ops"
  [engine/cost]="engine/job engine/graph engine/ops engine/plan engine/plan/assemble strategies"
  [engine/launch]=""
  [engine/comm]="engine/launch"
  [engine/run]="engine/plan engine/comm kernels"
  [engine/tokenizer]=""
  [engine/chat]="engine/tokenizer"
  [engine/data]="engine/job engine/tokenizer engine/chat engine/checkpoint"
  [engine/checkpoint]=""
  [engine/monitor]=""
  [engine/compile]="engine/job engine/graph engine/ops engine/transform engine/plan engine/plan/assemble engine/plan/verify engine/cost strategies"
  [engine/train]="engine/job engine/plan engine/compile engine/launch engine/comm engine/run engine/data engine/tokenizer engine/checkpoint engine/monitor"
  [engine/export]="engine/job engine/tokenizer engine/graph engine/transform engine/checkpoint engine/train"
  [engine/report]="engine/job engine/graph engine/ops engine/plan engine/cost engine/compile engine/train engine/monitor strategies"
  [strategies]="engine/job engine/graph engine/ops engine/plan"
  [kernels]=""
)

# The innermost folder of the table that a file is in.
layer_of() {
  layer=$1
  while [[ $layer == */* ]]; do
    layer=${layer%/*}
    if [[ -v may[$layer] ]]; then return; fi
  done
}

bad=0
while IFS=: read -r file line include; do
  target=${include#*\"}
  target=${target%%\"*}
  case $target in
    engine/* | kernels/* | strategies/* | tools/* | tests/*) ;;
    *) echo "$file:$line: included from the root of the tree, please: $target"; bad=1; continue ;;
  esac
  layer_of "$file"; folder=$layer
  layer_of "$target"
  if [[ " engine/core $folder ${may[$folder]} " != *" $layer "* ]]; then
    echo "$file:$line: $folder may not see $layer"
    bad=1
  fi
done < <(grep -rnE '^#include "' engine strategies kernels --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh')

# Files that stand above and below each other: NAME.h and NAME.cpp are one, and includes inside these folders make no circle.
for folder in engine/chat engine/checkpoint engine/comm engine/compile engine/core engine/data engine/graph engine/launch engine/monitor engine/ops engine/plan \
  engine/plan/verify engine/report engine/run engine/transform strategies; do
  circles=$(grep -oE "^#include \"$folder/[a-z0-9_]+\.h\"" "$folder"/*.h "$folder"/*.cpp |
    sed -E 's|^[^:]*/([a-z0-9_]+)\.[a-z]+:.*/([a-z0-9_]+)\.h"$|\1 \2|' | awk '$1 != $2' | sort -u | tsort 2>&1 >/dev/null) || true
  if [[ -n $circles ]]; then
    echo "$folder: files include each other in a circle:" $(grep -v loop <<<"$circles" | sed 's/^tsort: //')
    bad=1
  fi
done
exit $bad
