package gokernel_test

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// run calls fn on a device, with a stream whose commands have run when it returns.
func run(t *testing.T, device string, fn func(w *spmd.World, s *spmd.Stream)) {
	t.Helper()
	c := spmdtest.Config()
	c.Device = device
	err := spmd.Local(t.Context(), c, 1, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("kernels")
		if err != nil {
			return err
		}
		fn(w, s)
		return nil
	})
	spmdtest.Must(t, err)
}

func of[T spmd.Stored](t *testing.T, w *spmd.World, v []T) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, len(v))
	spmdtest.Must(t, err)
	spmdtest.Must(t, b.CopyFrom(v))
	return b
}

func back[T spmd.Stored](t *testing.T, b spmd.Buffer[T]) []T {
	t.Helper()
	v := make([]T, b.Len())
	spmdtest.Must(t, b.CopyTo(v))
	return v
}

// asBytes is the memory of a slice: NaNs are compared, too.
func asBytes[T any](v []T) string {
	return string(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(T)))))
}

// both runs fn on the host and from CUDA, and wants the same bits.
func both(t *testing.T, fn func(w *spmd.World, s *spmd.Stream) []string) {
	t.Helper()
	var got [2][]string
	for i, device := range []string{"host", "emulate"} {
		run(t, device, func(w *spmd.World, s *spmd.Stream) { got[i] = fn(w, s) })
	}
	for i := range got[0] {
		if a, b := got[0][i], got[1][i]; a != b {
			at := 0
			for at < len(a) && a[at] == b[at] {
				at++
			}
			t.Errorf("array %d differs from byte %d on: %x in Go, %x in CUDA", i, at,
				a[at/8*8:min(at/8*8+8, len(a))], b[at/8*8:min(at/8*8+8, len(b))])
		}
	}
}

func random(n int, seed uint64) []float64 {
	r := rand.New(rand.NewPCG(seed, 1))
	v := make([]float64, n)
	for i := range v {
		v[i] = r.NormFloat64() * math.Exp(3*r.NormFloat64())
	}
	return v
}

func singles(v []float64) []float32 {
	f := make([]float32, len(v))
	for i := range v {
		f[i] = float32(v[i])
	}
	return f
}

var lengths = []int{0, 1, 255, 256, 1023, 1024, 1025, 2048, 2049, 5000, 300_001}

// An element-wise kernel agrees with a loop, in both types.
func TestAxpy(t *testing.T) {
	both(t, func(w *spmd.World, s *spmd.Stream) (all []string) {
		for _, n := range lengths {
			x, y := random(n, 1), random(n, 2)
			y64, y32 := of(t, w, y), of(t, w, singles(y))
			spmdtest.Must(t, launchAxpy(s, n, y64, 0.3, of(t, w, x)))
			spmdtest.Must(t, launchAxpy(s, n, y32, 0.3, of(t, w, singles(x))))
			spmdtest.Must(t, launchAxpy(s, n, y64, 2, y64)) // of one buffer twice
			spmdtest.Must(t, s.Synchronize())
			got, got32 := back(t, y64), back(t, y32)
			for i := range got {
				if want := y[i] + 0.3*x[i]; got[i] != want+2*want {
					t.Fatalf("%d elements on %s: element %d is %v, want %v", n, w.Device(), i, got[i], want+2*want)
				}
				if want := float32(y[i]) + 0.3*float32(x[i]); got32[i] != want {
					t.Fatalf("%d elements on %s: element %d is %v, want %v", n, w.Device(), i, got32[i], want)
				}
			}
			all = append(all, asBytes(got), asBytes(got32))
		}
		return all
	})
}

