#!/bin/sh
# slow.sh COMMAND runs it as on a slow and busy machine: with half of one core, for which eight
# processes compete. It needs root, and cgroups of version 1 or 2.
set -eu
root=/sys/fs/cgroup
[ ! -d $root/cpu ] || root=$root/cpu
group=$root/lockstep-slow.$$
[ ! -e $root/cgroup.subtree_control ] || echo +cpu >$root/cgroup.subtree_control
mkdir "$group"
busy=
trap 'kill $busy; echo $$ >$root/cgroup.procs; rmdir "$group"' EXIT
for _ in 1 2 3 4 5 6 7 8; do
    sh -c 'while :; do :; done' &
    busy="$busy $!"
done
if [ -e "$group/cpu.max" ]; then echo "50000 100000" >"$group/cpu.max"; else echo 50000 >"$group/cpu.cfs_quota_us"; fi
echo $$ >"$group/cgroup.procs"
"$@"
