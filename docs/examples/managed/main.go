// Managed squares numbers in memory that host and device both address: its pages move there and
// back in the order of streams.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/managed"
)

func main() {
	spmd.Main(pflag.NewFlagSet("managed", pflag.ExitOnError), squares)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func managedSquare(i int, x []int64) { x[i] *= x[i] }

func squares(_ context.Context, w *spmd.World) error {
	const n = 1 << 20
	x, err := managed.Alloc[int64](w, n)
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
		managed.Advise(x, managed.AccessedByDevice), // its pages are mapped there, wherever they are
		managed.Prefetch(moves, low, managed.ToDevice), s.After(moves),
		launchManagedSquare(s, n/2, low),
		managed.Prefetch(moves, high, managed.ToDevice), s.After(moves),
		launchManagedSquare(s, n/2, high),
		spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum),
		managed.Prefetch(s, x, managed.ToHost),
		s.Synchronize(), // before the host looks
	)
	if err == nil && w.Rank() == 0 {
		fmt.Printf("the squares of %d and on, summed over the ranks: %d\n", n-1, x.Host()[n-1])
	}
	return err
}
