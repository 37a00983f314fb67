#!/usr/bin/env bash
# Installs what building and testing need on Debian 12 or Ubuntu: apt packages, and oneDNN 3.2 from its PyPI
# wheels (which are zip files) into .deps/ where the system has no oneDNN >= 3. Safe to run again; quiet when done.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build curl ca-certificates unzip python3 python3-pip libyaml-cpp-dev nlohmann-json3-dev
          doctest-dev libcli11-dev libfmt-dev libxxhash-dev libbenchmark-dev libvalijson-dev libpcre2-dev
          libmimalloc-dev zlib1g-dev libzstd-dev libsnappy-dev liblz4-dev libbrotli-dev)
optional=(libopenmpi-dev openmpi-bin)  # ranks as processes (cluster.backend: mpi); the build is whole without them
if command -v dpkg-query >/dev/null; then
  missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  # A compiler, CMake, Python or pip from elsewhere is as good as the distribution's.
  kept=()
  for package in "${missing[@]}"; do
    case $package in
      g++|cmake|curl|python3) command -v "$package" >/dev/null || kept+=("$package") ;;
      python3-pip) python3 -m pip --version >/dev/null 2>&1 || kept+=("$package") ;;
      *) kept+=("$package") ;;
    esac
  done
  may_install=$((EUID == 0))
  command -v sudo >/dev/null && may_install=1
  for package in "${optional[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' && continue
    if ((may_install)); then kept+=("$package"); else echo "setup: without $package there is no backend mpi" >&2; fi
  done
  if ((${#kept[@]})); then
    sudo=()
    if ((EUID != 0)); then
      if ! command -v sudo >/dev/null; then
        echo "setup: these packages are missing and this user may not install them:" >&2
        echo "  apt-get install ${kept[*]}" >&2
        exit 1
      fi
      sudo=(sudo)
    fi
    echo "setup: installing ${kept[*]}" >&2
    "${sudo[@]}" apt-get update -q >/dev/null
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${kept[@]}" >/dev/null
  fi
else
  echo "setup: no dpkg here; install by hand what CMakeLists.txt asks for: ${packages[*]}" >&2
fi

# What reads the machine code of GPU kernels (tests/cuda/budgets_test.cpp), where such kernels are compiled; 8 MB.
if [[ -n ${CUDAARCHS:-} && ! -x .deps/bin/nvdisasm ]]; then
  echo "setup: unpacking cuobjdump and nvdisasm into .deps/bin/" >&2
  tools=$(mktemp -d)
  wheels=(nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37)
  if python3 -m pip download -q --disable-pip-version-check --no-deps -d "$tools" "${wheels[@]}"; then
    for wheel in "$tools"/*.whl; do unzip -qo "$wheel" -d "$tools/x"; done
    mkdir -p .deps/bin
    install -m 755 "$tools"/x/nvidia/cu13/bin/{cuobjdump,nvdisasm} .deps/bin/
  else
    echo "setup: they could not be had; the test of what kernels do in loops will be skipped" >&2
  fi
  rm -rf "$tools"
fi

# The headers of cuDNN's frontend, which plans fused attention for GPUs; 3 MB of a wheel of 12.
if [[ (-n ${CUDAARCHS:-} || -n $(command -v nvidia-smi)) && ! -e .deps/include/cudnn_frontend.h ]]; then
  echo "setup: unpacking cudnn-frontend 1.32 into .deps/" >&2
  frontend=$(mktemp -d)
  if python3 -m pip download -q --disable-pip-version-check --no-deps -d "$frontend" nvidia-cudnn-frontend==1.32.0; then
    unzip -qo "$frontend"/*.whl 'include/*' -d "$frontend/x"
    mkdir -p .deps/include
    cp -a "$frontend"/x/include/. .deps/include/
  else
    echo "setup: the download failed; attention on GPUs will be by the own kernels" >&2
  fi
  rm -rf "$frontend"
fi

# oneDNN: the distribution's own if it is 3 or newer, else the wheels.
if [[ ! -e .deps/lib/cmake/dnnl/dnnl-config.cmake ]] && ! compgen -G '/usr/lib/*/libdnnl.so.3*' >/dev/null; then
  echo "setup: unpacking oneDNN 3.2 into .deps/" >&2
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download -q --disable-pip-version-check --no-deps -d "$work" onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
  for wheel in "$work"/*.whl; do unzip -qo "$wheel" -d "$work/x"; done
  mkdir -p .deps
  cp -a "$work"/x/*.data/data/. .deps/
  # The wheel holds three copies of the library; one and two links will do.
  ln -sf libdnnl.so.3.2 .deps/lib/libdnnl.so.3
  ln -sf libdnnl.so.3 .deps/lib/libdnnl.so
fi
