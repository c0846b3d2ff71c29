// Kmeans finds the centres of four clouds of points. Each rank holds a part of the points.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/random"
)

func main() {
	spmd.Main(pflag.NewFlagSet("kmeans", pflag.ExitOnError), kmeans)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func kmeansNearest(i int, points, centres []float32, sums []int64, first int) {
	x, y := points[2*i]+float32(8*((first+i)%2)), points[2*i+1]+float32(8*((first+i)/2%2)) // the clouds take turns
	nearest, least := 0, float32(1e30)
	for k := range len(centres) / 2 {
		dx, dy := x-centres[2*k], y-centres[2*k+1]
		if d := float32(dx*dx) + float32(dy*dy); d < least {
			nearest, least = k, d
		}
	}
	spmd.AtomicAdd(&sums[3*nearest], int64(x*(1<<20))) // integers: the same sums in any order
	spmd.AtomicAdd(&sums[3*nearest+1], int64(y*(1<<20)))
	spmd.AtomicAdd(&sums[3*nearest+2], 1<<20)
	spmd.AtomicAdd(&sums[12], int64(least*(1<<20)))
}

//spmd:kernel
func kmeansMove(i int, centres []float32, sums []int64) {
	centres[i] = float32(float64(sums[i/2*3+i%2]) / float64(sums[i/2*3+2]))
}

func kmeans(_ context.Context, w *spmd.World) error {
	mine := spmd.ShardOf(4001, w.Rank(), w.Size())
	points, err := spmd.Alloc[float32](w, 2*mine.Len)
	centres, err2 := spmd.Alloc[float32](w, 8)
	sums, err3 := spmd.Alloc[int64](w, 13) // x, y and number for each centre, and the squares
	s, err4 := w.NewStream("kmeans")
	if err = errors.Join(err, err2, err3, err4); err != nil {
		return err
	}
	err = errors.Join(random.Normal(s, points, 1, 2*mine.Off), centres.CopyFrom([]float32{-1, 0, 0, -1, -1, 1, 1, 1}))
	for round := 0; err == nil && round < 20; round++ {
		err = errors.Join(err, spmd.Fill(s, sums, 0), launchKmeansNearest(s, mine.Len, points, centres, sums, mine.Off),
			spmd.AllReduce(w.Comm().On(s), sums, sums, spmd.Sum), launchKmeansMove(s, 8, centres, sums))
		err = errors.Join(err, w.Emit(map[string]any{"round": round, "squares": float64(sums.At(12)) / (1 << 20)}))
	}
	for k := 0; err == nil && k < 4 && w.Rank() == 0; k++ { // At waits for the stream
		fmt.Printf("centre %d: %.4f, %.4f\n", k, centres.At(2*k), centres.At(2*k+1))
	}
	return errors.Join(err, s.Synchronize())
}
