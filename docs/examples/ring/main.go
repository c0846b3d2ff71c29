// Ring passes the ranks' buffers to the right until each is back at its start. The buffers lie in
// the memory of the device: if GPUs reach each other nothing goes through the host.
package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/parallel"
)

func main() {
	spmd.Main(pflag.NewFlagSet("ring", pflag.ExitOnError), ring)
}

func ring(_ context.Context, w *spmd.World) error {
	around, err := parallel.NewMesh(w, parallel.Axis{Name: "ring", Size: parallel.Fit, Periodic: true})
	if err != nil {
		return err
	}
	left, right := around.Shift("ring", 1)
	x, err := spmd.Alloc[int32](w, 4)
	if err != nil {
		return err
	}
	got, err := spmd.Alloc[int32](w, 4)
	if err != nil {
		return err
	}
	if err := x.SetAll(int32(w.Rank())); err != nil {
		return err
	}
	for range w.Size() {
		if err := spmd.SendRecv(w.Comm(), got, left, x, right); err != nil {
			return err
		}
		x, got = got, x
		held, err := hostdata.AllGather(w.Comm(), x.At(0))
		if err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Println("the ranks hold the buffers of", held)
		}
	}
	return nil
}
