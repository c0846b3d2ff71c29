// Hybrid arranges the ranks in a grid: along one axis each holds a part of the model, along
// the other a part of the data.
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
	spmd.Main(pflag.NewFlagSet("hybrid", pflag.ExitOnError), hybrid)
}

func hybrid(_ context.Context, w *spmd.World) error {
	parts := 1 // of the model
	if w.Size()%2 == 0 {
		parts = 2
	}
	grid, err := parallel.NewMesh(w, parallel.Axis{Name: "data", Size: parallel.Fit},
		parallel.Axis{Name: "model", Size: parts})
	if err != nil {
		return err
	}
	data, model := grid.Comm("data"), grid.Comm("model")
	weights, err := spmd.Alloc[float32](w, 8)
	if err != nil {
		return err
	}
	n := weights.Len() / parts
	mine := weights.Slice(n*model.Rank(), n*(model.Rank()+1))
	// The gradient of this part is averaged over the ranks with the same part and other data.
	if err := mine.SetAll(float32(10*model.Rank() + data.Rank())); err != nil {
		return err
	}
	if err := spmd.AllReduce(data, mine, mine, spmd.Avg); err != nil {
		return err
	}
	if err := spmd.AllGather(model, weights, mine); err != nil { // the whole model, from the ranks with the same data
		return err
	}
	places, err := hostdata.AllGather(w.Comm(), [2]int{data.Rank(), model.Rank()})
	if err == nil && w.Rank() == 0 {
		fmt.Printf("%d x %d ranks at %v: %v ... %v\n", data.Size(), model.Size(), places, weights.At(0), weights.At(7))
	}
	return err
}
