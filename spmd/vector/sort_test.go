package vector

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/spmdtest"
)

// The smallest tiles that there are.
var (
	tinyKeys  = newSorter[uint32, uint32](false, 1)
	tinyPairs = newSorter[uint32, uint64](true, 1)
)

// sortKeys are of all sizes, and many are equal.
func sortKeys[K Number](n int) []K {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	v := make([]K, n)
	for i := range v {
		bits := r.Uint64() >> (r.Uint64() % 64)
		if i%3 == 0 {
			bits = bits % 50
		}
		switch p := any(&v[i]).(type) {
		case *float32:
			*p = math.Float32frombits(uint32(bits) << (i % 9))
		case *float64:
			*p = math.Float64frombits(bits << (i % 9))
		default:
			v[i] = K(bits << (i % 2 * 13))
			if i%5 == 0 {
				v[i] = -v[i]
			}
		}
	}
	return v
}

// before is the order: -0 before 0, and NaNs last, as they stand.
func before[K Number](a, b K) int {
	if a == a && b == b && a != b {
		return cmp.Compare(a, b)
	}
	switch x := any(a).(type) {
	case float32:
		return order(uint64(math.Float32bits(x))<<32, uint64(math.Float32bits(any(b).(float32)))<<32, 0x7f800000<<32)
	case float64:
		return order(math.Float64bits(x), math.Float64bits(any(b).(float64)), 0x7ff0000000000000)
	}
	return 0
}

func order(a, b, infinity uint64) int {
	const sign = 1 << 63
	nanA, nanB := a&^sign > infinity, b&^sign > infinity
	switch {
	case nanA && nanB:
		return 0
	case nanA:
		return 1
	case nanB:
		return -1
	}
	return cmp.Compare(b>>63, a>>63) // of zeros
}

func oneNaN[K Number](k K) K {
	if k != k {
		switch p := any(&k).(type) {
		case *float32:
			*p = math.Float32frombits(0x7fc00000)
		case *float64:
			*p = math.Float64frombits(0x7ff8000000000000)
		}
	}
	return k
}

func asBytes[T any](v []T) string {
	return string(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(T)))))
}

// sorted compares with a stable sort of indices by comparisons.
func sorted[K, V Number](t *testing.T, w *spmd.World, n int) {
	t.Helper()
	s := spmdtest.Stream(t, w, "sort")
	whole, values := sortKeys[K](n+1), make([]V, n)
	x := whole[1:]
	index := make([]int, n)
	for i := range index {
		index[i], values[i] = i, V(i)
	}
	slices.SortStableFunc(index, func(a, b int) int { return before(x[a], x[b]) })
	want, wantValues := make([]K, n), make([]V, n)
	for i, at := range index {
		want[i], wantValues[i] = oneNaN(x[at]), values[at]
	}
	bx, dst := of(t, w, whole).Slice(1, n+1), spmdtest.Alloc[K](t, w, n)
	spmdtest.Must(t, Sort(s, dst, bx))
	spmdtest.Must(t, s.Synchronize())
	if got := back(t, dst); asBytes(got) != asBytes(want) {
		t.Errorf("%d %T on %s are not in order", n, x[:0], w.Device())
	}
	if asBytes(back(t, bx)) != asBytes(x) {
		t.Errorf("%d %T on %s are other than before", n, x[:0], w.Device())
	}
	bv := of(t, w, values)
	spmdtest.Must(t, SortPairs(s, bx, bv, bx, bv)) // in place
	spmdtest.Must(t, s.Synchronize())
	if got := back(t, bx); asBytes(got) != asBytes(want) {
		t.Errorf("%d %T with %T on %s are not in order", n, x[:0], values[:0], w.Device())
	}
	if got := back(t, bv); !slices.Equal(got, wantValues) {
		t.Errorf("%d %T with %T on %s have other values", n, x[:0], values[:0], w.Device())
	}
}

