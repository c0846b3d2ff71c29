// Managed squares numbers in memory that host and device both address: its pages move there and
// back in the order of streams.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("managed", pflag.ExitOnError), managed)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func managedSquare(i int, x []int64) { x[i] *= x[i] }

func managed(_ context.Context, w *spmd.World) error {
	const n = 1 << 20
	x, err := spmd.AllocManaged[int64](w, n)
	if err != nil {
		return err
	}
	for i := range x.Host() {
		x.Host()[i] = int64(i + w.Rank())
	}
	moves, none := w.NewStream("moves")
	s, err := w.NewStream("squares")
	if err = errors.Join(none, err); err != nil {
		return err
	}
	low, high := x.Slice(0, n/2), x.Slice(n/2, n)
	err = errors.Join( // in this order
		x.Advise(spmd.AccessedByDevice), // its pages are mapped there, wherever they are
		low.Prefetch(moves, spmd.ToDevice), s.After(moves),
		launchManagedSquare(s, n/2, low),
		high.Prefetch(moves, spmd.ToDevice), s.After(moves),
		launchManagedSquare(s, n/2, high),
		spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum),
		x.Prefetch(s, spmd.ToHost),
		s.Synchronize(), // before the host looks
	)
	if err == nil && w.Rank() == 0 {
		fmt.Printf("the squares of %d and on, summed over the ranks: %d\n", n-1, x.Host()[n-1])
	}
	return err
}
