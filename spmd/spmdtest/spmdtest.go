// Package spmdtest runs test functions on several ranks.
//
//	func TestSum(t *testing.T) {
//		spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
//			// ... the same on every rank
//		})
//	}
//
// Run starts the test binary again under mpirun, for this test alone. A rank that
// fails, panics or dies ends the job and the test within seconds, and its output
// is the test's.
package spmdtest

import (
	"testing"

	"lockstep/internal/mpirun"
	"lockstep/spmd"
)

// Run runs fn on every rank of a job, once for each number of ranks, as subtests
// of t. On a rank, t reports to the test that called Run: t.Fatal on one rank ends
// all of them. The world is open while fn runs and closed after it. What stands
// before Run in the test runs on every rank too.
func Run(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	mpirun.Run(t, ranks, func(t *testing.T) {
		w, err := spmd.Open(spmd.Config{LogLevel: "error", LogRanks: "all", Seed: 42})
		if err != nil {
			t.Fatal(err)
		}
		mpirun.OnFail = func() { w.Abort(1) }
		defer func() { // after t.Skip, too
			if t.Failed() {
				return
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}()
		fn(t, w)
	})
}
