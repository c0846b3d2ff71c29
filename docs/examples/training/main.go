// Training fits a line to points, data-parallel: each rank has some of the points, and all have the same weights.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

func main() {
	spmd.Main(pflag.NewFlagSet("training", pflag.ExitOnError), training)
}

//go:embed training.cu
var trainingSource string

var trainingGrad = spmd.NewKernel("training_grad", trainingSource, func(args spmd.Args) error {
	g, p, off := spmd.ArgSlice[float32](args, 0), spmd.ArgSlice[float32](args, 1), args.I32(2)
	clear(g)
	for i := off; i < off+args.I32(3); i++ { // the points are those of the line 3x + 2
		x := float32(i)/24 - 1
		diff := (p[0]*x + p[1] - (3*x + 2)) / 48
		g[0], g[1] = g[0]+diff*x, g[1]+diff
	}
	return nil
})

var trainingStep = spmd.NewKernel("training_step", trainingSource, func(args spmd.Args) error {
	p, g := spmd.ArgSlice[float32](args, 0), spmd.ArgSlice[float32](args, 1)
	p[0], p[1] = p[0]-g[0], p[1]-g[1]
	return nil
})

func training(_ context.Context, w *spmd.World) error {
	mem, err := spmd.Alloc[float32](w, 4)
	s, err2 := w.NewStream("training")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	p, g, two := mem.Slice(0, 2), mem.Slice(2, 4), spmd.Cover1D(1, 2)
	mine := spmd.ShardOf(48, w.Rank(), w.Size())
	err = errors.Join(p.SetAll(float32(w.Rank())), ddp.SyncStart(w.Comm(), p)) // rank 0's weights
	for n := 0; err == nil && n < 60; n++ {
		err = errors.Join(trainingGrad.Launch(s, two, g.Arg(), p.Arg(), spmd.I32(mine.Off), spmd.I32(mine.Len)),
			spmd.AllReduce(w.Comm().On(s), g, g, spmd.Sum), trainingStep.Launch(s, two, p.Arg(), g.Arg()))
	}
	if err := errors.Join(err, s.Synchronize(), ddp.CheckSame(w.Comm(), "the weights", p)); err != nil || w.Rank() != 0 {
		return err
	}
	fmt.Printf("slope %.3f, intercept %.3f\n", p.At(0), p.At(1))
	return nil
}
