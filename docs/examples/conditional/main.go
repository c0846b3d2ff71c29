// Conditional communicates only in rounds in which a rank has something to say. All ranks agree on
// that, so that none waits for a collective that the others leave out.
package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

func main() {
	spmd.Main(pflag.NewFlagSet("conditional", pflag.ExitOnError), conditional)
}

func conditional(_ context.Context, w *spmd.World) error {
	found, err := spmd.Alloc[int32](w, 1000)
	if err != nil {
		return err
	}
	for round := range 6 {
		// in every other round one rank, which the others do not know
		mine := round%2 == 1 && round/2%w.Size() == w.Rank()
		any, err := hostdata.Any(w.Comm(), mine)
		if err != nil {
			return err
		}
		if !any {
			if w.Rank() == 0 {
				fmt.Printf("round %d: nothing to send\n", round)
			}
			continue
		}
		value := int32(0)
		if mine {
			value = int32(round)
		}
		if err := found.SetAll(value); err != nil {
			return err
		}
		if err := spmd.AllReduce(w.Comm(), found, found, spmd.Sum); err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Printf("round %d: sum %d\n", round, found.At(0))
		}
	}
	return nil
}
