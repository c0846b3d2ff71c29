// Reduce adds up a vector that is divided over the ranks.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("reduce", pflag.ExitOnError), reduce)
}

//go:generate go run lockstep/spmd/spmdgen

// reduceSum is launched for each element, and its results are added up.
//
//spmd:kernel
func reduceSum(i int, x []uint32) (sum uint64) { return uint64(x[i]) }

func reduce(_ context.Context, w *spmd.World) error {
	const all = 1_000_000
	mine := spmd.ShardOf(all, w.Rank(), w.Size())
	x, err := spmd.Alloc[uint32](w, mine.Len)
	if err != nil {
		return err
	}
	sum, err := spmd.Alloc[uint64](w, 1)
	if err != nil {
		return err
	}
	s, err := w.NewStream("reduce")
	if err != nil {
		return err
	}
	host := make([]uint32, mine.Len)
	for i := range host {
		host[i] = uint32(mine.Off + i)
	}
	err = errors.Join( // in this order
		x.CopyFrom(host),
		launchReduceSum(s, sum, mine.Len, x),
		spmd.AllReduce(w.Comm().On(s), sum, sum, spmd.Sum),
		s.Synchronize(),
	)
	if err == nil && w.Rank() == 0 {
		fmt.Printf("the sum of 0 to %d is %d\n", all-1, sum.At(0))
	}
	return err
}
