package spmd_test

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// A world of one, as in a program that is started without mpirun. It computes y += 2 x and then
// sums y over the ranks, in stream order.
func Example() {
	w, err := spmd.Open(spmd.Config{LogLevel: "error"}) // programs use spmd.Main
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	const source = `
extern "C" __global__ void axpy_f32(float *y, const float *x, float alpha, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) y[i] += alpha * x[i];
}`
	axpy := spmd.NewKernel("axpy_f32", source, func(a spmd.Args) error {
		y, x, alpha := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), a.F32(2)
		host.Parallel(len(y), 1<<12, func(lo, hi int) { host.Axpy(y[lo:hi], alpha, x[lo:hi]) })
		return nil
	})
	err = func() error {
		s, err := w.NewStream("main")
		if err != nil {
			return err
		}
		x, err := spmd.Alloc[float32](w, 1000)
		if err != nil {
			return err
		}
		y, err := spmd.Alloc[float32](w, 1000)
		if err != nil {
			return err
		}
		if err := spmd.Fill(s, x, 3); err != nil {
			return err
		}
		if err := spmd.Fill(s, y, 1); err != nil {
			return err
		}
		if err := axpy.Launch(s, spmd.Cover1D(y.Len(), 256), y.Arg(), x.Arg(), spmd.F32(2),
			spmd.I32(y.Len())); err != nil {
			return err
		}
		if err := spmd.AllReduce(w.Comm().On(s), y, y, spmd.Sum); err != nil {
			return err
		}
		if err := s.Synchronize(); err != nil { // from here the host may read y
			return err
		}
		fmt.Println(y.At(0), y.At(999))
		return nil
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output: 7 7
}

// The ranks work until none has anything left to do. Their findings are added up. If no rank has
// found anything in a round, nothing is sent. AllReduceIf asks and adds in one message.
func Example_sometimes() {
	fs := pflag.NewFlagSet("rounds", pflag.ExitOnError)
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		rounds, err := addRounds(w, []float64{3, 4, 5}[w.Rank()%3:])
		w.Log().Info().Floats64("rounds", rounds).Msg("done")
		return err
	})
}

// addRounds returns the sum over the ranks of the squares of each round in which there are some:
// that of 4 is not told.
func addRounds(w *spmd.World, work []float64) (rounds []float64, err error) {
	for {
		some, err := hostdata.Any(w.Comm(), len(work) > 0)
		if err != nil || !some {
			return rounds, err // on every rank: nobody has work left
		}
		var found []float64
		if len(work) > 0 {
			if work[0] != 4 {
				found = []float64{work[0] * work[0]}
			}
			work = work[1:]
		}
		sum := make([]float64, 1)
		told, err := hostdata.AllReduceIf(w.Comm(), found != nil, sum, found, spmd.Sum)
		if err != nil {
			return rounds, err
		}
		if told {
			rounds = append(rounds, sum[0])
		}
	}
}
