package job

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Socket is a TCP connection of this process.
type Socket struct {
	inode string
	local netip.Addr
}

// Sockets returns the connections of this process that leave the node; none if the kernel does not
// tell. Source: proc_pid_net(5), /proc/net/tcp.
func Sockets() []Socket {
	own := map[string]bool{}
	entries, _ := os.ReadDir("/proc/self/fd") // without it no connection is found, which the log line then says
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	var list []Socket
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

// parseSockets reads a table of connections. It returns those that are established and leave the
// node.
func parseSockets(table string) []Socket {
	var list []Socket
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		const established = "01"
		if len(f) < 10 || f[3] != established {
			continue
		}
		text, _, _ := strings.Cut(f[1], ":")
		if addr, ok := parseAddr(text); ok && !addr.IsLoopback() {
			list = append(list, Socket{f[9], addr})
		}
	}
	return list
}

// parseAddr reads an address of 4 or 16 bytes. The kernel writes it as words in the byte order of
// the machine.
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

// Interfaces names the interfaces that connections leave by: "eth0 (10.0.0.1)".
func Interfaces(list []Socket) string {
	var names []string
	all, _ := net.Interfaces() // without it the addresses stand alone
	for _, s := range list {
		name := s.local.WithZone("").String()
		for _, i := range all {
			addrs, _ := i.Addrs() // likewise
			for _, a := range addrs {
				if p, err := netip.ParsePrefix(a.String()); err == nil &&
					p.Addr().WithZone("") == s.local.WithZone("") {
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

// manyInterfaces is advice for a start that hangs: MPI may have chosen an interface that leads
// nowhere. It is "" if there is no choice.
func manyInterfaces() string {
	var up []string
	all, _ := net.Interfaces() // without it there is no advice
	for _, i := range all {
		if addrs, err := i.Addrs(); err == nil && len(addrs) > 0 && i.Flags&net.FlagUp != 0 &&
			i.Flags&net.FlagLoopback == 0 {
			up = append(up, i.Name)
		}
	}
	if len(up) < 2 {
		return ""
	}
	return fmt.Sprintf("; of its interfaces (%s) one may lead nowhere: over several hosts name the right "+
		"one, mpirun --mca btl_tcp_if_include NAME", strings.Join(up, ", "))
}
