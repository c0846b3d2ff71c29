package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
)

// The C library has a function of the kernel's name, which must not take its place.
const votes = `
extern "C" __global__ void advance(int *out, int of) {
	int i = threadIdx.x;
	for (int turn = 0; turn < 3; turn++) {
		int count = __syncthreads_count(i % (of + turn) == 0);
		int any = __syncthreads_or(turn == 1 && i == of), all = __syncthreads_and(turn != 2 || i != of);
		out[i * 3 + turn] = count * 4 + any * 2 + all;
	}
}
`

const threads = 70 // no full warp

var voted [3 * threads]int32 // no stack has it, which moves

// A library that is kept in part, or that another user could have written, is compiled anew, and
// without a folder none is left.
func TestEmulateKept(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip(err)
	}
	dir, temp := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)
	var whole os.FileInfo
	for _, harm := range []func(file string) error{
		nil, func(file string) error { return os.Truncate(file, whole.Size()/2) },
		func(file string) error { return os.Chmod(file, 0o666) },
		func(file string) error { return os.Chown(file, 1, -1) },
	} {
		kept, _ := filepath.Glob(dir + "/*")
		if harm != nil && (len(kept) != 1 || harm(kept[0]) != nil) {
			continue // only root may give files away
		}
		if _, err := Emulate(dir, EmulatedSource{Text: votes, Names: []string{"advance"}}); err != nil {
			t.Fatal(err)
		}
		kept, _ = filepath.Glob(dir + "/*")
		now, err := os.Stat(kept[0])
		testkit.Must(t, err)
		owner := int(now.Sys().(*syscall.Stat_t).Uid)
		right := now.Mode() == 0o644 && owner == os.Geteuid() && len(kept) == 1
		if !right || whole != nil && now.Size() != whole.Size() {
			t.Errorf("%d files; %d bytes, %v, user %d", len(kept), now.Size(), now.Mode(), owner)
		}
		whole = now
	}
	if _, err := Emulate("", EmulatedSource{Text: votes, Names: []string{"advance"}}); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(temp + "/*"); left != nil {
		t.Errorf("%v are left", left)
	}
}

// All threads of a block get the sum of their votes, and each call begins again.
func TestVotes(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip(err)
	}
	p, err := Emulate(t.TempDir(), EmulatedSource{Text: votes, Names: []string{"advance"}})
	testkit.Must(t, err)
	out := &voted
	if err := p.Launch("advance", Part{[3]int{1, 1, 1}, [3]int{threads, 1, 1}, 0, 1, 0},
		[]uint64{uint64(uintptr(unsafe.Pointer(out))), 10}, []uint32{0, 1}); err != nil {
		t.Fatal(err)
	}
	// From 0 to 69 there are 7 multiples of 10, 7 of 11, and 6 of 12.
	want := [3]int32{7*4 + 1, 7*4 + 2 + 1, 6 * 4}
	for i, got := range out {
		if got != want[i%3] {
			t.Fatalf("thread %d, turn %d: %d, want %d", i/3, i%3, got, want[i%3])
		}
	}
}
