package fft

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// shapes have one to three dimensions: primes, powers of two, ones.
var shapes = []struct {
	dims  []int
	batch int
}{{[]int{1}, 1}, {[]int{7}, 1}, {[]int{16}, 3}, {[]int{4, 6}, 2}, {[]int{5, 1}, 1}, {[]int{3, 4, 5}, 2},
	{[]int{2, 3, 8}, 1}, {[]int{2, 53}, 1}, {[]int{106}, 1}}

// transform follows the definition: for each element a sum over all elements of an array.
func transform(x []complex128, dims []int) []complex128 {
	full := [3]int{1, 1, 1}
	copy(full[3-len(dims):], dims)
	a, b, c := full[0], full[1], full[2]
	out := make([]complex128, len(x))
	for k := range out {
		for j, v := range x {
			turns := float64(k/(b*c)*(j/(b*c))%a)/float64(a) + float64(k/c%b*(j/c%b)%b)/float64(b) +
				float64(k%c*(j%c)%c)/float64(c)
			out[k] += v * cmplx.Rect(1, -2*math.Pi*turns)
		}
	}
	return out
}

// all transforms each of the arrays.
func all(x []complex128, dims []int, batch int) (out []complex128) {
	n := len(x) / batch
	for i := range batch {
		out = append(out, transform(x[i*n:(i+1)*n], dims)...)
	}
	return out
}

func size(dims []int, batch int) int {
	for _, n := range dims {
		batch *= n
	}
	return batch
}

