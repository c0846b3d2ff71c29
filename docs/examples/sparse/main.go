// Sparse solves a problem of heat on a square by conjugate gradients, some rows on each rank.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/vector"
)

func main() {
	spmd.Main(pflag.NewFlagSet("sparse", pflag.ExitOnError), heat)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func sparseUpdate(i int, x, r, p, q []float64, rr, pq *float64) (next float64) {
	x[i], r[i] = x[i] + *rr / *pq * p[i], r[i] - *rr / *pq * q[i]
	return r[i] * r[i]
}

//spmd:kernel
func sparseTurn(i int, p, r []float64, a, b *float64) { p[i] = r[i] + p[i]*(*a / *b) }

func heat(_ context.Context, w *spmd.World) error {
	const side = 60
	mine, a := spmd.ShardOf(side*side, w.Rank(), w.Size()), blas.CSR[float64]{Start: []int{0}}
	n := mine.Len
	for row := mine.Off; row < mine.Off+n; row++ { // 4.1 for a point, and -1 for each of its neighbours
		for k, c := range []int{row - side, row - 1, row, row + 1, row + side} {
			if c >= 0 && c < side*side && (c/side == row/side || c%side == row%side) {
				a.Column, a.Value = append(a.Column, c), append(a.Value, []float64{-1, -1, 4.1, -1, -1}[k])
			}
		}
		a.Start = append(a.Start, len(a.Column))
	}
	m, err := blas.NewSparse(w, w.Comm(), a, n)
	mem, err2 := spmd.Alloc[float64](w, 4*n+3)
	s, err3 := w.NewStream("sparse")
	if err = errors.Join(err, err2, err3); err != nil {
		return err
	}
	x, r, q, p, c := mem.Slice(0, n), mem.Slice(n, 2*n), mem.Slice(2*n, 3*n), mem.Slice(3*n, 4*n), w.Comm().On(s)
	rr, pq, next := mem.Slice(4*n, 4*n+1), mem.Slice(4*n+1, 4*n+2), mem.Slice(4*n+2, 4*n+3)
	err = errors.Join(mem.SetAll(0), r.SetAll(1), p.SetAll(1), rr.SetAll(side*side))
	for step := 0; err == nil && step < 120; step++ { // nothing waits
		err = errors.Join(m.Multiply(s, q, p), vector.DotOver(c, s, pq, p, q),
			launchSparseUpdate(s, next, n, x, r, p, q, rr, pq), spmd.AllReduce(c, next, next, spmd.Sum),
			launchSparseTurn(s, n, p, r, next, rr), spmd.Copy(s, rr, next))
	}
	if err = errors.Join(err, s.Synchronize()); err == nil && w.Rank() == 0 {
		fmt.Printf("x[0] = %.6f, x[800] = %.6f\n", x.At(0), x.At(800))
	}
	return err
}
