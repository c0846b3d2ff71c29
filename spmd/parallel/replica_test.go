package parallel_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

func TestSyncStartAndCheckSame(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		x, y := spmdtest.Alloc[float32](t, w, 100_003), spmdtest.Alloc[uint8](t, w, 13)
		spmdtest.Must(t, x.SetAll(float32(w.Rank())))
		spmdtest.Must(t, y.SetAll(uint8(w.Rank())))
		spmdtest.Must(t, parallel.SyncStart(w.Comm(), x))
		spmdtest.Must(t, parallel.SyncStart(w.Comm(), y))
		if x.At(100_002) != 0 || y.At(12) != 0 {
			t.Fatal("rank 0's values did not arrive")
		}
		last := w.Size() - 1
		// One bit of one element, the two ends included, and two elements that changed places.
		for _, i := range []int{0, 1, 50_000, 100_002} {
			if w.Rank() == last {
				x.Set(i, math.Float32frombits(1))
			}
			err := parallel.CheckSame(w.Comm(), "x", x)
			if last == 0 {
				spmdtest.Must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), "x differs between ranks: ") ||
				!strings.Contains(err.Error(), fmt.Sprintf("rank %d has hash", last)) {
				t.Fatalf("rank %d: element %d differs: %v", w.Rank(), i, err)
			}
			x.Set(i, 0)
		}
		x.Set(7, 1)
		x.Set(8, 2)
		if w.Rank() == last && last > 0 {
			x.Set(7, 2)
			x.Set(8, 1)
		}
		if err := parallel.CheckSame(w.Comm(), "x", x); (err == nil) != (last == 0) {
			t.Fatalf("elements that changed places: %v", err)
		}
	})
}

func TestTogether(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		x := spmdtest.Alloc[int64](t, w, 1)
		for _, least := range []int{0, 1, 5} {
			items := make([]int, least+(w.Size()-1-w.Rank())) // the last rank has the fewest
			for i := range items {
				items[i] = i
			}
			steps := 0
			for i := range parallel.Together(w.Comm(), slices.Values(items)) {
				if i != steps {
					t.Fatalf("item %d in step %d", i, steps)
				}
				x.Set(0, 1)
				spmdtest.Must(t, spmd.AllReduce(w.Comm(), x, x, spmd.Sum)) // hangs unless all ranks loop equally often
				if x.At(0) != int64(w.Size()) {
					t.Fatalf("step %d: %d ranks", steps, x.At(0))
				}
				steps++
			}
			if steps != least {
				t.Fatalf("%d steps, want %d", steps, least)
			}
		}
		for i := range parallel.Together(w.Comm(), slices.Values([]int{0, 1, 2})) {
			if i == 1 {
				break
			}
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm())) // nothing of the loop is left in the way
	})
}

