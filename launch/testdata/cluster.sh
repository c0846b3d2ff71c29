#!/bin/bash
# A real Slurm on this machine, for tests: slurmctld, two slurmd (n1 and n2), munged. As root only.
#
#   cluster.sh start DIR   starts it, with all its files in DIR; then: export SLURM_CONF=DIR/slurm.conf
#   cluster.sh stop DIR    cancels its jobs, ends its four daemons, and no other process
#   cluster.sh run DIR     starts it, prints "ready", and stops it when standard input ends
#
# Several may run at the same time, each in a folder of its own, on ports that were free. DIR must be short: sockets lie in it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "cluster.sh: $*" >&2; exit 1; }
usage="usage: cluster.sh start|stop|run DIR"
[ $# = 2 ] || fail "$usage"
[ "$(id -u)" = 0 ] || fail "must run as root: slurmd does"
dir=$(realpath -m "$2")
[ ${#dir} -le 60 ] || fail "$dir: a path of at most 60 bytes is needed"
export SLURM_CONF=$dir/slurm.conf
daemons="n1 n2 slurmctld munged"

# await SECONDS COMMAND... until it succeeds.
await() {
    local end=$((SECONDS + $1)); shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

# The process of a daemon, by its whole command line: pid files are written late, and outlive it.
pid() {
    case $1 in
    n?) pgrep -fx "slurmd -N $1 -f $SLURM_CONF" ;;
    slurmctld) pgrep -fx "slurmctld -c -i -f $SLURM_CONF" ;;
    munged) pgrep -fx "munged --socket=$dir/munge.socket .*" ;;
    esac
}
gone() { ! pid "$1" >/dev/null; }
no_jobs() { [ -z "$(timeout 10 squeue -h 2>/dev/null)" ]; }
idle() { [ "$(timeout 10 sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; }

# Three ports in a row on which nobody listens, from $port.
free_ports() {
    for _ in $(seq 100); do
        port=$((20000 + RANDOM % 10000))
        listens $port || listens $((port + 1)) || listens $((port + 2)) || return 0
    done
    fail "found no three free ports in a row between 20000 and 30000"
}
listens() { (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

fill() { sed -e "s#@DIR@#$dir#g" -e "s#@HOST@#$(hostname -s)#g" -e "s#@PORT0@#$port#" -e "s#@PORT1@#$((port + 1))#" -e "s#@PORT2@#$((port + 2))#" "$here/$1.in" >"$dir/$1"; }

start() {
    for program in munged slurmctld slurmd pgrep unshare; do
        command -v $program >/dev/null || fail "$program is missing: apt-get install -y --no-install-recommends slurm-wlm munge procps util-linux"
    done
    for d in $daemons; do gone $d || fail "a cluster runs in $dir already"; done
    trap 'tail -n 5 "$dir"/*.log >&2; stop' EXIT
    mkdir -p "$dir"/{state,n1/spool,n1/tmp,n2/spool,n2/tmp}
    chmod 755 "$dir" # munged insists
    for i in 0 1 2 3; do ln -sfn /dev/null "$dir/gpu$i"; done # slurmd insists on devices
    free_ports
    fill slurm.conf
    fill gres.conf
    (umask 077; head -c 128 /dev/urandom >"$dir/munge.key")
    timeout 30 munged --socket="$dir/munge.socket" --key-file="$dir/munge.key" --pid-file="$dir/munged.pid" \
        --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" 2>"$dir/out.log"
    timeout 30 slurmctld -c -i -f "$SLURM_CONF" </dev/null >>"$dir/out.log" 2>&1
    # Each node has a name and shared memory of its own: with one /dev/shm, MPI on a node takes the other's segments for its own.
    for n in n1 n2; do
        timeout 30 unshare --uts --mount --ipc sh -c 'hostname "$1" && mount -t tmpfs tmpfs /dev/shm && exec slurmd -N "$1" -f "$SLURM_CONF"' sh $n \
            </dev/null >>"$dir/out.log" 2>&1
    done
    await 30 idle || fail "the nodes did not come up in 30 s"
    trap stop EXIT
}

stop() {
    local left=0
    if ! gone slurmctld; then
        timeout 10 scancel --me >/dev/null 2>&1 || true
        await 30 no_jobs || { echo "cluster.sh: there are jobs that did not end in 30 s" >&2; left=1; }
    fi
    for d in $daemons; do
        pids=$(pid $d) || continue
        kill $pids 2>/dev/null || true
        await 10 gone $d || kill -9 $pids 2>/dev/null || true
    done
    return $left
}

case $1 in
start) start; trap - EXIT ;;
stop) stop ;;
run)
    trap 'exit 1' HUP INT TERM # or bash ends without the trap of EXIT
    start
    echo ready
    cat >/dev/null
    ;;
*) fail "$usage" ;;
esac
