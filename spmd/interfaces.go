package spmd

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/rs/zerolog"
)

// socket is a TCP connection of this process.
type socket struct {
	inode string
	local netip.Addr
}

// sockets returns the connections of this process that leave the node, or nothing
// where the kernel does not say.
// Source: proc_pid_net(5), /proc/net/tcp.
func sockets() []socket {
	own := map[string]bool{}
	entries, _ := os.ReadDir("/proc/self/fd") // one less: nothing depends on it
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	var list []socket
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6
		}
		for _, s := range parseSockets(string(b)) {
			if own[s.inode] {
				list = append(list, s)
			}
		}
	}
	return list
}

// parseSockets reads a table of connections: those established, other than loopback.
func parseSockets(table string) []socket {
	var list []socket
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		const established = "01"
		if len(f) < 10 || f[3] != established {
			continue
		}
		text, _, _ := strings.Cut(f[1], ":")
		if addr, ok := parseAddr(text); ok && !addr.IsLoopback() {
			list = append(list, socket{f[9], addr})
		}
	}
	return list
}

// parseAddr reads an address of 4 or 16 bytes, which the kernel writes as words in the
// byte order of the machine.
func parseAddr(text string) (netip.Addr, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for word := range slices.Chunk(b, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(b)
	return addr.Unmap(), ok
}

// interfaces names the interfaces that connections leave by: "eth0 (10.0.0.1)".
func interfaces(list []socket) string {
	var names []string
	all, _ := net.Interfaces() // without it the addresses say it alone
	for _, s := range list {
		name := s.local.WithZone("").String()
		for _, i := range all {
			addrs, _ := i.Addrs() // likewise
			for _, a := range addrs {
				if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().WithZone("") == s.local.WithZone("") {
					name = i.Name + " (" + name + ")"
				}
			}
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// describeNodes adds what matters between nodes: in which order they hold the ranks,
// and by which interfaces this rank's connections leave the node. Fabrics other than
// TCP show none.
func (w *World) describeNodes(line *zerolog.Event) *zerolog.Event {
	order := "by node"
	if !w.byNode {
		order = "mixed: neighbours in rank are on different nodes"
	}
	line = line.Str("rank_order", order).Str("mpi_tcp", cmp.Or(interfaces(w.mpiSockets), "none"))
	if w.gpu != nil {
		now := slices.DeleteFunc(w.ncclSockets, func(s socket) bool { return slices.Contains(w.mpiSockets, s) })
		line = line.Str("nccl_tcp", cmp.Or(interfaces(now), "none"))
	}
	return line
}

// manyInterfaces is advice for a start that hangs where MPI may have chosen an interface
// that leads nowhere; "" where there is no choice.
func manyInterfaces() string {
	var up []string
	all, _ := net.Interfaces() // without it there is no advice
	for _, i := range all {
		if addrs, err := i.Addrs(); err == nil && len(addrs) > 0 && i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			up = append(up, i.Name)
		}
	}
	if len(up) < 2 {
		return ""
	}
	return fmt.Sprintf("; of its interfaces (%s) one may lead nowhere: over several hosts name the right one, mpirun --mca btl_tcp_if_include NAME", strings.Join(up, ", "))
}
