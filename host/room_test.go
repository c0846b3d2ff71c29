package host

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

// roomEnv is how many MiB of virtual memory the process of a test may take beside what it has.
const roomEnv = "LOCKSTEP_HOST_ROOM"

// TestRoom: under a limit on virtual memory products come to an end, by OpenBLAS if there is room
// for its buffers.
func TestRoom(t *testing.T) {
	if room := os.Getenv(roomEnv); room != "" {
		limited(t, room)
		return
	}
	if !strings.HasPrefix(BLAS(), "OpenBLAS") {
		t.Skip(BLAS())
	}
	for room, want := range map[string]string{"150": "gonum (pure Go): OpenBLAS has no room for its buffers",
		"100000": "OpenBLAS 0"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRoom$", "-test.v", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), roomEnv+"="+room, "GOMAXPROCS=2")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "BLAS: "+want) {
			t.Errorf("with %s MiB: %v, want %q\n%s", room, err, want, out)
		}
	}
}

func limited(t *testing.T, room string) {
	var pages, more uint64
	statm, err := os.ReadFile("/proc/self/statm")
	testkit.Must(t, err)
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(room, &more); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_AS, &old))
	if err := unix.Setrlimit(unix.RLIMIT_AS,
		&unix.Rlimit{Cur: pages*uint64(os.Getpagesize()) + more<<20, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("BLAS:", BLAS())
	const n = 300
	a, c := make([]float32, n*n), make([]float32, n*n)
	for i := range a {
		a[i] = 1
	}
	Gemm(false, false, n, n, n, 1, a, n, a, n, 0, c, n)
	if c[n*n-1] != n {
		t.Errorf("%v", c[n*n-1])
	}
}