// Moves of 16 bytes at a time are right if buffers begin anywhere, are longer than the launch, or
// are empty.
func TestGated(t *testing.T) {
	both(t, func(w *spmd.World, s *spmd.Stream) (all []string) {
		for _, n := range []int{1, 4096, 5000} {
			for _, from := range []int{0, 1, 4} {
				x, h := of(t, w, singles(random(n+from+5, 1))), of(t, w, make([]spmd.BF16, n+from))
				gate, first := of(t, w, []float32{-0.5}), back(t, x)
				launch := func(h spmd.Buffer[spmd.BF16]) {
					spmdtest.Must(t, launchGated(s, n, x.Slice(from, n+from+3), h, gate))
				}
				launch(spmd.Buffer[spmd.BF16]{})
				launch(h.Slice(from, n+from))
				spmdtest.Must(t, spmd.Fill(s, gate, float32(math.NaN())))
				launch(h.Slice(from, n+from))
				spmdtest.Must(t, s.Synchronize())
				got, halves := back(t, x), back(t, h)
				for i, v := range first {
					if i >= from && i < from+n && v < 0 {
						v *= -0.5
					}
					if got[i] != v || i >= from && i < from+n && halves[i] != spmd.ToBF16(v) {
						t.Fatalf("%d elements from %d on %s: element %d of %v is %v, rounded %v", n, from,
							w.Device(), i, v, got[i], halves[i])
					}
				}
				all = append(all, asBytes(got), asBytes(halves))
			}
		}
		return all
	})
}

// A function for a range of indices runs on the host in the place of the kernel's.
func TestTwice(t *testing.T) {
	both(t, func(w *spmd.World, s *spmd.Stream) (all []string) {
		const n = 10_000
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(i % 10)
		}
		y, sum := of(t, w, make([]float64, n)), of(t, w, []float64{0})
		spmdtest.Must(t, launchTwice(s, sum, n, y, of(t, w, x)))
		spmdtest.Must(t, s.Synchronize())
		if got := sum.At(0); got != 9*n || y.At(n-1) != 18 {
			t.Errorf("on %s: %v, the last is %v", w.Device(), got, y.At(n-1))
		}
		return []string{asBytes(back(t, y)), asBytes(back(t, sum))}
	})
}

// A sum of integers is exact. A sum of floats has the same bits on both, near the exact one.
func TestReductions(t *testing.T) {
	both(t, func(w *spmd.World, s *spmd.Stream) (all []string) {
		for _, n := range lengths {
			x, r, p, q := random(n, 1), random(n, 2), random(n, 3), random(n, 4)
			sum := of(t, w, []float64{7})
			spmdtest.Must(t, launchUpdate(s, sum, n, of(t, w, x), of(t, w, r), of(t, w, p), of(t, w, q),
				of(t, w, []float64{3}), of(t, w, []float64{4})))
			spmdtest.Must(t, s.Synchronize())
			want := 0.0
			for i := range r {
				v := r[i] - 0.75*q[i]
				want += v * v
			}
			if got := sum.At(0); math.Abs(got-want) > 1e-10*want {
				t.Errorf("%d elements on %s: %v, want %v", n, w.Device(), got, want)
			}
			all = append(all, asBytes(back(t, sum)))

			columns := n/1000 + 1
			rows := n / columns
			largest := of(t, w, []float32{0})
			spmdtest.Must(t, launchRowMax(s, largest, rows, columns, of(t, w, singles(x)), columns))
			prod, low := of(t, w, []int64{0}), of(t, w, []uint32{0})
			ints, u := make([]int64, n), make([]uint32, rows*columns)
			product, smallest, most := int64(1), uint32(math.MaxUint32), math.Inf(-1)
			for i := range ints {
				ints[i] = int64(2*i + 3)
				product *= ints[i]
			}
			for i := range u {
				u[i] = uint32(i)*2654435761 | 1<<20
				smallest, most = min(smallest, u[i]), max(most, float64(float32(x[i])))
			}
			spmdtest.Must(t, launchProduct(s, prod, n, of(t, w, ints)))
			spmdtest.Must(t, launchLeast(s, low, 1, rows, columns, of(t, w, u), rows, columns))
			spmdtest.Must(t, s.Synchronize())
			if got := [3]any{largest.At(0), prod.At(0), low.At(0)}; got != [3]any{float32(most), product, smallest} {
				t.Errorf("%d elements on %s: %v, want %v, %v, %v", n, w.Device(), got, float32(most), product, smallest)
			}
		}
		return all
	})
}

