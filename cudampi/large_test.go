package cudampi_test

import (
	"syscall"
	"testing"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/process"
	"lockstep/internal/testkit"
)

// TestBeyondInt makes calls of more elements than an int of C counts: a message, which is one of a
// derived datatype, and an all-reduce, which is done in parts. TestReductions, TestMoves and
// TestMessages show with few elements that the other collectives are right in parts.
func TestBeyondInt(t *testing.T) {
	testkit.Only(t, "messages and collectives of more elements than an int of C counts")
	const need = 12 << 30 // bytes, for two ranks and what MPI buffers
	if free, _, err := process.Memory("/"); err != nil || free < need {
		t.Skipf("%d MB of memory available, %d MB needed (%v)", free>>20, need>>20, err)
	}
	if testing.Short() {
		t.Skip("moves 2 GiB twice")
	}
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		const n = 1<<31 + 11
		mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		commtest.Must(t, err)
		p := unsafe.Pointer(&mem[0])
		// A byte in each page and the last ones are marked; the rest is zero, on both ranks.
		marks := func(mark func(i int)) {
			for i := 0; i < n; i += 4096 {
				mark(i)
			}
			for i := n - 12; i < n; i++ {
				mark(i)
			}
		}
		value := func(i, k int) byte { return byte((i>>12*13+i+k)%100 + 1) }
		set := func(k int) { marks(func(i int) { mem[i] = value(i, k) }) }
		check := func(what string, want func(i int) byte) {
			marks(func(i int) {
				if mem[i] != want(i) {
					t.Fatalf("%s: byte %d of %d is %d, want %d", what, i, n, mem[i], want(i))
				}
			})
		}

		if c.Rank() == 0 {
			set(1)
			commtest.Must(t, c.Send(p, n, elem.Uint8, 1))
		} else {
			commtest.Must(t, c.Recv(p, n, elem.Uint8, 0))
			check("Recv", func(i int) byte { return value(i, 1) })
			set(2)
		}
		commtest.Must(t, c.AllReduce(p, p, n, elem.Uint8, elem.Sum))
		check("AllReduce", func(i int) byte { return value(i, 1) + value(i, 2) })
		commtest.Must(t, syscall.Munmap(mem))
	})
}
