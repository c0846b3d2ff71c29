#!/bin/sh
# Installs what a Debian or Ubuntu machine lacks to build and run: a C compiler,
# Open MPI, OpenBLAS. Without root it prints the command and stops. Elsewhere, or
# with these in place, it only checks.
# "deps.sh launch" does the same for the tests of the launch command: Slurm, MPICH,
# network namespaces.
# "deps.sh page" does it for the test of the dashboard's page: Chromium and npm.
# "deps.sh nvrtc" tries to install NVIDIA's compiler library, for the tests of what
# compiles CUDA C++: without it they are skipped, so nothing it does is an error.
set -eu

# Debian has NVRTC among its non-free packages, which apt mostly does not look at.
# So it looks once, through copies of its own entries for Debian, in lists of their own.
nvrtc() {
    if /sbin/ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so\.'; then return 0; fi
    for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
        for lib in "$root"/lib64/libnvrtc.so*; do [ ! -e "$lib" ] || return 0; done
    done
    why="apt-get is missing"
    command -v apt-get >/dev/null || return 1
    why="only root may install it"
    [ "$(id -u)" = 0 ] || return 1
    export DEBIAN_FRONTEND=noninteractive
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    mkdir -p "$dir/sources" "$dir/lists/partial"
    chmod 755 "$dir" "$dir/sources" # apt reads as a user of its own

    why="apt-get update failed"
    [ -n "$(debian)" ] || apt-get update -qq || return 1
    why="it comes from Debian, and this is another system"
    [ -n "$(debian)" ] || return 1
    for file in $(debian); do
        sed -E -e 's/^Types:.*/Types: deb/' -e 's/^Components:.*/Components: non-free/' \
            -e '/^deb-src[[:space:]]/d' \
            -e 's/^(deb[[:space:]]+(\[[^]]*\][[:space:]]+)?[^[:space:]]+[[:space:]]+[^[:space:]]+).*/\1 non-free/' \
            "$file" >"$dir/sources/${file##*/}"
    done
    set -- -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$dir/sources" \
        -o Dir::State::Lists="$dir/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Acquire::Retries=2
    why="apt-get update failed"
    apt-get "$@" update || return 1
    why="apt finds none among Debian's non-free packages"
    package=$(apt-cache "$@" search --names-only '^libnvrtc[0-9.]+$' | cut -d' ' -f1 | sort -V | tail -n1)
    [ -n "$package" ] || return 1
    echo "installing $package"
    apt-get "$@" install -y --no-install-recommends "$package" >/dev/null
}

# The files with apt's entries for Debian.
debian() {
    apt-get indextargets --format '$(SOURCESENTRY)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | sed 's/:[0-9]*$//' | sort -u
}

if [ "${1:-}" = nvrtc ]; then
    nvrtc || echo "NVRTC is not installed ($why): tests that compile CUDA C++ are skipped"
    exit 0
fi

missing=
if [ "${1:-}" = launch ]; then
    { command -v slurmctld && command -v srun; } >/dev/null || missing="$missing slurm-wlm"
    command -v munged >/dev/null || missing="$missing munge"
    command -v mpirun.mpich >/dev/null || missing="$missing mpich"
    [ -x /sbin/ip ] || missing="$missing iproute2"
elif [ "${1:-}" = page ]; then
    command -v chromium >/dev/null || missing="$missing chromium"
    command -v npm >/dev/null || missing="$missing npm"
else
    command -v go >/dev/null || { echo "Go is missing: install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }
    # Go's own default is gcc, whatever cc is.
    [ -n "${CC:-}" ] || command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
    command -v mpirun >/dev/null || missing="$missing openmpi-bin"
    command -v mpicc >/dev/null || missing="$missing libopenmpi-dev"
    # Without OpenBLAS everything runs, at a tenth of the speed.
    /sbin/ldconfig -p 2>/dev/null | grep -q 'libopenblas\.so\.0' || missing="$missing libopenblas0-pthread"
fi
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "missing:$missing (these are Debian's names): install them with this system's package manager" >&2
    case "$missing" in " libopenblas0-pthread") exit 0 ;; *) exit 1 ;; esac
fi
if [ "$(id -u)" != 0 ]; then
    echo "missing:$missing. Run this, then again what you ran:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
