package main

import (
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// Each launch is compared with the host. Exact sums have the same bits.
func TestCompareKernels(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for _, exact := range []bool{false, true} {
			r, err := run(w, config{Elements: 40_003, Parts: "equal", Iters: 1, Exact: exact,
				Values: map[bool]string{false: "uniform", true: "wide"}[exact]})
			if err != nil || !r.OK {
				t.Errorf("exact %v: %+v, %v", exact, r, err)
			}
		}
	})
}
