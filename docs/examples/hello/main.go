// Hello starts one rank for each GPU, or for each part of a machine without one, and says where
// each of them is.
package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

func main() {
	spmd.Main(pflag.NewFlagSet("hello", pflag.ExitOnError), hello)
}

// place is where a rank is. The device is in the log: its name differs from machine to machine.
type place struct{ Rank, LocalRank, Node int }

func hello(_ context.Context, w *spmd.World) error {
	w.Log().Info().Str("device", w.Device()).Msg("mine") // of each rank with --log-ranks all
	places, err := hostdata.AllGather(w.Comm(), place{w.Rank(), w.LocalRank(), w.Node()})
	if err != nil || w.Rank() != 0 {
		return err
	}
	for _, p := range places {
		fmt.Printf("rank %d of %d: local rank %d on node %d\n", p.Rank, w.Size(), p.LocalRank, p.Node)
	}
	return nil
}
