#!/bin/sh
# Runs the tests on this machine's GPUs: all programs that `make test-gpu` built
# into bin/test, on 1 rank, on 2, up to one rank per GPU, with as many GPUs visible as
# there are ranks; those of packages that see to ranks themselves once. It needs no Go.
#
#   ./test-gpu.sh [FOLDER]     full logs go to FOLDER (default: a new one in /tmp)
#
#   RANKS="1 4"                other numbers of ranks
#   PACKAGES="spmd nccl"       of these packages only
#   SPMDTEST_DEVICE=host       the same on host memory
#   LIMIT=300                  seconds for each program, which then says where it hangs
set -u
cd "$(dirname "$0")" || exit 1

export SPMDTEST_DEVICE="${SPMDTEST_DEVICE:-cuda}"
limit="${LIMIT:-300}"
logs="${1:-$(mktemp -d /tmp/test-gpu.XXXXXX)}"
mkdir -p "$logs" || exit 1
logs="$(cd "$logs" && pwd)"
root="$(pwd)"

visible="${CUDA_VISIBLE_DEVICES:-}"
[ -n "$visible" ] || visible="$(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*/\1/p' | paste -sd, -)"
if [ -z "${RANKS:-}" ]; then
    gpus="$(echo "$visible" | tr , '\n' | grep -c .)"
    [ "$gpus" -gt 0 ] || { echo "test-gpu: nvidia-smi -L lists no GPU; see the head of this script for RANKS and SPMDTEST_DEVICE" >&2; exit 1; }
    RANKS="$(seq 1 "$gpus")"
fi
programs="$(cd bin/test 2>/dev/null && find . -name '*.test' | sed 's|^\./||' | sort)"
if [ -n "${PACKAGES:-}" ]; then
    chosen=
    for package in $PACKAGES; do chosen="$chosen $package/${package##*/}.test"; done
    programs="$chosen"
fi
[ -n "$programs" ] || { echo "test-gpu: no programs in bin/test: build them with make test-gpu" >&2; exit 1; }

status=0
table="$logs/table"
printf '%-6s %-24s %-7s %6s %7s %7s\n' ranks package result passed skipped seconds >"$table"
once=
for ranks in $RANKS; do
    export SPMDTEST_RANKS="$ranks"
    for program in $programs; do
        folder="$(dirname "$program")" # bin/test/spmd/spmd.test is of the package in spmd
        case $folder in
        cuda | cuda/* | cudampi) # these see to ranks themselves, and see all GPUs
            case " $once " in *" $folder "*) continue ;; esac
            once="$once $folder"
            sees="$visible"
            ;;
        *) sees="$(echo "$visible" | cut -d, -f "1-$ranks")" ;;
        esac
        log="$logs/$ranks.$(echo "$folder" | tr / .).log"
        start="$(date +%s)"
        (cd "$folder" && CUDA_VISIBLE_DEVICES="$sees" CUDA_DEVICE_MAX_CONNECTIONS=32 timeout -k 10 "$((limit + 10))" "$root/bin/test/$program" -test.v -test.count=1 -test.parallel=4 -test.timeout "${limit}s") >"$log" 2>&1
        code=$?
        case $code in
        0) result=ok ;;
        124 | 137) result=TIMEOUT status=1 ;;
        *) result=FAIL status=1 ;;
        esac
        row="$(printf '%-6s %-24s %-7s %6d %7d %7d' "$ranks" "$folder" "$result" \
            "$(grep -c '^ *--- PASS' "$log")" "$(grep -c '^ *--- SKIP' "$log")" "$(($(date +%s) - start))")"
        echo "$row" >>"$table"
        if [ "$result" != ok ]; then
            echo "$row"
            grep -v '^ *===' "$log" | grep -A 12 '^ *--- FAIL\|^panic:\|^fatal error:' | head -40
        fi
    done
done
echo "logs: $logs"
cat "$table"
exit $status
