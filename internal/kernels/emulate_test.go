package kernels

import (
	"os/exec"
	"testing"
	"unsafe"
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

// All threads of a block get the sum of their votes, and each call begins again.
func TestVotes(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip(err)
	}
	p, err := Emulate(t.TempDir(), EmulatedSource{Text: votes, Names: []string{"advance"}})
	if err != nil {
		t.Fatal(err)
	}
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
