// Sequence gathers the parts of a vector, computes on the whole of it, and reduces the results.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("sequence", pflag.ExitOnError), sequence)
}

//go:generate go run lockstep/spmd/spmdgen

// sequenceBelow counts how many of all are smaller than number i.
//
//spmd:kernel
func sequenceBelow(i int, count []int64, all, mine []int32) {
	count[i] = 0
	for _, other := range all {
		if other < mine[i] {
			count[i]++
		}
	}
}

func sequence(_ context.Context, w *spmd.World) error {
	s, err := w.NewStream("sequence")
	if err != nil {
		return err
	}
	all, err := spmd.Alloc[int32](w, 3*w.Size())
	if err != nil {
		return err
	}
	count, err := spmd.Alloc[int64](w, 3)
	if err != nil {
		return err
	}
	r, mine, on := int32(w.Rank()), all.Slice(3*w.Rank(), 3*w.Rank()+3), w.Comm().On(s)
	err = errors.Join( // in this order
		mine.CopyFrom([]int32{7 * r % 5, 10 + r, 20 - r}),
		spmd.AllGather(on, all, mine),
		launchSequenceBelow(s, 3, count, all, mine),
		spmd.AllReduce(on, count, count, spmd.Sum),
		s.Synchronize(),
	)
	if err == nil && w.Rank() == 0 {
		fmt.Println("smaller numbers, summed over the ranks:", count.At(0), count.At(1), count.At(2))
	}
	return err
}