func TestSort(t *testing.T) {
	everywhere(t, []int{1}, func(t *testing.T, w *spmd.World) {
		sorted[uint32, int32](t, w, 0)
		sorted[int32, int64](t, w, 1)
		sorted[float32, int32](t, w, 300)
		sorted[float64, float64](t, w, 200)
		sorted[int64, uint32](t, w, 100)
		sorted[uint64, float32](t, w, 10)
		if w.Device() != "emulate" {
			sorted[float32, uint64](t, w, 100_003)
			sorted[float64, int32](t, w, 100_003)
			sorted[int32, int32](t, w, 100_003)
		}
		if !w.OnHost() {
			sorted[float32, int64](t, w, 3_000_017)
			sorted[int64, int32](t, w, 2_000_017)
		}
	})
}

// Many tiles and many launches use words of tiles again, and clear them when they are used up.
func TestSortPortions(t *testing.T) {
	everywhere(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "sort")
		n := 6001
		if w.Device() == "emulate" {
			n = 2501 // 7 tiles: of 4 passes 16 launches
		}
		for _, c := range []*sorter{tinyKeys, tinyPairs} {
			for _, tiles := range []int{1000, 2} {
				portions := *c
				portions.most = tiles * c.tile
				portions.library = library.New("sort", portions.onGPU, func(spmd.Args) error { return nil },
					c.clear, c.count, c.pass).OnlyKernels()
				if w.OnHost() && w.Device() != "emulate" {
					portions.library = c.library
				}
				x, values := sortKeys[uint32](n), make([]uint64, n)
				for i := range values {
					values[i] = uint64(x[i])<<32 | uint64(i)
				}
				bx, bv := of(t, w, x), of(t, w, values)
				if c.value == 0 {
					none := spmd.Buffer[uint32]{}
					spmdtest.Must(t, enqueue(s, &portions, bx, bx, none, none, unsigned))
				} else {
					spmdtest.Must(t, enqueue(s, &portions, bx, bx, bv, bv, unsigned))
					slices.Sort(values)
				}
				spmdtest.Must(t, s.Synchronize())
				slices.Sort(x)
				if !slices.Equal(back(t, bx), x) || !slices.Equal(back(t, bv), values) {
					t.Errorf("in launches of %d tiles on %s, values of %d bytes: not in order", tiles,
						w.Device(), c.value)
				}
			}
		}
	})
}

// A sort works in a graph, and allocates nothing after the first.
func TestSortGraph(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "sort")
		x, values := of(t, w, []float32{3, 1, 2}), of(t, w, []int64{3, 1, 2})
		g, err := s.Capture(func() error { return Sort(s, x, x) })
		spmdtest.Must(t, err)
		spmdtest.Must(t, x.CopyFrom([]float32{9, 8, -7}))
		spmdtest.Must(t, g.Launch(s))
		spmdtest.Must(t, s.Synchronize())
		if got := back(t, x); !slices.Equal(got, []float32{-7, 8, 9}) {
			t.Errorf("%v", got)
		}
		calls := func() {
			spmdtest.Must(t, Sort(s, x, x))
			spmdtest.Must(t, SortPairs(s, x, values, x, values))
		}
		for range 100 { // every slot of the queue has had such calls
			calls()
			spmdtest.Must(t, s.Synchronize())
		}
		hold := make(chan bool)
		spmdtest.Must(t, s.HostFunc(func() error { <-hold; return nil }))
		if n := testkit.Allocations(5, calls); n > 0 {
			t.Errorf("calls allocate %v times", n)
		}
		close(hold)
		spmdtest.Must(t, s.Synchronize())
	})
	var m scratch[uint32, uint64]
	if n := testkit.Allocations(10, func() {
		m.onHost([]uint32{3, 2, 1}, []uint32{3, 2, 1}, []uint64{1, 2, 3}, []uint64{1, 2, 3}, unsigned)
	}); n > 0 {
		t.Errorf("a sort on the host allocates %v times", n)
	}
}

func TestSortRefused(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		x, v := of(t, w, make([]float32, 8)), of(t, w, make([]int64, 8))
		for what, err := range map[string]error{
			"Sort: 8 keys are sorted to 7":        Sort(s, x.Slice(0, 7), x),
			"SortPairs: 8 values are sorted to 2": SortPairs(s, x, v.Slice(0, 2), x, v),
			"SortPairs: 3 values of 8 keys":       SortPairs(s, x, v.Slice(0, 3), x, v.Slice(3, 6)),
		} {
			if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "sort_test.go:") {
				t.Errorf("%v, want %q", err, what)
			}
		}
	})
}
