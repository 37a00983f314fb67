#!/usr/bin/env bash
# Every source is as clang-format 14 writes it by .clang-format: other versions write other lines. Skipped, and says so, where it is not
# there. `tests/format_test.sh --write` formats the sources.
set -euo pipefail
cd "$(dirname "$0")/.."
for format in clang-format-14 clang-format; do
  if command -v "$format" >/dev/null && "$format" --version | grep -q 'version 14\.'; then
    mapfile -t sources < <(find engine strategies kernels tools tests \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \))
    if [[ ${1:-} == --write ]]; then
      printf '%s\0' "${sources[@]}" | xargs -0 -n 64 -P "$(nproc)" "$format" -i
    elif ! printf '%s\0' "${sources[@]}" | xargs -0 -n 64 -P "$(nproc)" "$format" --dry-run -Werror; then
      echo "run tests/format_test.sh --write"
      exit 1
    fi
    exit 0
  fi
done
echo "skipped: no clang-format 14 (Debian: clang-format-14)"
exit 0
