// Allocate takes and gives back device memory in two goroutines while all-reduces go on. It needs
// no lock. Memory comes from a pool: a freed buffer is handed out again when the streams have
// passed that point.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("allocate", pflag.ExitOnError), allocate)
}

func allocate(_ context.Context, w *spmd.World) error {
	s, err := w.NewStream("reduce")
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[int64](w, 1000)
	if err != nil {
		return err
	}
	defer x.Free()
	if err := x.SetAll(1); err != nil {
		return err
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			var err error
			for n := 0; err == nil && n < 100; n++ {
				var b spmd.Buffer[float32]
				if b, err = spmd.Alloc[float32](w, 1000*(n+1)); err == nil {
					err = b.Free()
				}
			}
			ended <- err
		}()
	}
	for range 10 {
		if err := spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum); err != nil {
			return err
		}
	}
	if err := errors.Join(<-ended, <-ended, s.Synchronize()); err != nil {
		return err
	}
	if w.Rank() == 0 {
		fmt.Printf("10 all-reduces of ones beside 200 allocations: %d\n", x.At(0))
	}
	return nil
}
