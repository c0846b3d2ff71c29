#!/bin/sh
# Builds everything for linux/arm64, and runs the host's tests: on an x86-64 machine with Debian or Ubuntu, by root. A cross
# compiler builds, and a Debian for arm64 in a folder (debootstrap) has the libraries. The kernel has qemu run what is built
# for the other processor (binfmt_misc). Emulation keeps the order of memory of the machine it runs on: what a processor
# of ARM may reorder is seen on one only.
#
#   ./test-arm64.sh [PACKAGE...]    tests of these packages only. Which tests are left out, and why, is in CONTRIBUTING.md
#
#   ARM64_ROOT=FOLDER               where the Debian is, or is put (default /var/cache/lockstep-arm64, some 1 GB)
#   ARM64_FLAGS="-run Collectives"  more flags of go test
#   LIMIT=3000                      seconds for the tests of one package
set -eu
cd "$(dirname "$0")"
root="${ARM64_ROOT:-/var/cache/lockstep-arm64}"

# The program that go test starts each test with: the same folder, in the other Debian.
if [ "${1:-}" = --exec ]; then
    shift
    cd "$OLDPWD"
    # Tests that build use the compiler of that Debian, which is emulated too.
    export CC=gcc CGO_CFLAGS="-O2 -g -I/usr/lib/aarch64-linux-gnu/openmpi/include" CGO_LDFLAGS="-L/usr/lib/aarch64-linux-gnu/openmpi/lib"
    # The sanitizer of leaks needs ptrace, which the emulator does not have.
    export ASAN_OPTIONS=detect_leaks=0
    # shellcheck disable=SC2016 # the inner shell's
    exec chroot "$root" /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$PWD" "$@"
fi

if [ "${1:-}" = --mounted ]; then
    shift
    here=$(pwd)
    for folder in /proc /sys /dev /dev/shm /tmp "$here" "$(go env GOROOT)" "$(go env GOMODCACHE)" "$(go env GOCACHE)"; do
        mkdir -p "$root$folder"
        mount --rbind "$folder" "$root$folder"
    done
    export GOARCH=arm64 CGO_ENABLED=1 ARM64_ROOT="$root" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"
    export CC="aarch64-linux-gnu-gcc --sysroot=$root"
    # gompi names the folders of x86-64 only.
    export CGO_CFLAGS="-O2 -g -I$root/usr/lib/aarch64-linux-gnu/openmpi/include"
    export CGO_LDFLAGS="-L$root/usr/lib/aarch64-linux-gnu/openmpi/lib"
    # Three emulated ranks on two busy cores need more than the usual 30 s to start in.
    export SPMDTEST_TIMEOUT="${SPMDTEST_TIMEOUT:-5m}"
    go build -o bin/arm64/ ./apps/... ./bench ./launch ./launch/launch-probe
    export LOCKSTEP_TEST_HANG=30s # what hangs on purpose does so for longer than an emulated mpirun needs to start
    [ $# -gt 0 ] || set -- $(go list ./...)
    slow='TestFaults|TestStartedDifferently|TestReportStates|TestDividedLong|TestDividedResume|TestFP8Divided|TestFP8Recompute'
    other='TestRoom|TestState|TestTutorial|TestRestarts'
    # Of launch/plan, the tests of launch run.
    run='TestLittleSaid|TestKeepSessions|TestLive|TestNotLive|TestLeftBehind|TestLauncherHangs|TestStartHangs|TestPipe|TestLastLine'
    run="$run|TestRestartsEnded|TestRestartsLogs|TestMinRanks|TestMinRanksSlurm|TestRun|TestStdin|TestLogs|TestStatus|TestSignals"
    run="$run|TestBadInput|TestHosts|TestCompareHosts|TestNohup"
    status=0
    tests() {
        skip="$1"
        shift
        echo "left out, for reasons that CONTRIBUTING.md says: $(echo "$skip" | sed 's/|/, /g')"
        # shellcheck disable=SC2086 # a list of flags
        go test -skip "^($skip)\$" -count=1 -parallel 2 -timeout "${LIMIT:-3000}s" -ldflags=-w \
            -exec "$here/test-arm64.sh --exec" ${ARM64_FLAGS:-} "$@" || status=1
    }
    packages=
    for p in $(go list "$@"); do
        case $p in
        */launch/plan) tests "$slow|$other|$run" "$p" ;;
        *) packages="$packages $p" ;;
        esac
    done
    # shellcheck disable=SC2086 # a list of packages
    [ -z "$packages" ] || tests "$slow|$other" $packages
    exit "$status"
fi

[ "$(id -u)" = 0 ] || { echo "test-arm64: only root may mount and change the root folder" >&2; exit 1; }
command -v apt-get >/dev/null || { echo "test-arm64: apt-get is missing: this needs Debian or Ubuntu" >&2; exit 1; }
missing=
command -v aarch64-linux-gnu-gcc >/dev/null || missing="$missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
command -v debootstrap >/dev/null || missing="$missing debootstrap"
command -v qemu-aarch64-static >/dev/null || missing="$missing qemu-user-static"
command -v update-binfmts >/dev/null || missing="$missing binfmt-support"
if [ -n "$missing" ]; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
[ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
[ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64
# iproute2 and ssh are what tests of several hosts, and mpirun, look for. automake is what libltdl-dev means by
# automake-1.16, which debootstrap does not find.
wanted=automake,gcc,g++,libc6-dev,libopenmpi-dev,openmpi-bin,libopenblas0-pthread,openssh-client,make,procps,iproute2,ca-certificates
if [ ! -e "$root/complete" ]; then
    echo "a Debian for arm64 goes to $root, which takes some minutes"
    rm -rf "$root"
    debootstrap --arch=arm64 --variant=minbase --include="$wanted" bookworm "$root" >"$root.log" 2>&1 ||
        { tail "$root.log" >&2; echo "test-arm64: debootstrap failed: $root.log" >&2; exit 1; }
    umount "$root/proc" 2>/dev/null || true
    echo "$wanted" >"$root/complete"
elif [ "$(cat "$root/complete")" != "$wanted" ]; then
    echo "packages that these tests have come to need go to $root"
    # shellcheck disable=SC2016 # the inner shell's
    chroot "$root" /bin/sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(echo "$1" | tr , " ")' sh "$wanted" >"$root.log" 2>&1 ||
        { tail "$root.log" >&2; echo "test-arm64: apt-get failed: $root.log" >&2; exit 1; }
    echo "$wanted" >"$root/complete"
fi
# Mounts of their own, which end with the tests.
exec unshare --mount ./test-arm64.sh --mounted "$@"