// The sums follow a closed form, for gradients in one arena, in backward order, and in pieces.
// Buckets are reduced before the rest is ready.
func TestReducer(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		compute := spmdtest.Stream(t, w, "compute")
		arena := spmdtest.Alloc[float32](t, w, 1000)
		spmdtest.Must(t, arena.SetAll(0))
		loose := spmdtest.Alloc[float32](t, w, 10)
		cuts := []int{1000, 900, 890, 400, 399, 0}
		var grads []spmd.Buffer[float32]
		for i := range cuts[1:] {
			grads = append(grads, arena.Slice(cuts[i+1], cuts[i]))
		}
		grads = append(grads, loose)
		for _, bytes := range []int{0, 4, 400, 1 << 20} {
			r, err := parallel.NewReducer(w.Comm(), grads, parallel.ReducerConfig{BucketBytes: bytes, Op: spmd.Sum})
			spmdtest.Must(t, err)
			for step := range 3 {
				for i, g := range grads {
					spmdtest.Must(t, spmd.Fill(compute, g, float32((i+1)*(w.Rank()+1)*(step+1))))
					spmdtest.Must(t, r.Ready(i, compute))
				}
				spmdtest.Must(t, r.Wait(compute))
				spmdtest.Must(t, compute.Synchronize())
				ranks := w.Size() * (w.Size() + 1) / 2
				for i, g := range grads {
					for _, j := range []int{0, g.Len() - 1} {
						if got, want := g.At(j), float32((i+1)*ranks*(step+1)); got != want {
							t.Fatalf("buckets of %d bytes, step %d: gradient %d is %v, want %v", bytes,
								step, i, got, want)
						}
					}
				}
			}
			if want := map[int]int{0: 1, 4: 6, 400: 4, 1 << 20: 1}[bytes]; r.Buckets() != want {
				t.Errorf("%d buckets of %d bytes, want %d", r.Buckets(), bytes, want)
			}
			testkit.Refused(t, r.Ready(1, compute), "gradient 0 of 6 is next")
			spmdtest.Must(t, r.Ready(0, compute))
			testkit.Refused(t, r.Wait(compute), "only 1 of 6")
			spmdtest.Must(t, r.Close())
		}

		// The elements between two gradients are not a gradient.
		between := arena.Slice(100, 110)
		apart, err := parallel.NewReducer(w.Comm(),
			[]spmd.Buffer[float32]{arena.Slice(0, 100), arena.Slice(110, 200), between},
			parallel.ReducerConfig{BucketBytes: 1})
		spmdtest.Must(t, err)
		spmdtest.Must(t, arena.SetAll(1))
		for i := range 3 {
			spmdtest.Must(t, apart.Ready(i, compute))
		}
		spmdtest.Must(t, apart.Wait(compute))
		spmdtest.Must(t, compute.Synchronize())
		for i := range 200 {
			if arena.At(i) != float32(w.Size()) {
				t.Fatalf("[%d] = %v, want %v", i, arena.At(i), w.Size())
			}
		}
		spmdtest.Must(t, apart.Close())

		// The first bucket is reduced while the stream that computes is still held up.
		r, err := parallel.NewReducer(w.Comm(), grads[:2], parallel.ReducerConfig{BucketBytes: 4, Op: spmd.Avg})
		spmdtest.Must(t, err)
		spmdtest.Must(t, spmd.Fill(compute, grads[0], float32(w.Rank())))
		spmdtest.Must(t, r.Ready(0, compute))
		done := spmdtest.Stream(t, w, "done")
		arrived := make(chan struct{})
		spmdtest.Must(t, done.After(r.Stream()))
		spmdtest.Must(t, compute.HostFunc(func() error { <-arrived; return nil })) // backward of the next gradient
		spmdtest.Must(t, done.Synchronize())
		close(arrived)
		spmdtest.Must(t, spmd.Fill(compute, grads[1], 1))
		spmdtest.Must(t, r.Ready(1, compute))
		spmdtest.Must(t, r.Wait(compute))
		spmdtest.Must(t, compute.Synchronize())
		if got, want := grads[0].At(0), float32(w.Size()-1)/2; got != want {
			t.Errorf("average %v, want %v", got, want)
		}
	})
}

func TestClipNorm(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		norm := spmdtest.Alloc[float32](t, w, 1)
		for _, n := range []int{0, 1, 1000, 300_001} {
			g := spmdtest.Alloc[float32](t, w, n)
			h := make([]float32, n)
			want := 0.0
			for i := range h {
				h[i] = float32(i%17-8) / 8
				want += float64(h[i]) * float64(h[i])
			}
			want = math.Sqrt(want)
			for _, limit := range []float64{0, want / 2, 2 * want} {
				spmdtest.Must(t, g.CopyFrom(h))
				spmdtest.Must(t, parallel.ClipNorm(s, g, limit, norm))
				spmdtest.Must(t, s.Synchronize())
				if got := float64(norm.At(0)); math.Abs(got-want) > 1e-6*want {
					t.Errorf("norm of %d elements is %v, want %v", n, got, want)
				}
				scale := 1.0
				if limit > 0 && limit < want {
					scale = 0.5
				}
				scaled := make([]float32, n)
				spmdtest.Must(t, g.CopyTo(scaled))
				for i := range h {
					if got, want := float64(scaled[i]), scale*float64(h[i]); math.Abs(got-want) > 1e-6 {
						t.Fatalf("limit %v of %v: [%d] = %v, want %v", limit, want, i, got, want)
					}
				}
			}
		}
	})
}
