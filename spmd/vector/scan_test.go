package vector

import (
	"context"
	"fmt"
	"math"
	"testing"
	"unsafe"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// tiny has tiles, groups and fields so small that few elements fill several.
var tiny = shape{threads, 1, 2}

var (
	tinyInts    = newScanner[int32](tiny)
	tinyFloats  = newScanner[float32](tiny)
	tinyDoubles = newScanner[float64](tiny)
)

// everywhere runs fn on the device of the tests, on so many ranks, and emulated.
func everywhere(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	spmdtest.RunInProcess(t, ranks, fn)
	t.Run("emulated", func(t *testing.T) {
		c := spmdtest.Config()
		if c.Device != "host" && c.Device != "auto" && c.Device != "" {
			t.Skip("the tests are of another device")
		}
		c.Device = "emulate"
		if err := spmd.Local(t.Context(), c, 1, func(_ context.Context, w *spmd.World) error {
			fn(t, w)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func back[T spmd.Elem](t *testing.T, b spmd.Buffer[T]) []T {
	t.Helper()
	v := make([]T, b.Len())
	spmdtest.Must(t, b.CopyTo(v))
	return v
}

// scanned wants got to be the sums of x up to each element, or before it.
func scanned[T Number](t *testing.T, what string, got, x []T, before T, exclusive bool, eps float64) {
	t.Helper()
	exact, lost, size, sum := float64(before), 0.0, math.Abs(float64(before)), before // of integers sum is exact
	for i, v := range x {
		was, wasExact := sum, exact+lost
		next := exact + float64(v)
		if math.Abs(exact) > math.Abs(float64(v)) {
			lost += exact - next + float64(v)
		} else {
			lost += float64(v) - next + exact
		}
		sum, exact, size = sum+v, next, size+math.Abs(float64(v))
		want, wantExact := sum, exact+lost
		if exclusive {
			want, wantExact = was, wasExact
		}
		if eps == 0 && got[i] != want || eps > 0 && !(math.Abs(float64(got[i])-wantExact) <= eps*size) {
			t.Fatalf("%s of %d %T, exclusive %v: [%d] is %v, want %v, %v", what, len(x), v, exclusive, i,
				got[i], want, wantExact)
		}
	}
}

// scans compares the scans of a type, with a scanner of the package and a tiny one, by one block
// and by many, of any alignment.
func scans[T Number](t *testing.T, w *spmd.World, c *scanner, eps float64, lengths ...int) {
	t.Helper()
	s := spmdtest.Stream(t, w, "scan")
	for _, n := range lengths {
		for _, off := range []int{0, 1} {
			x := values[T](n+off, uint64(n))
			bx, dst, add := of(t, w, x), spmdtest.Alloc[T](t, w, n+off), of(t, w, []T{5})
			for _, exclusive := range []bool{false, true} {
				spmdtest.Must(t, scan("Scan", s, c, dst.Slice(off, n+off), bx.Slice(off, n+off), add, exclusive))
				spmdtest.Must(t, s.Synchronize())
				scanned(t, "scan on "+w.Device(), back(t, dst)[off:], x[off:], 5, exclusive, eps)
			}
			spmdtest.Must(t, scan("Scan", s, c, bx, bx, spmd.Buffer[T]{}, true)) // in place
			spmdtest.Must(t, s.Synchronize())
			scanned(t, "scan in place on "+w.Device(), back(t, bx), x, 0, true, eps)
		}
	}
}

func TestScan(t *testing.T) {
	everywhere(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		lengths := []int{1, 16_384, 16_385, 25_000}
		scans[int32](t, w, tinyInts, 0, lengths...)
		scans[float32](t, w, tinyFloats, 1e-6, lengths...)
		scans[float64](t, w, tinyDoubles, 1e-15, lengths...)
		scans[uint32](t, w, scanners[1], 0, 17_000)
		scans[int64](t, w, scanners[2], 0, 2100)
		scans[uint64](t, w, scanners[3], 0, 17_000)
		if !w.OnHost() { // of many fields
			scans[uint32](t, w, scanners[1], 0, 9_000_001)
			scans[float32](t, w, scanners[4], 1e-6, 9_000_001)
			scans[float64](t, w, scanners[5], 1e-15, 5_000_001)
		}
		scanRanks[int64](t, w, 0)
		scanRanks[float64](t, w, 1e-15)
	})
}

// scanRanks scans over ranks of which the second has nothing.
func scanRanks[T Number](t *testing.T, w *spmd.World, eps float64) {
	t.Helper()
	s := spmdtest.Stream(t, w, "scan")
	all, from, n := values[T](3000*w.Size(), 3), 0, 0
	for r := range w.Rank() + 1 {
		from, n = from+n, 1000*r
		if r == 1 {
			n = 0
		}
	}
	x, dst, before := of(t, w, all[from:from+n]), spmdtest.Alloc[T](t, w, n), of(t, w, []T{7})
	whole := make([]T, from)
	scanned := func(what string, exclusive bool) {
		t.Helper()
		spmdtest.Must(t, s.Synchronize())
		scanned(t, what, append(whole[:from:from], back(t, dst)...)[from:], all[from:from+n], before.At(0),
			exclusive, eps)
		want := T(0)
		for _, v := range all[:from] {
			want += v
		}
		if got := before.At(0); math.Abs(float64(got)-float64(want)) > eps*1e6 {
			t.Errorf("%s: before rank %d is %v, want %v", what, w.Rank(), got, want)
		}
	}
	c := w.Comm().On(s)
	spmdtest.Must(t, ScanOver(c, s, dst, x, before))
	scanned("ScanOver", false)
	spmdtest.Must(t, ExScanOver(c, s, dst, x, before))
	scanned("ExScanOver", true)
}

// both are the host and a device that runs CUDA: that of the tests if they are for a GPU.
func both() [2]string {
	if spmdtest.Config().Device == "cuda" {
		return [2]string{"host", "cuda"}
	}
	return [2]string{"host", "emulate"}
}

// Floats have the same bits from CUDA and on the host, by whichever tiles.
func TestScanBits(t *testing.T) {
	var got [2]string
	for i, device := range both() {
		c := spmdtest.Config()
		c.Device = device
		if err := spmd.Local(t.Context(), c, 1, func(_ context.Context, w *spmd.World) error {
			s := spmdtest.Stream(t, w, "scan")
			bits := func(c *scanner, n int) {
				x := of(t, w, values[float32](n, 9))
				spmdtest.Must(t, scan("Scan", s, c, x, x, spmd.Buffer[float32]{}, n%2 == 0))
				spmdtest.Must(t, s.Synchronize())
				v := back(t, x)
				got[i] += string(unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)))
			}
			bits(tinyFloats, 9001)
			bits(tinyFloats, 25_002)
			bits(scanners[4], 30_001)
			x := of(t, w, values[float64](20_001, 9))
			spmdtest.Must(t, Scan(s, x, x))
			spmdtest.Must(t, s.Synchronize())
			got[i] += fmt.Sprintf("%x", back(t, x))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got[0] != got[1] {
		t.Errorf("scans differ on %v", both())
	}
}
