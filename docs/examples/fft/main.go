// Fft transforms a wave on a square: along the rows and, after a transpose, the columns.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/cmplx"
	"slices"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/fft"
	"lockstep/spmd/hostdata"
)

func main() {
	spmd.Main(pflag.NewFlagSet("fft", pflag.ExitOnError), waves)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func fftTurn(i, j int, to, x []complex128, rows, side int) { to[j*rows+i] = x[i*side+j] }

//spmd:kernel
func fftJoin(i, j int, to, x []complex128, rows, side int) {
	to[i*side+j] = x[(j/rows*rows+i)*rows+j%rows]
}

func waves(_ context.Context, w *spmd.World) error {
	const side = 48 // a multiple of the number of ranks
	rows, wave := side/w.Size(), make([]complex128, side*side/w.Size())
	for k := range wave {
		i, j := w.Rank()*rows+k/side, k%side
		wave[k] = complex(math.Cos(2*math.Pi*float64(3*i+5*j)/side), 0)
	}
	mem, err := spmd.Alloc[complex128](w, 2*rows*side)
	p, err2 := fft.New[complex128](w, []int{side}, rows)
	s, err3 := w.NewStream("fft")
	if err = errors.Join(err, err2, err3); err != nil {
		return err
	}
	x, y, c := mem.Slice(0, rows*side), mem.Slice(rows*side, mem.Len()), w.Comm().On(s)
	err = errors.Join(x.CopyFrom(wave), p.Forward(s, x, x), launchFftTurn(s, rows, side, y, x, rows, side),
		spmd.AllToAll(c, y, y), launchFftJoin(s, rows, side, x, y, rows, side), p.Forward(s, x, x),
		s.Synchronize(), x.CopyTo(wave))
	peaks, most := 0, make([]float64, side) // of each column
	for k, z := range wave {                // of row k%side
		j := w.Rank()*rows + k/side
		if most[j] = max(most[j], cmplx.Abs(z)); cmplx.Abs(z) > 1e-6 {
			peaks++
		}
	}
	peaks, err2 = hostdata.AllReduce(w.Comm(), peaks, spmd.Sum)
	err = errors.Join(err, err2, hostdata.AllReduceSlice(w.Comm(), most, most, spmd.Max), p.Close())
	for j := 0; err == nil && j < side; j++ {
		err = w.Emit(map[string]any{"column": j, "amplitude": most[j]})
	}
	if err == nil && w.Rank() == 0 {
		fmt.Printf("%d peaks of %.3f\n", peaks, slices.Max(most))
	}
	return err
}
