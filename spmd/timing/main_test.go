package timing_test

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

func stream(t *testing.T, w *spmd.World, name string) *spmd.Stream {
	t.Helper()
	s, err := w.NewStream(name)
	must(t, err)
	return s
}
