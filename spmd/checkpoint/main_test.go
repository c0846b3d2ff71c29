package checkpoint_test

import (
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func alloc[T spmd.Elem](t *testing.T, w *spmd.World, n int) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, n)
	must(t, err)
	return b
}
