package gokernel_test

import (
	"math"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Kernels of rows agree with closed forms on the host and from CUDA, for rows that begin anywhere
// and have any length.
func TestRows(t *testing.T) {
	spmdtest.CompareKernels(t)
	for _, columns := range []int{1, 7, 64, 203, 1000, 1024} {
		const rows = 11
		x := random(rows*columns, uint64(columns))
		run(t, "host", func(w *spmd.World, s *spmd.Stream) {
			in, out := of(t, w, singles(x)), of(t, w, make([]spmd.BF16, len(x)))
			mean, double := of(t, w, make([]float64, rows)), of(t, w, x)
			centred, again := of(t, w, make([]float64, len(x))), of(t, w, x)
			turned, kinds := of(t, w, make([]float64, len(x))), make([]uint8, len(x))
			for i := range kinds {
				kinds[i] = uint8(i * i % 19)
			}
			counts := of(t, w, make([]int32, 18*rows))
			down, scratch := of(t, w, x), of(t, w, x)
			spmdtest.Must(t, launchSoftmax(s, rows, out, in, columns))
			spmdtest.Must(t, launchStandardize(s, rows, centred, double, double, mean, columns))
			// in place
			spmdtest.Must(t, launchStandardize(s, rows, again, again, spmd.Buffer[float64]{}, mean, columns))
			spmdtest.Must(t, launchTransposeTiles(s, (rows+31)/32*((columns+31)/32), turned, double, rows, columns))
			spmdtest.Must(t, launchSpread(s, rows, counts, of(t, w, kinds), columns))
			spmdtest.Must(t, launchSettleDown(s, rows, down, scratch, columns, 3))
			spmdtest.Must(t, s.Synchronize())
			gotOut, gotCentred, gotAgain, gotTurned, gotCounts := back(t, out), back(t, centred),
				back(t, again), back(t, turned), back(t, counts)
			for i := range rows {
				sum, mu, squares, high := 0.0, 0.0, 0.0, math.Inf(-1)
				for _, v := range x[i*columns : (i+1)*columns] {
					mu += v / float64(columns)
					high = max(high, float64(float32(v)))
				}
				var bins [19]int32
				for j, v := range x[i*columns : (i+1)*columns] {
					sum += math.Exp(float64(float32(v)) - high)
					squares += (v - mu) * (v - mu)
					bins[min(16, kinds[i*columns+j])]++
				}
				for k, n := range bins[:17] {
					bins[17] = max(bins[17], n)
					if k == 16 {
						bins[17] = max(gotCounts[18*i+17], 0)
					}
				}
				for j, v := range x[i*columns : (i+1)*columns] {
					at := i*columns + j
					if want := math.Exp(float64(float32(v))-high) / sum; math.Abs(float64(gotOut[at].Float32())-want) >
						want/200+1e-37 {
						t.Fatalf("softmax of %d: element %d is %v, want %v", columns, at, gotOut[at].Float32(), want)
					}
					want := (v - mu) / math.Sqrt(squares/float64(columns))
					if columns > 1 && (math.Abs(gotAgain[at]-want) > 1e-11 ||
						math.Abs(gotCentred[at]-want-v) > 1e-11*max(1, math.Abs(v))) {
						t.Fatalf("standardize of %d: element %d is %v and %v, want %v", columns, at,
							gotAgain[at], gotCentred[at], want)
					}
					if gotTurned[j*rows+i] != v {
						t.Fatalf("transposeTiles of %d columns: element (%d, %d) is %v, want %v", columns,
							j, i, gotTurned[j*rows+i], v)
					}
				}
				for k := range 17 {
					if gotCounts[18*i+k] != bins[k] {
						t.Fatalf("spread of %d: row %d has %d of kind %d, want %d", columns, i,
							gotCounts[18*i+k], k, bins[k])
					}
				}
			}
		})
	}
}

// A function that the comment names reduces in an order that depends on the length alone, and finds
// nothing among no values.
func TestReducedBy(t *testing.T) {
	both(t, func(w *spmd.World, s *spmd.Stream) (all []string) {
		for _, n := range lengths {
			x := random(n, uint64(n))
			far, farther, mix := of(t, w, make([]float64, 1)), of(t, w, make([]float32, 1)), of(t, w, make([]uint32, 1))
			spmdtest.Must(t, launchFurthest(s, far, n, of(t, w, x)))
			spmdtest.Must(t, launchFurthest(s, farther, n, of(t, w, singles(x))))
			spmdtest.Must(t, launchMixture(s, mix, n, 77))
			spmdtest.Must(t, s.Synchronize())
			want := 0.0
			for _, v := range x {
				if math.Abs(v) > math.Abs(want) {
					want = v
				}
			}
			if got, got32 := back(t, far)[0], back(t, farther)[0]; got != want || got32 != float32(want) {
				t.Fatalf("the furthest of %d on %s is %v and %v, want %v", n, w.Device(), got, got32, want)
			}
			all = append(all, asBytes(back(t, mix)))
		}
		three := of(t, w, make([]uint32, 1))
		spmdtest.Must(t, launchMixture(s, three, 3, 5))
		spmdtest.Must(t, s.Synchronize())
		if got, want := back(t, three)[0], mixed(mixed(mixture(0, 5), mixture(2, 5)), mixture(1, 5)); got != want {
			t.Fatalf("three values on %s make %d, want %d", w.Device(), got, want)
		}
		return all
	})
}
