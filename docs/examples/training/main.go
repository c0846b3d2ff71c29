// Training fits a line to points, data-parallel: each rank has some of the points,
// and all have the same weights.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

func main() {
	spmd.Main(pflag.NewFlagSet("training", pflag.ExitOnError), training)
}

//go:generate go run lockstep/spmd/spmdgen

// trainingGrad computes element i of the gradient over n points from off on, which lie on the line
// 3x + 2.
//
//spmd:kernel
func trainingGrad(i int, g, p []float32, off, n int) {
	g[i] = 0
	for k := off; k < off+n; k++ {
		x := float32(k)/24 - 1
		slope := [2]float32{x, 1}
		g[i] += (p[0]*x + p[1] - (3*x + 2)) / 48 * slope[i]
	}
}

//spmd:kernel
func trainingStep(i int, p, g []float32) { p[i] -= g[i] }

func training(_ context.Context, w *spmd.World) error {
	mem, err := spmd.Alloc[float32](w, 4)
	s, err2 := w.NewStream("training")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	p, g := mem.Slice(0, 2), mem.Slice(2, 4)
	mine := spmd.ShardOf(48, w.Rank(), w.Size())
	err = errors.Join(p.SetAll(float32(w.Rank())), parallel.SyncStart(w.Comm(), p)) // rank 0's weights
	for n := 0; err == nil && n < 60; n++ {
		err = errors.Join(launchTrainingGrad(s, 2, g, p, mine.Off, mine.Len),
			spmd.AllReduce(w.Comm().On(s), g, g, spmd.Sum), launchTrainingStep(s, 2, p, g))
	}
	if err := errors.Join(err, s.Synchronize(), parallel.CheckSame(w.Comm(), "the weights", p)); err != nil ||
		w.Rank() != 0 {
		return err
	}
	fmt.Printf("slope %.3f, intercept %.3f\n", p.At(0), p.At(1))
	return nil
}
