package traintest

import (
	"errors"
	"testing"

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

// BufferOf is a buffer that holds x.
func BufferOf[T spmd.Stored](t *testing.T, w *spmd.World, x []T) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, len(x))
	NoError(t, err)
	NoError(t, b.CopyFrom(x))
	t.Cleanup(func() { _ = b.Free() })
	return b
}

// ValuesOf is what a buffer holds.
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

// OnBothQuickly is OnBoth for a long test of many ranks. On the host those with bfloat16 are goroutines of one process,
// which takes a third of the time: what carries messages does not depend on their type, and float32 goes through MPI.
func OnBothQuickly(t *testing.T, ranks []int, f32, half func(t *testing.T, w *spmd.World)) {
	t.Run("float32", func(t *testing.T) { spmdtest.Run(t, ranks, f32) })
	t.Run("bfloat16", func(t *testing.T) {
		if spmdtest.Device() == "host" {
			spmdtest.RunInProcess(t, ranks, half)
			return
		}
		spmdtest.Run(t, ranks, half)
	})
}

// FloatsOf copies a buffer to the host.
func FloatsOf(t *testing.T, b spmd.Buffer[float32]) []float32 {
	t.Helper()
	x := make([]float32, b.Len())
	if err := b.CopyTo(x); err != nil {
		t.Fatal(err)
	}
	return x
}

// TokenBuffer is a buffer of tokens.
func TokenBuffer(t *testing.T, w *spmd.World, x []int32) spmd.Buffer[int32] {
	t.Helper()
	b, err := spmd.Alloc[int32](w, len(x))
	if err == nil {
		err = b.CopyFrom(x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}
