// Unified adds up one vector that the ranks of a process share, each a part of it: start it with
// --ranks 2, without mpirun.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("unified", pflag.ExitOnError), unified)
}

//go:generate go run lockstep/spmd/spmdgen

// unifiedSum is launched for each element, and its results are added up.
//
//spmd:kernel
func unifiedSum(i int, x []uint32) (sum uint64) { return uint64(x[i]) }

func unified(_ context.Context, w *spmd.World) error {
	const all = 1_000_000
	x, err := spmd.AllocManagedShared[uint32](w, all) // the same elements on all ranks of a process
	if err != nil {
		return err
	}
	sum, err := spmd.Alloc[uint64](w, 1)
	if err != nil {
		return err
	}
	s, err := w.NewStream("sum")
	if err != nil {
		return err
	}
	part := spmd.ShardOf(all, w.Rank(), w.Size())
	mine := x.Slice(part.Off, part.Off+part.Len)
	for i := range mine.Host() {
		mine.Host()[i] = uint32(part.Off + i)
	}
	err = errors.Join( // in this order
		mine.Prefetch(s, spmd.ToDevice),
		launchUnifiedSum(s, sum, part.Len, mine),
		spmd.AllReduce(w.Comm().On(s), sum, sum, spmd.Sum),
		s.Synchronize(),
	)
	if err == nil && w.Rank() == 0 {
		fmt.Printf("the sum of 0 to %d is %d\n", all-1, sum.At(0))
	}
	return errors.Join(err, x.Free())
}
