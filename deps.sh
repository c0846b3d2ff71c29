#!/bin/sh
# Installs what a Debian or Ubuntu machine lacks to build and run: a C compiler,
# Open MPI, OpenBLAS. Without root it prints the command and stops. Elsewhere, or
# with these in place, it only checks.
set -eu

command -v go >/dev/null || { echo "Go is missing: install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }

missing=
# Go's own default is gcc, whatever cc is.
[ -n "${CC:-}" ] || command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
command -v mpirun >/dev/null || missing="$missing openmpi-bin"
command -v mpicc >/dev/null || missing="$missing libopenmpi-dev"
# Without OpenBLAS everything runs, at a tenth of the speed.
/sbin/ldconfig -p 2>/dev/null | grep -q 'libopenblas\.so\.0' || missing="$missing libopenblas0-pthread"
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
