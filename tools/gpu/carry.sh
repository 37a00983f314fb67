#!/usr/bin/env bash
# What a machine with a GPU and no network needs besides the repository: the libraries that tools/setup.sh would install, in one archive,
# .carry/deps.tar.xz (some 15 MB), which check.sh unpacks where the system lacks them. For Debian and Ubuntu on x86-64.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/setup.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs" "$work/root"
(cd "$work/debs" && apt-get download -q libyaml-cpp-dev 'libyaml-cpp0.[0-9]' nlohmann-json3-dev libfmt-dev 'libfmt[0-9]*' libcli11-dev doctest-dev libxxhash-dev libbenchmark-dev 'libbenchmark1*' libvalijson-dev >/dev/null)
for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/root"; done
mkdir "$work/deps"
cp -a "$work"/root/usr/include "$work"/root/usr/lib "$work"/root/usr/share "$work/deps/"
rm -rf "$work"/deps/share/doc "$work"/deps/share/man
[[ -d .deps ]] && cp -a .deps/include .deps/lib "$work/deps/"
mkdir -p .carry
tar -C "$work/deps" -cJf .carry/deps.tar.xz .
ls -lh .carry/deps.tar.xz
