package job

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// kernelAddr writes an address as the kernel's tables have it: words of the machine.
func kernelAddr(a string) string {
	b := netip.MustParseAddr(a).AsSlice()
	text := ""
	for word := range slices.Chunk(b, 4) {
		text += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(word))
	}
	return text
}

func TestParseSockets(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(addr, state, inode string) string {
		return "   0: " + kernelAddr(addr) + ":A1F2 " + kernelAddr(addr) + ":0016 " + state +
			" 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 1 0 20 4 30 10 -1\n"
	}
	v4, v6 := netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd00:1::2")
	for _, tc := range []struct {
		table string
		want  []Socket
	}{
		{"", nil},
		{head, nil},
		{head + row("10.77.0.2", "01", "71") + row("10.77.0.2", "0A", "72"), []Socket{{"71", v4}}}, // one listens
		{row("127.0.0.1", "01", "71") + row("::1", "01", "72"), nil},
		{row("fd00:1::2", "01", "73"), []Socket{{"73", v6}}},
		{row("::ffff:10.77.0.2", "01", "74"), []Socket{{"74", v4}}},
		{"   0: 0100007:A1F2 0 01 0 0 0 0 0 71\n   1: zz:1 0 01 0 0 0 0 0 71\n   2: short 01\n", nil},
	} {
		if got := parseSockets(tc.table); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %v, want %v", tc.table, got, tc.want)
		}
	}
	// proc(5): little-endian and big-endian machines
	if a := kernelAddr("127.0.0.1"); a != "0100007F" && a != "7F000001" {
		t.Errorf("127.0.0.1 is written %s", a)
	}
}

func TestInterfaces(t *testing.T) {
	nowhere := netip.MustParseAddr("192.0.2.77") // reserved for documentation: on no interface
	lo := netip.MustParseAddr("127.0.0.1")
	if got, want := Interfaces([]Socket{{"1", nowhere}, {"2", lo}, {"3", nowhere}}),
		"192.0.2.77, lo (127.0.0.1)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Interfaces(nil); got != "" {
		t.Errorf("%q of no connection", got)
	}
}