// Three indices, each of which no block divides. Quotients have the host's bits, also of
// infinities, zeros and NaNs; so have reductions.
func TestComplex(t *testing.T) {
	parts := []float64{0, math.Copysign(0, -1), 1, -3, 1e-300, 1e300, math.Inf(1), math.Inf(-1), math.NaN()}
	var x, y []complex128
	for k := range len(parts) * len(parts) * len(parts) * len(parts) {
		n := len(parts)
		x, y = append(x, complex(parts[k%n], parts[k/n%n])), append(y, complex(parts[k/n/n%n], parts[k/n/n/n]))
	}
	r := random(4000, 5)
	for i := 0; i < len(r); i += 4 {
		x, y = append(x, complex(r[i], r[i+1])), append(y, complex(r[i+2], r[i+3]))
	}
	finite := x[len(x)-1000:]
	oneNaN := func(v []complex128) []complex128 {
		for i, z := range v {
			re, im := real(z), imag(z)
			if re != re {
				re = math.NaN()
			}
			if im != im {
				im = math.NaN()
			}
			v[i] = complex(re, im)
		}
		return v
	}
	both(t, func(w *spmd.World, s *spmd.Stream) []string {
		out, single := of(t, w, x), of(t, w, make([]complex64, len(x)))
		sum, dot := of(t, w, []complex128{7}), of(t, w, []complex128{7})
		product, product8 := of(t, w, []complex64{7}), of(t, w, []complex128{7})
		bx, by := of(t, w, x), of(t, w, y)
		fx, fy, turned, turned8 := of(t, w, finite), of(t, w, y[len(y)-1000:]), of(t, w, make([]complex64, 9)),
			of(t, w, make([]complex128, 9))
		spmdtest.Must(t, launchQuotients(s, sum, len(x), out, bx, by, single, 2i, 3))
		spmdtest.Must(t, launchQuotients(s, dot, len(finite), fx, fx, fy, single.Slice(0, len(finite)), 1-2i, 0))
		spmdtest.Must(t, launchTurn(s, product, 9, turned, complex64(1+1i)))
		spmdtest.Must(t, launchTurn(s, product8, 9, turned8, 1+1i))
		spmdtest.Must(t, s.Synchronize())
		if got := [2]complex128{complex128(product.At(0)), product8.At(0)}; got != [2]complex128{16 + 16i, 16 + 16i} {
			t.Errorf("(1+i)^9 is %v", got)
		}
		var singles []complex128
		for _, z := range back(t, single) {
			singles = append(singles, complex128(z))
		}
		return []string{asBytes(oneNaN(back(t, out))), asBytes(back(t, dot)), asBytes(oneNaN(singles))}
	})
}

// Structs are changed alike, and by their own methods.
func TestStructs(t *testing.T) {
	h, want := make([]point, 1001), int64(0)
	for i := range h {
		h[i] = point{at: [3]int32{int32(i), 2, -3}, weight: float32(i) / 8, on: i%3 == 0}
		if h[i].on {
			want += int64(i + 5)
		}
	}
	both(t, func(w *spmd.World, s *spmd.Stream) []string {
		points, err := spmd.AllocStructs[point](w, len(h))
		spmdtest.Must(t, err)
		spmdtest.Must(t, points.CopyFrom(h))
		sum := of(t, w, []int64{0})
		spmdtest.Must(t, launchDrift(s, sum, len(h), points, 5))
		spmdtest.Must(t, s.Synchronize())
		got := make([]point, len(h))
		spmdtest.Must(t, points.CopyTo(got))
		if last := (point{at: [3]int32{1004, 7, 2}, weight: 249.75, on: true}); sum.At(0) != want || got[999] != last {
			t.Errorf("the sum is %d, want %d; the struct %v, want %v", sum.At(0), want, got[999], last)
		}
		return []string{asBytes(got)}
	})
}

