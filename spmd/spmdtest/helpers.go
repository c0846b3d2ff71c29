package spmdtest

import (
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// Must fails the test if there is an error.
func Must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // costs more than a collective that benchmarks measure
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

// TempDir returns a new folder, the same on all ranks, that is gone after the test. That of
// t.TempDir is another one on each rank.
//
// Collective over the ranks of w, blocking.
func TempDir(t testing.TB, w *spmd.World) string {
	t.Helper()
	dir := ""
	if w.Rank() == 0 {
		dir = t.TempDir() // rank 0 removes it when the world is closed: then no rank uses it
	}
	dir, err := hostdata.Broadcast(w.Comm(), dir, 0)
	Must(t, err)
	return dir
}
