package traintest

import (
	"fmt"
	"os"
	"testing"
)

// measuredEnv names a file that gathers measurements of tests. bench sets it.
const measuredEnv = "LOCKSTEP_MEASURED"

// Measured logs a number that a test found; larger is worse. If LOCKSTEP_MEASURED names a file, it
// also appends the line "VALUE\tWHAT" to it, since a rank under mpirun shows its log only when it
// fails. Every rank, and every number of ranks, may add a line. The worst of a kind counts.
func Measured(t *testing.T, what string, value float64) {
	t.Helper()
	t.Logf("measured: %s = %.3g", what, value)
	name := os.Getenv(measuredEnv)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(f, "%g\t%s\n", value, what); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
