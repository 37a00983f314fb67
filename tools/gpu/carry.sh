#!/usr/bin/env bash
# What a machine with a GPU and no network needs besides the repository: the libraries that tools/setup.sh would install, in one archive,
# .carry/deps.tar.xz (some 15 MB), which check.sh unpacks where the system lacks them (where it has the rest, of cuDNN's frontend the headers). For Debian and Ubuntu on x86-64.
set -euo pipefail
cd "$(dirname "$0")/../.."
CUDAARCHS=${CUDAARCHS:-90} tools/setup.sh  # with what only builds for GPUs need

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs" "$work/root"
# Each development package of tools/setup.sh, and the library that it links.
debs=(libyaml-cpp-dev 'libyaml-cpp0.[0-9]' nlohmann-json3-dev libfmt-dev 'libfmt[0-9]*' libcli11-dev doctest-dev libxxhash-dev
      libbenchmark-dev 'libbenchmark1*' libvalijson-dev libpcre2-dev 'libpcre2-8-0' libmimalloc-dev 'libmimalloc2*' zlib1g-dev zlib1g
      libzstd-dev libzstd1 libsnappy-dev 'libsnappy1*' liblz4-dev liblz4-1 libbrotli-dev libbrotli1)
(cd "$work/debs" && apt-get download -q "${debs[@]}" >/dev/null)
for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/root"; done
# Some libraries stand in /lib, where their development packages point.
if [[ -d $work/root/lib ]]; then cp -a "$work/root/lib/." "$work/root/usr/lib/"; fi
find "$work/root/usr/lib" -name '*.so' -type l -lname '/*' | while read -r link; do ln -sf "$(basename "$(readlink "$link")")" "$link"; done
mkdir "$work/deps"
cp -a "$work"/root/usr/include "$work"/root/usr/lib "$work"/root/usr/share "$work/deps/"
rm -rf "$work"/deps/share/doc "$work"/deps/share/man
for folder in include lib; do
  if [[ -d .deps/$folder ]]; then cp -a ".deps/$folder" "$work/deps/"; fi
done
mkdir -p .carry
tar -C "$work/deps" -cJf .carry/deps.tar.xz .
ls -lh .carry/deps.tar.xz