func near[C Complex](t *testing.T, what string, got []C, want []complex128, unit float64) {
	t.Helper()
	most := 0.0
	for _, z := range want {
		most = max(most, cmplx.Abs(z))
	}
	for i := range want {
		if d := cmplx.Abs(complex128(got[i]) - want[i]); !(d <= 20*unit*most) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// enqueued runs a step at once, and in a graph that is launched twice.
func enqueued(t *testing.T, s *spmd.Stream, step func() error, check func()) {
	t.Helper()
	spmdtest.Must(t, step())
	spmdtest.Must(t, s.Synchronize())
	check()
	g, err := s.Capture(step)
	spmdtest.Must(t, err)
	for range 2 {
		spmdtest.Must(t, g.Launch(s))
	}
	spmdtest.Must(t, s.Synchronize())
	check()
}

func complexes[C Complex](t *testing.T, w *spmd.World, unit float64) {
	s, err := w.NewStream("fft")
	spmdtest.Must(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	for _, sh := range shapes {
		n := size(sh.dims, sh.batch)
		x, h := make([]complex128, n), make([]C, n)
		for i := range h {
			h[i] = C(complex(r.NormFloat64(), r.NormFloat64()))
			x[i] = complex128(h[i])
		}
		p, err := New[C](w, sh.dims, sh.batch)
		spmdtest.Must(t, err)
		src, dst, got := spmdtest.Alloc[C](t, w, n), spmdtest.Alloc[C](t, w, n), make([]C, n)
		spmdtest.Must(t, src.CopyFrom(h))
		enqueued(t, s, func() error { return p.Forward(s, dst, src) }, func() {
			spmdtest.Must(t, dst.CopyTo(got))
			near(t, fmt.Sprint("forward ", sh), got, all(x, sh.dims, sh.batch), unit)
		})
		spmdtest.Must(t, p.Inverse(s, dst, dst)) // in place
		spmdtest.Must(t, s.Synchronize())
		spmdtest.Must(t, dst.CopyTo(got))
		near(t, "there and back", got, x, unit)
		spmdtest.Must(t, p.Close())
	}
}

func realOnes[F float32 | float64, C Complex](t *testing.T, w *spmd.World, unit float64) {
	s, err := w.NewStream("fft")
	spmdtest.Must(t, err)
	r := rand.New(rand.NewPCG(3, 4))
	for _, sh := range shapes {
		n := size(sh.dims, sh.batch)
		x, h := make([]complex128, n), make([]F, n)
		for i := range h {
			h[i] = F(r.NormFloat64())
			x[i] = complex(float64(h[i]), 0)
		}
		p, err := NewReal[F, C](w, sh.dims, sh.batch)
		spmdtest.Must(t, err)
		src, dst, got := spmdtest.Alloc[F](t, w, n), spmdtest.Alloc[C](t, w, p.Half()), make([]C, p.Half())
		spmdtest.Must(t, src.CopyFrom(h))
		last := sh.dims[len(sh.dims)-1]
		var want []complex128
		for i, z := range all(x, sh.dims, sh.batch) {
			if i%last <= last/2 {
				want = append(want, z)
			}
		}
		enqueued(t, s, func() error { return p.Forward(s, dst, src) }, func() {
			spmdtest.Must(t, dst.CopyTo(got))
			near(t, fmt.Sprint("forward of real numbers ", sh), got, want, unit)
		})
		spmdtest.Must(t, src.SetAll(0))
		spmdtest.Must(t, p.Inverse(s, src, dst))
		spmdtest.Must(t, s.Synchronize())
		spmdtest.Must(t, src.CopyTo(h))
		for i := range h {
			if d := math.Abs(float64(h[i]) - real(x[i])); !(d <= 100*unit) {
				t.Fatalf("%v there and back: element %d is %v, want %v", sh, i, h[i], real(x[i]))
			}
		}
		spmdtest.Must(t, p.Close())
	}
}

// Transforms are the sums that define them, in all shapes and types, and in graphs. The inverse
// undoes them.
func TestTransforms(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		complexes[complex64](t, w, 1e-7)
		complexes[complex128](t, w, 1e-15)
		realOnes[float32, complex64](t, w, 1e-7)
		realOnes[float64, complex128](t, w, 1e-15)
	})
}

// Long lines are exact to 1e-14, primes too. Those of impulses are sums of few turns, and there and
// back every line is itself.
func TestAccuracy(t *testing.T) {
	spmdtest.HostOnly(t, "cuFFT has an accuracy of its own")
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "fft")
		r := rand.New(rand.NewPCG(5, 6))
		for _, n := range []int{1009, 2018, 3 * 47 * 47, 10_007, 65_536, 65_537, 99_999, 131_074} {
			p, err := New[complex128](w, []int{n}, 1)
			spmdtest.Must(t, err)
			q, err := NewReal[float64, complex128](w, []int{n}, 1)
			spmdtest.Must(t, err)
			x, z := spmdtest.Alloc[float64](t, w, n), spmdtest.Alloc[complex128](t, w, n)
			half, values, waves := spmdtest.Alloc[complex128](t, w, q.Half()), make([]float64, n), make([]complex128, n)
			want := make([]complex128, n)
			for range 5 {
				at, height := r.IntN(n), r.NormFloat64()
				values[at] += height
				for k := range want {
					want[k] += cmplx.Rect(height, -2*math.Pi*float64(k*at%n)/float64(n))
				}
			}
			for i, v := range values {
				waves[i] = complex(v, 0)
			}
			spmdtest.Must(t, x.CopyFrom(values))
			spmdtest.Must(t, z.CopyFrom(waves))
			spmdtest.Must(t, p.Forward(s, z, z))
			spmdtest.Must(t, q.Forward(s, half, x))
			spmdtest.Must(t, s.Synchronize())
			spmdtest.Must(t, z.CopyTo(waves))
			within(t, fmt.Sprint(n, " complex"), waves, want)
			spmdtest.Must(t, half.CopyTo(waves[:q.Half()]))
			within(t, fmt.Sprint(n, " real"), waves[:q.Half()], want[:q.Half()])
			for i := range values {
				values[i], waves[i] = r.NormFloat64(), complex(r.NormFloat64(), r.NormFloat64())
			}
			before, same := slices.Clone(values), slices.Clone(waves)
			spmdtest.Must(t, x.CopyFrom(values))
			spmdtest.Must(t, z.CopyFrom(waves))
			spmdtest.Must(t, errors.Join(p.Forward(s, z, z), p.Inverse(s, z, z)))
			spmdtest.Must(t, errors.Join(q.Forward(s, half, x), q.Inverse(s, x, half)))
			spmdtest.Must(t, s.Synchronize())
			spmdtest.Must(t, errors.Join(x.CopyTo(values), z.CopyTo(waves)))
			within(t, fmt.Sprint(n, " complex, there and back"), waves, same)
			for i, v := range values {
				waves[i], same[i] = complex(v, 0), complex(before[i], 0)
			}
			within(t, fmt.Sprint(n, " real, there and back"), waves, same)
			spmdtest.Must(t, errors.Join(p.Close(), q.Close()))
		}
	})
}

