package timing_test

import (
	"testing"

	"lockstep/spmd"
)

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
