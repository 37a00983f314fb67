#!/usr/bin/env bash
# Documents and comments name files by their path from the root of the tree: every such file exists, so that a file that moves takes its mentions
# along. And every source begins with a head that says what it is. Prints each path that leads nowhere and each source without a head, and fails if
# there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

path='(configs|engine|kernels|schemas|strategies|tests|tools)/[A-Za-z0-9_/.*-]+\.(cmake|cpp|css|cu|cuh|h|html|inc|js|json|md|py|sh|txt|yaml)\b'
bad=0
while IFS=: read -r file line found; do
  named=${found#[^A-Za-z]}
  compgen -G "$named" >/dev/null && continue
  [[ -e $named.in ]] && continue  # the build makes it
  echo "$file:$line: there is no $named"
  bad=1
done < <(grep -rnoE "(^|[^A-Za-z0-9_/.<-])$path" README.md CONTRIBUTING.md configs engine kernels strategies tests tools --exclude=CMakeLists.txt --exclude=paths_test.sh)
while read -r file; do
  [[ $(head -c 2 "$file") == // ]] && continue
  echo "$file:1: no head: a first line // that says what the file is, or how it does it"
  bad=1
done < <(find engine kernels strategies tests tools \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \))
exit $bad
