// Conjugate solves 2.1 x[i] - x[i-1] - x[i+1] = 1 by conjugate gradients, a part on each rank.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

func main() {
	spmd.Main(pflag.NewFlagSet("conjugate", pflag.ExitOnError), conjugate)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func conjugateApply(i int, q, p []float64) (pq float64) { // p has an element more at either end
	q[i] = 2.1*p[i+1] - p[i] - p[i+2]
	return p[i+1] * q[i]
}

//spmd:kernel
func conjugateUpdate(i int, x, r, p, q []float64, rr, pq *float64) (next float64) {
	x[i] += *rr / *pq * p[i+1]
	r[i] -= *rr / *pq * q[i]
	return r[i] * r[i]
}

//spmd:kernel
func conjugateTurn(i int, p, r []float64, a, b *float64) { p[i+1] = r[i] + p[i+1]*(*a / *b) }

func conjugate(_ context.Context, w *spmd.World) error {
	n := spmd.ShardOf(12_000, w.Rank(), w.Size()).Len
	mem, err := spmd.Alloc[float64](w, 4*n+84)
	s, err2 := w.NewStream("conjugate")
	line, err3 := parallel.NewMesh(w, parallel.Axis{Name: "line", Size: parallel.Fit})
	if err = errors.Join(err, err2, err3); err != nil {
		return err
	}
	x, r, q, p := mem.Slice(0, n), mem.Slice(n, 2*n), mem.Slice(2*n, 3*n), mem.Slice(3*n, 4*n+2)
	pq, rrs, c := mem.Slice(4*n+2, 4*n+3), mem.Slice(4*n+3, mem.Len()), w.Comm().On(s)
	left, right := line.Shift("line", 1) // nobody at the ends
	halo := func() error {
		return errors.Join(spmd.SendRecv(c, p.Slice(0, 1), left, p.Slice(n, n+1), right),
			spmd.SendRecv(c, p.Slice(n+1, n+2), right, p.Slice(1, 2), left))
	}
	err = errors.Join(mem.SetAll(0), r.SetAll(1), p.Slice(1, n+1).SetAll(1), rrs.SetAll(12_000))
	for step := 0; err == nil && step < 80; step++ { // nothing waits
		rr, next := rrs.Slice(step, step+1), rrs.Slice(step+1, step+2)
		err = errors.Join(c.Group(halo), launchConjugateApply(s, pq, n, q, p), spmd.AllReduce(c, pq, pq, spmd.Sum),
			launchConjugateUpdate(s, next, n, x, r, p, q, rr, pq), spmd.AllReduce(c, next, next, spmd.Sum),
			launchConjugateTurn(s, n, p, r, next, rr))
	}
	for step := 0; err == nil && step <= 80; step++ { // At waits for the stream
		err = w.Emit(map[string]any{"step": step, "residual": math.Sqrt(rrs.At(step) / 12_000)})
	}
	if err = errors.Join(err, s.Synchronize()); err == nil && w.Rank() == 0 {
		fmt.Printf("x[0] = %.6f, x[2000] = %.6f\n", x.At(0), x.At(2000))
	}
	return err
}
