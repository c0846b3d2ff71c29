package traintest

import (
	"errors"
	"slices"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// NoError fails the test with the first error, if any.
func NoError(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// BufferOf returns a buffer that holds x.
func BufferOf[T spmd.Stored](t *testing.T, w *spmd.World, x []T) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, len(x))
	NoError(t, err)
	NoError(t, b.CopyFrom(x))
	t.Cleanup(func() { _ = b.Free() })
	return b
}

// ValuesOf returns the values of a buffer.
func ValuesOf[T spmd.Stored](t *testing.T, b spmd.Buffer[T]) []T {
	t.Helper()
	x := make([]T, b.Len())
	NoError(t, b.CopyTo(x))
	return x
}

// OnBoth runs a test for each type of activations.
func OnBoth(t *testing.T, ranks []int, f32, half func(t *testing.T, w *spmd.World)) {
	t.Run("float32", func(t *testing.T) { spmdtest.Run(t, ranks, f32) })
	t.Run("bfloat16", func(t *testing.T) { spmdtest.Run(t, ranks, half) })
}

// OnBothQuickly is OnBoth for a long test, by RunQuickly. bfloat16 has no processes, since messages
// do not depend on the type.
func OnBothQuickly(t *testing.T, ranks, processes []int, f32, half func(t *testing.T, w *spmd.World)) {
	t.Run("float32", func(t *testing.T) { RunQuickly(t, ranks, processes, f32) })
	t.Run("bfloat16", func(t *testing.T) { RunQuickly(t, ranks, nil, half) })
}

// RunQuickly is spmdtest.Run for a long test. On the host the ranks are goroutines of one process,
// except for the numbers of ranks in processes. This takes half of the time or less if there are
// fewer cores than ranks, since processes wait by yielding. make test has 3 ranks and more.
//
// The processes show that results do not depend on how messages travel.
func RunQuickly(t *testing.T, ranks, processes []int, fn func(t *testing.T, w *spmd.World)) {
	if spmdtest.Device() != "host" {
		spmdtest.Run(t, ranks, fn)
		return
	}
	if len(processes) > 0 {
		t.Run("processes", func(t *testing.T) { spmdtest.Run(t, processes, fn) })
	}
	goroutines := slices.DeleteFunc(slices.Clone(ranks), func(n int) bool { return slices.Contains(processes, n) })
	goroutines = testkit.Some(t, "numbers of ranks", goroutines, func(n int) bool { return n > 2 })
	t.Run("goroutines", func(t *testing.T) { spmdtest.RunInProcess(t, goroutines, fn) })
}
