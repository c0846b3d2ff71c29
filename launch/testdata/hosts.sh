#!/bin/sh
# Hosts on one machine, made by root of namespaces: each has its own network, name, /tmp and /dev/shm, and a cable to a
# switch, which is a bridge in a namespace too. They live in processes whose numbers are in DIR, and go with them. No
# interface, address, mount or name of this machine changes.
#
#   hosts.sh DIR start N           starts hosts h0, h1, ... at 10.77.0.1, .2, ...: their names resolve nowhere. Where
#                                  standard input is a pipe, they end when it does
#   hosts.sh DIR stop              ends them with all that runs there
#   hosts.sh DIR enter HOST CMD    runs a shell command on a host, as ssh would: the agent of mpirun, as in
#                                  hosts.sh DIR enter h0 'mpirun --mca plm_rsh_agent "hosts.sh DIR enter" -H h0,h1 ...'
#   hosts.sh DIR list HOST         the processes that run there, but those that hold it
#   hosts.sh DIR unplug HOST       takes the cable out: the host has no carrier
#   hosts.sh DIR cut HOST          cuts it beyond the switch: nothing is to be seen, and nothing arrives
#   hosts.sh DIR part HOST OTHER   has nothing of the first arrive at the other
#
# The hosts share the machine's processes and files and, at the same path, DIR.
set -eu

dir=$(cd "$1" && pwd -P)
what=$2
shift 2

# held_by NAME prints the process that holds a host. A number in DIR may have become another process's meanwhile.
held_by() {
	p=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
	case $(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null) in
	*" $dir held $1 "*) echo "$p" ;;
	*) return 1 ;;
	esac
}

pid() {
	held_by "$1" || {
		echo "hosts.sh: no host $1 in $dir: start it with: hosts.sh $dir start N" >&2
		exit 1
	}
}

# in_network NET prints the processes in a network, named as by readlink; nothing of those that have ended.
in_network() {
	find /proc/[0-9]*/ns/net -lname "net:\\[${1##*[}" 2>/dev/null | cut -d/ -f3
}

network_of() {
	readlink "/proc/$1/ns/net" || : # it has gone
}

own_namespaces() {
	for kind in net uts mnt; do readlink "/proc/self/ns/$kind" || exit; done
}

# hold NAME starts the process that holds a host, and waits until it does.
hold() {
	rm -f "$dir/$1.up"
	mkfifo "$dir/$1.up"
	OUTSIDE="$(readlink /proc/self/ns/net) $(readlink /proc/self/ns/uts) $(readlink /proc/self/ns/mnt)" \
		setsid unshare --net --uts --mount -- "$0" "$dir" held "$1" "$(own_namespaces)" <&3 >"$dir/$1.log" 2>&1 3<&- &
	echo $! >"$dir/$1.pid"
	[ "$(timeout 20 cat "$dir/$1.up")" = up ] || {
		cat "$dir/$1.log" >&2
		exit 1
	}
}

# network NAME CMD... runs a command in the network of a host alone.
network() {
	net=/proc/$(pid "$1")/ns/net
	shift
	nsenter --net="$net" "$@"
}

case $what in
start)
	count=$1
	exec 3<&0
	hold switch
	network switch ip link add br0 type bridge
	network switch ip link set br0 up
	i=0
	while [ $i -lt "$count" ]; do
		hold h$i
		network switch ip link add h$i type veth peer name eth0 netns "$(pid h$i)"
		network switch ip link set h$i master br0 up
		network h$i ip address add 10.77.0.$((i + 1))/24 dev eth0
		network h$i ip link set eth0 up
		i=$((i + 1))
	done
	;;
held)
	# Not by hand: name, mounts and network would be this machine's. The process that called unshare tells its own.
	[ -n "${OUTSIDE-}" ] || exit 1
	for ns in net uts mnt; do
		case " $OUTSIDE " in *" $(readlink /proc/self/ns/$ns) "*) exit 1 ;; esac
	done
	# DIR, and the checkout that this script is part of, are there too where they lie in /tmp.
	root=$(cd "$(dirname "$0")/../.." && pwd -P)
	exec 4<"$dir" 5<"$root"
	hostname "$1"
	mount -t tmpfs hosts /dev/shm
	mount -t tmpfs hosts /tmp
	mkdir -p "$dir" "$root"
	mount --no-canonicalize --bind /proc/self/fd/5 "$root"
	mount --no-canonicalize --bind /proc/self/fd/4 "$dir"
	exec 4<&- 5<&-
	cd "$dir"
	ip link set lo up
	echo up >"$1.up"
	if [ -p /dev/stdin ]; then cat; else sleep infinity; fi
	kill -KILL $(in_network "$(network_of self)" | grep -vx $$)
	;;
stop)
	for f in "$dir"/*.pid; do
		[ -e "$f" ] || continue
		name=$(basename "$f" .pid)
		p=$(held_by "$name") && {
			net=$(readlink /proc/self/fd/9)
			# Never in this machine's own network, where a host that has not quite begun still is.
			while [ "$net" != "$(network_of self)" ] && left=$(in_network "$net") && [ -n "$left" ]; do
				echo "$left" | xargs kill -KILL 2>/dev/null || : # some have gone
			done
		} 9<"/proc/$p/ns/net" || : # held open, lest another network gets its number
		rm -f "$f" "$dir/$name.up" "$dir/$name.log"
	done
	;;
enter)
	p=$(pid "$1")
	shift
	exec env -i PATH="$PATH" HOME="${HOME:-/}" nsenter --target "$p" --net --uts --mount --wdns=/ -- sh -c "$*"
	;;
list)
	p=$(pid "$1")
	in_network "$(network_of "$p")" | xargs -r ps -o pid=,sid=,comm= -p | awk -v held="$p" '$2 != held { print $1, $3 }'
	;;
unplug) network switch ip link set "$1" down ;;
cut) network switch ip link set "$1" nomaster ;;
part) network "$1" ip neighbour replace "10.77.0.$((${2#h} + 1))" lladdr 02:00:00:00:00:00 dev eth0 nud permanent ;;
*)
	echo "hosts.sh: $what: want start, stop, enter, list, unplug, cut or part" >&2
	exit 2
	;;
esac