func TestHeat(t *testing.T) {
	both(t, func(w *spmd.World, s *spmd.Stream) (all []string) {
		for _, n := range [][3]int{{1, 1, 1}, {3, 3, 3}, {5, 9, 33}, {2, 70, 65}, {40, 3, 7}} {
			cells := n[0] * n[1] * n[2]
			next := of(t, w, make([]float32, cells))
			spmdtest.Must(t, launchHeat(s, n[0], n[1], n[2], next, of(t, w, singles(random(cells, 5))),
				n[0], n[1], n[2], 0.125))
			spmdtest.Must(t, s.Synchronize())
			all = append(all, asBytes(back(t, next)))
		}
		return all
	})
}

// Every statement and operator means the same in both languages.
func TestLanguage(t *testing.T) {
	const n = 3000
	both(t, func(w *spmd.World, s *spmd.Stream) []string {
		x, small8, out := make([]int64, n), make([]int8, n), of(t, w, make([]int64, n))
		r := rand.New(rand.NewPCG(3, 4))
		for i := range x {
			x[i], small8[i] = int64(r.Uint64())>>(r.Uint64()%64), int8(r.Uint64())
		}
		x[0], x[1], x[2] = math.MinInt64, -1, 0
		changed := of(t, w, small8)
		for shift := range uint(70) {
			spmdtest.Must(t, launchIntegers(s, n, out, changed, of(t, w, x), shift))
		}
		v := random(n, 6)
		copy(v, []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 0.5, 1.5, -0.5,
			5e-324, math.MaxFloat64})
		f64, f32 := of(t, w, make([]float64, n)), of(t, w, singles(random(n, 7)))
		spmdtest.Must(t, launchFloats(s, n, f64, of(t, w, v), f32))
		var controlled []spmd.Buffer[int32]
		for _, flip := range []bool{false, true} {
			c, in := of(t, w, make([]int32, n)), make([]int32, n)
			for i := range in {
				in[i] = int32(i - n/2)
			}
			spmdtest.Must(t, launchControl(s, n, c, of(t, w, in), point{[3]int32{2, -7, 5}, 0.5, true}, flip))
			controlled = append(controlled, c)
		}
		rowsOf := of(t, w, make([]float32, n))
		spmdtest.Must(t, launchRows(s, n/6, rowsOf, of(t, w, singles(random(n, 8))), 6))
		h, f := make([]spmd.BF16, n), make([]spmd.F16, n)
		for i := range h {
			h[i], f[i] = spmd.BF16(i*10), spmd.F16(i*10) // no NaN: which of two wins is the compiler's business
		}
		bh, bf, bx := of(t, w, h), of(t, w, f), of(t, w, make([]float32, n))
		spmdtest.Must(t, launchSmall(s, n, bh, bf, bx))
		inside, bins := of(t, w, []int64{0}), of(t, w, make([]uint64, 16))
		spmdtest.Must(t, launchHits(s, inside, 100_000, bins, 42))
		spmdtest.Must(t, s.Synchronize())
		points := uint64(0)
		for _, b := range back(t, bins) {
			points += b
		}
		if in := inside.At(0); points != 100_000 || bits.Len64(uint64(in)) == 0 ||
			math.Abs(float64(in)/1e5-math.Pi/4) > 0.006 {
			t.Errorf("on %s: %d points in bins, %d in the circle", w.Device(), points, in)
		}
		return []string{asBytes(back(t, out)), asBytes(back(t, changed)), asBytes(back(t, f64)),
			asBytes(back(t, f32)), asBytes(back(t, controlled[0])),
			asBytes(back(t, controlled[1])), asBytes(back(t, rowsOf)), asBytes(back(t, bh)),
			asBytes(back(t, bf)), asBytes(back(t, bx)), asBytes(back(t, inside)), asBytes(back(t, bins))}
	})
}

