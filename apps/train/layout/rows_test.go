package layout_test

import (
	"errors"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func noError(t *testing.T, errs ...error) {
	t.Helper()
	spmdtest.Must(t, errors.Join(errs...))
}

// Every row is one rank's. A rank's rows are the first of its memory, and together they are all
// rows in order.
func TestRows(t *testing.T) {
	for n := 1; n < 70; n++ {
		for pieces := 1; pieces <= 4; pieces++ {
			for ranks := 1; ranks <= 5; ranks++ {
				total := 0
				for rank := range ranks {
					r := layout.NewRows(n, pieces, rank, ranks)
					total += r.Own()
					if r.Own() < 0 || r.Own() > r.Held() || r.All() != ranks*r.Held() || r.All() < n ||
						r.All() >= n+pieces*ranks {
						t.Fatalf("%d rows in %d pieces, rank %d of %d: %d of %d, %d in all", n, pieces,
							rank, ranks, r.Own(), r.Held(), r.All())
					}
					end := 0
					for i := range r.Pieces() {
						lo, hi := r.Piece(i)
						if lo != end || hi <= lo {
							t.Fatalf("%d rows in %d pieces for %d: piece %d is [%d,%d), behind %d", n,
								pieces, ranks, i, lo, hi, end)
						}
						end = hi
					}
					if end != n || r.Pieces() > pieces {
						t.Fatalf("%d rows in %d pieces for %d: %d pieces end at %d", n, pieces, ranks, r.Pieces(), end)
					}
				}
				if total != n {
					t.Fatalf("%d rows in %d pieces: %d ranks have %d", n, pieces, ranks, total)
				}
			}
		}
	}
}

// GatherRows gathers all rows, and ScatterRows leaves the sum's own rows, padding apart. A piece
// leaves the others.
func TestGatherScatterRows(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		const width = 3
		s, err := w.NewStream("rows")
		noError(t, err)
		for _, n := range []int{1, 2, 7, 24, 31} {
			for _, pieces := range []int{1, 2, 3} {
				r := layout.NewRows(n, pieces, w.Rank(), w.Size())
				all, err := spmd.Alloc[float32](w, r.All()*width)
				noError(t, err)
				own, err := spmd.Alloc[float32](w, r.Held()*width)
				noError(t, err)
				x := make([]float32, r.All()*width)
				for i := range x {
					x[i] = float32((w.Rank() + 1) * i)
				}
				noError(t, all.CopyFrom(x), own.SetAll(-1))
				for i := range r.Pieces() {
					noError(t, layout.ScatterRows(w.Comm().On(s), r, i, width, own, all))
				}
				for i := range r.Pieces() {
					noError(t, layout.GatherRows(w.Comm().On(s), r, i, width, all, own))
				}
				noError(t, s.Synchronize(), all.CopyTo(x))
				sum := w.Size() * (w.Size() + 1) / 2
				for i := range n * width {
					if x[i] != float32(sum*i) {
						t.Fatalf("%d rows in %d pieces: element %d is %v, want %d", n, pieces, i, x[i], sum*i)
					}
				}
				// The first rows of the last rank's memory are those that count.
				have := make([]float32, r.Held()*width)
				noError(t, own.CopyTo(have))
				at := 0
				for i := range r.Pieces() {
					lo, hi := r.Piece(i)
					part := r.Held() / pieces
					for row := lo + w.Rank()*part; row < min(hi, lo+(w.Rank()+1)*part); row++ {
						for j := range width {
							if have[at*width+j] != float32(sum*(row*width+j)) {
								t.Fatalf("%d rows in %d pieces: own row %d has %v, want row %d", n, pieces,
									at, have[at*width:(at+1)*width], row)
							}
						}
						at++
					}
				}
				if at != r.Own() {
					t.Errorf("%d rows in %d pieces: the first %d rows count, want %d", n, pieces, at, r.Own())
				}
				noError(t, all.Free(), own.Free())
			}
		}
		noError(t, s.Close())
	})
}
