// Matvec multiplies a matrix by a vector. Each rank holds some columns,
// and the products are added up.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("matvec", pflag.ExitOnError), matvec)
}

//go:generate go run lockstep/spmd/spmdgen

// matvecPart multiplies row i of a, which lies column by column, by x.
//
//spmd:kernel
func matvecPart(i int, y, a, x []float32) {
	y[i] = 0
	for k, v := range x {
		y[i] += a[k*len(y)+i] * v
	}
}

func matvec(_ context.Context, w *spmd.World) error {
	const rows, cols = 4, 1000
	mine := spmd.ShardOf(cols, w.Rank(), w.Size())
	room, err := spmd.Alloc[float32](w, rows+rows*mine.Len+mine.Len)
	if err != nil {
		return err
	}
	y, a, x := room.Slice(0, rows), room.Slice(rows, rows+rows*mine.Len), room.Slice(rows+rows*mine.Len, room.Len())
	s, err := w.NewStream("matvec")
	if err != nil {
		return err
	}
	host := make([]float32, a.Len())
	for k := range host { // column by column: a[i][j] = i + j
		host[k] = float32(k%rows + mine.Off + k/rows)
	}
	err = errors.Join( // in this order
		a.CopyFrom(host),
		x.SetAll(1),
		launchMatvecPart(s, rows, y, a, x),
		spmd.AllReduce(w.Comm().On(s), y, y, spmd.Sum),
		s.Synchronize(),
	)
	if err == nil && w.Rank() == 0 {
		fmt.Println("y =", y.At(0), y.At(1), y.At(2), y.At(3))
	}
	return err
}
