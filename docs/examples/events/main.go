// Events orders two streams: the all-reduces of one run while the other computes on, and each waits
// for the other only if it must.
package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("events", pflag.ExitOnError), events)
}

func events(_ context.Context, w *spmd.World) error {
	compute, err := w.NewStream("compute")
	if err != nil {
		return err
	}
	communicate, err := w.NewStream("communicate", spmd.High)
	if err != nil {
		return err
	}
	filled, err := w.NewEvent()
	if err != nil {
		return err
	}
	const parts, n = 4, 1 << 16
	x, err := spmd.Alloc[float32](w, parts*n)
	if err != nil {
		return err
	}
	for i := range parts {
		part := x.Slice(i*n, (i+1)*n)
		if err := spmd.Fill(compute, part, float32(i)); err != nil {
			return err
		}
		if err := filled.Record(compute); err != nil {
			return err
		}
		if err := communicate.Wait(filled); err != nil { // this part, and none of those that come
			return err
		}
		if err := spmd.AllReduce(w.Comm().On(communicate), part, part, spmd.Sum); err != nil {
			return err
		}
	}
	if err := compute.After(communicate); err != nil { // what follows may use every part
		return err
	}
	if err := compute.Synchronize(); err != nil || w.Rank() != 0 {
		return err
	}
	fmt.Println("sums of the parts:", x.At(0), x.At(n), x.At(2*n), x.At(3*n))
	return nil
}
