#!/bin/sh
# Runs the tests on this machine's GPUs: all programs that `make test-gpu` built
# into bin/test, each in its package's folder, on 1 rank, on 2, up to one rank per GPU, with as many GPUs visible as
# there are ranks. Packages that need no ranks run once, and those whose ranks may share a GPU on 1 to 5 ranks. All of
# these see all GPUs. It needs no Go.
#
#   ./test-gpu.sh [FOLDER]     full logs go to FOLDER (default: a new one in /tmp)
#
#   RANKS="1 4"                other numbers of ranks
#   PACKAGES="spmd nccl"       of these packages only
#   JOBS=2                     programs at a time: most of a test is its start. More is slower: kernels that
#                              wait for those of other GPUs wait for their job's turn on each of them
#   SPMDTEST_DEVICE=host       the same on host memory
#   LIMIT=300                  seconds for each program, which then says where it hangs
set -u
cd "$(dirname "$0")" || exit 1
root="$(pwd)"

export SPMDTEST_DEVICE="${SPMDTEST_DEVICE:-cuda}"
export LOCKSTEP_TESTS="${LOCKSTEP_TESTS:-all}"
limit="${LIMIT:-600}"

# one RANKS PROGRAM runs a program, and adds its row to the table.
one() {
    export SPMDTEST_RANKS="$1"
    folder="$(dirname "$2")" # bin/test/spmd/spmd.test is of the package in spmd
    if seesAll "$folder"; then sees="$visible"; else sees="$(echo "$visible" | cut -d, -f "1-$1")"; fi
    parallel=4
    [ "$1" -le 2 ] || parallel=2
    log="$logs/$1.$(echo "$folder" | tr / .).log"
    start="$(date +%s)"
    (cd "$folder" && CUDA_VISIBLE_DEVICES="$sees" timeout -k 10 "$((limit + 10))" "$root/bin/test/$2" -test.v -test.count=1 -test.parallel=$parallel -test.timeout "${limit}s") >"$log" 2>&1
    case $? in
    0) result=ok ;;
    124 | 137) result=TIMEOUT ;;
    *) result=FAIL ;;
    esac
    row="$(printf '%-6s %-24s %-7s %6d %7d %7d' "$1" "$folder" "$result" \
        "$(grep -c '^ *--- PASS' "$log")" "$(grep -c '^ *--- SKIP' "$log")" "$(($(date +%s) - start))")"
    echo "$row" >>"$logs/table"
    if [ "$result" != ok ]; then
        echo "$row"
        grep -v '^ *===' "$log" | grep -A 12 '^ *--- FAIL\|^panic:\|^fatal error:' | head -40
        exit 1
    fi
}

# seesAll says whether the tests of a package see all GPUs.
seesAll() {
    case $1 in
    cuda | cuda/*) return 0 ;;
    *) shares "$1" ;;
    esac
}

# shares says whether ranks of a package's tests may share a GPU. One number of ranks is tested after the other, from the
# highest: a job starts once, and each of its ranks keeps its context for as long as the program runs.
shares() {
    case $1 in
    spmd/internal/peer | spmd/internal/transport) return 0 ;;
    *) return 1 ;;
    esac
}

if [ "${1:-}" = --one ]; then # this script, as it starts itself
    one "$2" "$3"
    exit 0
fi

logs="${1:-$(mktemp -d /tmp/test-gpu.XXXXXX)}"
mkdir -p "$logs" || exit 1
logs="$(cd "$logs" && pwd)"
visible="${CUDA_VISIBLE_DEVICES:-}"
[ -n "$visible" ] || visible="$(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*/\1/p' | paste -sd, -)"
export logs visible
if [ -z "${RANKS:-}" ]; then
    gpus="$(echo "$visible" | tr , '\n' | grep -c .)"
    [ "$gpus" -gt 0 ] || { echo "test-gpu: nvidia-smi -L lists no GPU; see the head of this script for RANKS and SPMDTEST_DEVICE" >&2; exit 1; }
    RANKS="$(seq 1 "$gpus")"
fi
# The longest begin first, and others run beside them.
programs="$(cd bin/test 2>/dev/null && find . -name '*.test' | sed 's|^\./||' | sort |
    awk '/^(spmd\/internal\/peer|apps\/train|spmd)\/[a-z]*[.]test$/ { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }')"
if [ -n "${PACKAGES:-}" ]; then
    programs=
    for package in $PACKAGES; do programs="$programs $package/${package##*/}.test"; done
fi
[ -n "$programs" ] || { echo "test-gpu: no programs in bin/test: build them with make test-gpu" >&2; exit 1; }

status=0
printf '%-6s %-24s %-7s %6s %7s %7s\n' ranks package result passed skipped seconds >"$logs/table"
once=
for ranks in $RANKS; do
    now=
    for program in $programs; do
        folder="$(dirname "$program")"
        if ! seesAll "$folder"; then
            now="$now $ranks $program"
            continue
        fi
        case " $once " in *" $folder "*) continue ;; esac
        once="$once $folder"
        if shares "$folder"; then numbers="5 4 3 2 1"; else numbers="$ranks"; fi
        for number in $numbers; do now="$now $number $program"; done
    done
    printf '%s %s\n' $now | LIMIT="$limit" xargs -P "${JOBS:-1}" -n 2 ./test-gpu.sh --one || status=1
done
echo "logs: $logs"
cat "$logs/table"
exit $status
