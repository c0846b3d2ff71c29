package cudampi_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/internal/shm"
)

// TestMain stops MPI after the benchmarks, which leave it on.
func TestMain(m *testing.M) {
	code := mpirun.Main(m)
	if code == 0 {
		if err := cudampi.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// TestPauseLetsMessagesThrough has rank 0 wait for a word. Rank 1 writes it after it has taken more
// messages of rank 0 than MPI can have delivered when it said that they may be forgotten.
func TestPauseLetsMessagesThrough(t *testing.T) {
	mpirun.Run(t, []int{2}, func(t *testing.T) {
		c, err := cudampi.Start()
		commtest.Must(t, err)
		mpirun.OnFail = func() { c.Abort(1) }
		mem, err := shm.Map(c, 4096)
		commtest.Must(t, err)
		word := (*atomic.Uint32)(unsafe.Pointer(&mem[0]))
		const n, messages = 100, 20_000
		x := commtest.Filled[float64](c.Rank(), n)
		for range messages {
			if c.Rank() == 0 {
				commtest.Must(t, c.Send(x.Ptr(), n, elem.Float64, 1))
			} else {
				commtest.Must(t, c.Recv(x.Ptr(), n, elem.Float64, 0))
			}
		}
		if c.Rank() == 1 {
			word.Store(1)
		}
		for looks := 0; word.Load() == 0; looks++ {
			commtest.Must(t, c.Pause(looks))
		}
		mpirun.AtEnd(cudampi.Stop)
	})
}
