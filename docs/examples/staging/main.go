// Staging feeds a device through two pinned buffers that are allocated once and used in turn: the
// host fills one while the other is copied.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("staging", pflag.ExitOnError), staging)
}

func staging(_ context.Context, w *spmd.World) error {
	const n, batches = 1 << 12, 6
	s, err := w.NewStream("feed")
	if err != nil {
		return err
	}
	var staged [2]spmd.Buffer[int64]
	var copied [2]*spmd.Event
	for i := range staged {
		if staged[i], err = spmd.AllocPinned[int64](w, n); err != nil {
			return err
		}
		if copied[i], err = w.NewEvent(); err != nil {
			return err
		}
	}
	batch, err := spmd.Alloc[int64](w, n)
	if err != nil {
		return err
	}
	for b := range batches {
		next, done := staged[b%2], copied[b%2]
		if err := done.Synchronize(); err != nil { // the copy out of it, two batches ago
			return err
		}
		for i := range next.Host() {
			next.Host()[i] = int64(b * (w.Rank() + 1))
		}
		if err := errors.Join(spmd.Copy(s, batch, next), done.Record(s),
			spmd.AllReduce(w.Comm().On(s), batch, batch, spmd.Sum)); err != nil {
			return err
		}
	}
	if err := s.Synchronize(); err != nil || w.Rank() != 0 {
		return err
	}
	fmt.Println("the last batch, summed over the ranks:", batch.At(n-1))
	return nil
}
