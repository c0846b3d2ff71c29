package spmdtest

import (
	"testing"

	"lockstep/spmd"
)

// Must fails the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Alloc is spmd.Alloc, which must succeed.
func Alloc[T spmd.Stored](t testing.TB, w *spmd.World, n int) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, n)
	Must(t, err)
	return b
}

// Stream is World.NewStream, which must succeed.
func Stream(t testing.TB, w *spmd.World, name string) *spmd.Stream {
	t.Helper()
	s, err := w.NewStream(name)
	Must(t, err)
	return s
}
