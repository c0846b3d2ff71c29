package mpirun

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// quick are the tests that start jobs in make test: one of each kind, 12 jobs in all. A package
// without the name of a test has one job of 3 ranks, which its tests share. All others are for
// make test-all.
var quick = []string{
	"cudampi.", // MPI
	"shm.",     // memory of a node
	"peer.TestSmallCollectives",
	"spmd.TestCollectives",
	"spmd.TestFaults",
	"spmd.TestReadmeProgram",
	"plan.TestRestarts",
	"plan.TestMinRanksSlurm",
	"scaffold.TestModule",
}

// quickRanks is how many ranks the jobs have that several tests share.
const quickRanks = 3

// Quick reports whether this is make test and t one of its tests that start jobs.
func Quick(t testing.TB) bool {
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".test") + "." + strings.Split(t.Name(), "/")[0]
	return testkit.Quick() && slices.ContainsFunc(quick, func(q string) bool {
		return q == name || strings.HasSuffix(q, ".") && strings.HasPrefix(name, q)
	})
}

// Job skips a test that starts a job or a program, unless make test has it.
func Job(t testing.TB) {
	t.Helper()
	if testkit.Quick() && !Quick(t) {
		testkit.Only(t, "tests with jobs or programs")
	}
}