// An index out of range ends the job: on the host with Go's own words, from CUDA with those of
// --check=bounds, which have the place in Go.
func TestBounds(t *testing.T) {
	for device, want := range map[string][]string{
		"host": {"slice bounds out of range [:8] with capacity 7"},
		"emulate": {"rank 1: kernel rows, kernels_test.go:", "index 8 is out of range, the length is 8",
			"stream \"kernels\""},
	} {
		c := spmdtest.Config()
		c.Device, c.Check = device, "bounds"
		err := spmd.Local(t.Context(), c, 2, func(_ context.Context, w *spmd.World) error {
			s, err := w.NewStream("kernels")
			if err != nil {
				return err
			}
			x := of(t, w, make([]float32, 9-w.Rank()*2))
			if err := launchRows(s, 2, of(t, w, make([]float32, 8)), x, 4); err != nil {
				return err
			}
			return s.Synchronize()
		})
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("on %s: %v, want %q", device, err, text)
			}
		}
	}
}

// With --check=bounds the kernels compile for GPUs, and compute the same.
func TestBoundsKeepsBits(t *testing.T) {
	kernels.CheckBounds()
	TestLanguage(t)
	TestHeat(t)
	t.Run("compiled", func(t *testing.T) { spmdtest.CompileKernels(t) })
}

// A bad launch is refused with the place in the program. A launch of no indices does nothing.
func TestRefused(t *testing.T) {
	run(t, "host", func(w *spmd.World, s *spmd.Stream) {
		x, one := of(t, w, make([]float64, 4)), of(t, w, make([]float64, 1))
		for what, err := range map[string]error{
			"language_test.go:":                         launchAxpy(s, -1, x, 1, x),
			"Launch of axpy<double>: [-1] indices":      launchAxpy(s, -1, x, 1, x),
			"a buffer of 4 float64 where it has a poin": launchUpdate(s, one, 4, x, x, x, x, x, one),
			"Launch of heat: [2 -3 1] indices": launchHeat(s, 2, -3, 1, spmd.Buffer[float32]{},
				spmd.Buffer[float32]{}, 1, 1, 1, 0),
		} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%v, want %q", err, what)
			}
		}
		spmdtest.Must(t, launchAxpy(s, 0, spmd.Buffer[float64]{}, 1, spmd.Buffer[float64]{}))
		spmdtest.Must(t, s.Synchronize())
	})
}

// A launch allocates nothing, in a graph too.
func TestAllocations(t *testing.T) {
	run(t, "host", func(w *spmd.World, s *spmd.Stream) {
		x, sum := of(t, w, make([]float64, 100)), of(t, w, make([]float64, 1))
		launch := func() error {
			return errors.Join(launchAxpy(s, 100, x, 0.5, x), launchUpdate(s, sum, 100, x, x, x, x, sum, sum))
		}
		for range 100 { // every slot of the queue has had such launches
			spmdtest.Must(t, launch())
			spmdtest.Must(t, s.HostFunc(func() error { return nil }))
			spmdtest.Must(t, s.Synchronize())
		}
		hold := make(chan bool)
		spmdtest.Must(t, s.HostFunc(func() error { <-hold; return nil }))
		if n := testkit.Allocations(5, func() {
			if err := launch(); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("two launches allocate %v times", n)
		}
		close(hold)
		spmdtest.Must(t, s.Synchronize())
		g, err := s.Capture(launch)
		spmdtest.Must(t, err)
		spmdtest.Must(t, g.Launch(s))
		spmdtest.Must(t, s.Synchronize())
	})
}

// A kernel that loops reaches all indices if its grid has blocks for a part of them alone, and no
// index if it is to do nothing.
func TestLoop(t *testing.T) {
	spmdtest.CompareKernels(t)
	run(t, "host", func(w *spmd.World, s *spmd.Stream) {
		const n = 2*8*132*512 + 700
		z := of(t, w, make([]complex128, n))
		spmdtest.Must(t, z.SetAll(3))
		for _, by := range []float64{1, -2} {
			spmdtest.Must(t, launchShrink(s, n, z, of(t, w, []float64{by})))
		}
		spmdtest.Must(t, s.Synchronize())
		for i, v := range back(t, z) {
			if v != -6 {
				t.Fatalf("element %d is %v", i, v)
			}
		}
	})
}
