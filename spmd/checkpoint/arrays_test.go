package checkpoint_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// checkpointDir is a folder that all processes of a test share. The ranks are told with the test.
const checkpointDir = "SPMDTEST_CHECKPOINTS"

func sharedDir(t *testing.T) string {
	if os.Getenv(checkpointDir) == "" {
		t.Setenv(checkpointDir, t.TempDir())
	}
	return os.Getenv(checkpointDir)
}

// quickly runs fn on 3 ranks that are processes, and on others that are goroutines: files do not
// know which.
func quickly(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	if spmdtest.Device() != "host" {
		spmdtest.Run(t, ranks, fn)
		return
	}
	t.Run("processes", func(t *testing.T) { spmdtest.Run(t, []int{3}, fn) })
	t.Run("goroutines", func(t *testing.T) {
		spmdtest.RunInProcess(t, slices.DeleteFunc(slices.Clone(ranks), func(n int) bool { return n == 3 }), fn)
	})
}

func open(t *testing.T, w *spmd.World, dir string, keep int) *checkpoint.Manager {
	t.Helper()
	c, err := checkpoint.Open(w, dir, checkpoint.Config{Keep: keep})
	spmdtest.Must(t, err)
	return c
}

// array is an item and its expected contents.
type array struct {
	item  checkpoint.Item
	set   func(salt int) error
	check func(salt int) error
}

func element[T spmd.Elem](i, salt int) (v T) {
	n := (i*7 + salt*31) % 113
	for bit := 64; bit > 0; bit >>= 1 { // no type converts to all
		v += v
		if n&bit != 0 {
			v++
		}
	}
	return v
}

func arrayOf[T spmd.Elem](t *testing.T, w *spmd.World, name string, n, off, total int, replicated bool) array {
	t.Helper()
	b := spmdtest.Alloc[T](t, w, n)
	h := make([]T, n)
	a := array{
		item: checkpoint.Sharded(name, b, off, total),
		set: func(salt int) error {
			for i := range h {
				h[i] = element[T](off+i, salt)
			}
			return b.CopyFrom(h)
		},
		check: func(salt int) error {
			if err := b.CopyTo(h); err != nil {
				return err
			}
			for i, v := range h {
				if want := element[T](off+i, salt); v != want {
					return fmt.Errorf("%s[%d] = %v, want %v", name, off+i, v, want)
				}
			}
			return nil
		},
	}
	if replicated {
		a.item = checkpoint.Replicated(name, b)
	}
	return a
}

// bothKinds has total elements of T as a replicated array and as a sharded one; the
// rank's part of that depends on turn.
func bothKinds[T spmd.Elem](t *testing.T, w *spmd.World, total, turn int) []array {
	t.Helper()
	var z T
	s := spmd.ShardOf(total, (w.Rank()+turn)%w.Size(), w.Size())
	name := fmt.Sprintf("%T of %d/", z, total)
	return []array{
		arrayOf[T](t, w, name+"sharded", s.Len, s.Off, total, false),
		arrayOf[T](t, w, name+"replicated", total, 0, total, true),
	}
}

func items(all []array) []checkpoint.Item {
	var list []checkpoint.Item
	for _, a := range all {
		list = append(list, a.item)
	}
	return list
}

func setAll(t *testing.T, all []array, salt int) {
	t.Helper()
	for _, a := range all {
		spmdtest.Must(t, a.set(salt))
	}
}

func checkAll(t *testing.T, all []array, salt int) {
	t.Helper()
	for _, a := range all {
		spmdtest.Must(t, a.check(salt))
	}
}

// everyType has arrays of all element types: no element, one, fewer than ranks, an odd number, and
// more than a chunk of a file and a copy take at once.
func everyType(t *testing.T, w *spmd.World, turn int) []array {
	var all []array
	for _, n := range []int{0, 1, 3, 1001} {
		all = append(all, bothKinds[int8](t, w, n, turn)...)
		all = append(all, bothKinds[uint8](t, w, n, turn)...)
		all = append(all, bothKinds[int32](t, w, n, turn)...)
		all = append(all, bothKinds[uint32](t, w, n, turn)...)
		all = append(all, bothKinds[int64](t, w, n, turn)...)
		all = append(all, bothKinds[uint64](t, w, n, turn)...)
		all = append(all, bothKinds[spmd.F16](t, w, n, turn)...)
		all = append(all, bothKinds[spmd.BF16](t, w, n, turn)...)
		all = append(all, bothKinds[float32](t, w, n, turn)...)
		all = append(all, bothKinds[float64](t, w, n, turn)...)
		all = append(all, bothKinds[complex64](t, w, n, turn)...)
	}
	return append(all, bothKinds[float32](t, w, 2_500_003, turn)...)
}

type someMeta struct {
	LR    float64
	Seed  uint64
	Order []int
}