// within compares by the sums of squares.
func within(t *testing.T, what string, got, want []complex128) {
	t.Helper()
	off, all := 0.0, 0.0
	for i, z := range want {
		off, all = off+real((got[i]-z)*cmplx.Conj(got[i]-z)), all+real(z*cmplx.Conj(z))
	}
	if e := math.Sqrt(off / all); !(e < 1e-14) {
		t.Errorf("%s: the error is %.2g", what, e)
	}
}

func TestRefused(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("fft")
		spmdtest.Must(t, err)
		refused := func(err error, want string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		_, err = New[complex64](w, []int{1, 2, 3, 4}, 1)
		refused(err, "4 dimensions")
		for _, dims := range [][]int{{1 << 22, 1 << 22, 1 << 22}, {-1, -4}, {1 << 62}} {
			_, err = NewReal[float64, complex128](w, dims, 1)
			refused(err, fmt.Sprintf("fft.NewReal: 1 arrays of %v elements", dims))
		}
		_, err = New[complex64](w, []int{4, 0}, 1)
		refused(err, "1 arrays of [4 0] elements")
		_, err = NewReal[float32, complex128](w, []int{4}, 1)
		refused(err, "a transform of float32 has no elements of complex128")
		p, err := New[complex64](w, []int{4}, 2)
		spmdtest.Must(t, err)
		x := spmdtest.Alloc[complex64](t, w, 8)
		refused(p.Forward(s, x, x.Slice(0, 4)), "dst has 8 elements and src 4, the plan 8 and 8")
		spmdtest.Must(t, p.Close())
		refused(p.Forward(s, x, x), "closed")
	})
}

// BenchmarkForward times transforms of one dimension, as bench/peers/cupy_fft.py does; on the host
// they are small. On a GPU:
//
//	SPMDTEST_DEVICE=cuda go test -run '^$' -bench . ./spmd/fft
func BenchmarkForward(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		for _, c := range []struct {
			name  string
			dims  []int
			batch int
		}{{"10000", []int{10000}, 1}, {"1000x1000", []int{1000}, 1000}, {"1000000", []int{1e6}, 1},
			{"10000x10000", []int{10000, 10000}, 1}, {"100000000", []int{1e8}, 1}} {
			n := size(c.dims, c.batch)
			if w.OnHost() && n > 1e4 {
				break
			}
			b.Run(c.name, func(b *testing.B) {
				p, err := New[complex64](w, c.dims, c.batch)
				spmdtest.Must(b, err)
				x, y := spmdtest.Alloc[complex64](b, w, n), spmdtest.Alloc[complex64](b, w, n)
				spmdtest.Must(b, x.SetAll(1))
				s, err := w.NewStream("fft")
				spmdtest.Must(b, err)
				stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Graph, 3, 30, func() error {
					for range 10 {
						if err := p.Forward(s, y, x); err != nil {
							return err
						}
					}
					return nil
				})
				spmdtest.Must(b, err)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(stats.MedianUS/10, "us")
				spmdtest.Must(b, p.Close())
			})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
