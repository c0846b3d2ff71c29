package ddp_test

import (
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

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

func stream(t *testing.T, w *spmd.World, name string) *spmd.Stream {
	t.Helper()
	s, err := w.NewStream(name)
	must(t, err)
	return s
}
