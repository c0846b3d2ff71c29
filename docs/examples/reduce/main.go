// Reduce adds up a vector of which each rank holds a part.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("reduce", pflag.ExitOnError), reduce)
}

//go:embed reduce.cu
var reduceSource string

var reduceSum = spmd.NewKernel("reduce_sum", reduceSource, func(args spmd.Args) error {
	sum := spmd.ArgSlice[uint64](args, 0)
	for _, v := range spmd.ArgSlice[uint32](args, 1) {
		sum[0] += uint64(v)
	}
	return nil
})

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
		spmd.Fill(s, sum, 0),
		reduceSum.Launch(s, spmd.Cover1D(mine.Len/64, 256), sum.Arg(), x.Arg(), spmd.I64(mine.Len)),
		spmd.AllReduce(w.Comm().On(s), sum, sum, spmd.Sum),
		s.Synchronize(),
	)
	if err == nil && w.Rank() == 0 {
		fmt.Printf("the sum of 0 to %d is %d\n", all-1, sum.At(0))
	}
	return err
}
