package checkpoint_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// Three matrices of 12 rows and 24 columns, one after the other, are cut by columns, by the rows of
// each, or not at all. They are saved in one way and loaded in any, on other ranks.
func TestCheckpointCuts(t *testing.T) {
	const matrices, rows, columns = 3, 12, 24
	const total = matrices * rows * columns
	cuts := map[string]func(rank, size int) (cut checkpoint.Cut, n int){
		"columns": func(rank, size int) (checkpoint.Cut, int) {
			c := columns / size
			return checkpoint.Cut{First: rank * c, Run: c, Stride: columns}, total / size
		},
		"rows": func(rank, size int) (checkpoint.Cut, int) {
			r := rows / size * columns
			return checkpoint.Cut{First: rank * r, Run: r, Stride: rows * columns}, total / size
		},
		"none": func(rank, size int) (checkpoint.Cut, int) { return checkpoint.Cut{}, total },
	}
	value := func(i, salt int) float32 { return float32(i*7%1009 + salt) }
	at := func(c checkpoint.Cut, j int) int {
		if c.Run == 0 {
			return j
		}
		return c.First + j/c.Run*c.Stride + j%c.Run
	}
	dir := sharedDir(t)
	t.Run("save", func(t *testing.T) {
		quickly(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
			for k, name := range []string{"columns", "rows", "none"} {
				// With 4 ranks, two have the same part each, and save halves of it.
				parts, twice := w.Size(), 1
				if w.Size() == 4 {
					parts, twice = 2, 2
				}
				cut, n := cuts[name](w.Rank()%parts, parts)
				s := spmd.ShardOf(n, w.Rank()/parts, twice)
				if name == "none" {
					s = spmd.ShardOf(n, w.Rank(), w.Size())
				}
				b := spmdtest.Alloc[float32](t, w, s.Len)
				for j := range s.Len {
					b.Set(j, value(at(cut, s.Off+j), k))
				}
				c := open(t, w, filepath.Join(dir, strconv.Itoa(w.Size()), name), 0)
				spmdtest.Must(t, c.Save(k, nil, checkpoint.Strided("x", b, s.Off, cut, total)))
				spmdtest.Must(t, c.Wait())
				spmdtest.Must(t, c.Close())
			}
		})
	})
	t.Run("load", func(t *testing.T) {
		quickly(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
			loaded := 0
			b := spmdtest.Alloc[float32](t, w, total)
			for _, size := range []int{1, 2, 3, 4} {
				for k, saved := range []string{"columns", "rows", "none"} {
					from := filepath.Join(dir, strconv.Itoa(size), saved)
					if _, err := os.Stat(from); err != nil {
						continue // SPMDTEST_RANKS
					}
					loaded++
					c := open(t, w, from, 0)
					for _, name := range []string{"columns", "rows", "none", "replicated"} {
						spmdtest.Must(t, b.SetAll(-1))
						cut, n, off := checkpoint.Cut{}, total, 0
						item := checkpoint.Replicated("x", b)
						if name != "replicated" {
							cut, n = cuts[name](w.Rank(), w.Size())
							off = 5 // from within a run on
							item = checkpoint.Strided("x", b.Slice(0, n-off), off, cut, total)
						}
						_, err := c.Load(nil, item)
						spmdtest.Must(t, err)
						for j := off; j < n; j++ {
							if got, want := b.At(j-off), value(at(cut, j), k); got != want {
								t.Fatalf("%s of %d ranks, loaded by %s: element %d is %v, want %v", saved,
									size, name, j, got, want)
							}
						}
						if n-off < total && b.At(n-off) != -1 {
							t.Errorf("what follows the part was written")
						}
					}
					spmdtest.Must(t, c.Close())
				}
			}
			if loaded == 0 {
				t.Fatal("nothing was saved")
			}
		})
	})
}

// Cuts are refused if they are of no array, or if two ranks have one element.
func TestCheckpointCutsRefused(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		c := open(t, w, dir, 0)
		b := spmdtest.Alloc[float32](t, w, 6)
		for _, tc := range []struct {
			want  string
			cut   checkpoint.Cut
			total int
		}{
			{"cut by", checkpoint.Cut{First: 0, Run: 2, Stride: 1}, 12},
			{"elements [0, 0+6), cut by", checkpoint.Cut{First: 1, Run: 3, Stride: 9}, 12},
			{"is in the parts of two", checkpoint.Cut{First: 0, Run: 3, Stride: 6}, 12},
			{"element 6 of 13 is in no rank's part", checkpoint.Cut{First: 7 * w.Rank(), Run: 1, Stride: 1}, 13},
		} {
			if err := c.Save(1, nil, checkpoint.Strided("x", b, 0, tc.cut, tc.total)); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v: %v, want %q", tc.cut, err, tc.want)
			}
		}
		spmdtest.Must(t, c.Close())
	})
}
