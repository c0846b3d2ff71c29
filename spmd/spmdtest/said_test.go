package spmdtest

import "testing"

// Of what a failed program writes its own words are left, but for a rank that a signal has ended.
func TestSaid(t *testing.T) {
	const (
		rule  = "--------------------------------------------------------------------------\n"
		first = rule + "mpirun detected that one or more processes exited with non-zero status, thus causing\n" +
			"the job to be terminated. The first process to do so was:\n\n  Process name: [[2,1],0]\n" +
			"  Exit code:    2\n" + rule
		killed = rule + "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).\n" + rule
		own    = "app: --json: no such folder\n"
	)
	for errs, want := range map[string]string{
		"": "", own: own, own + first: own, first: first, own + killed: own + killed,
	} {
		if got := said(errs, 2); got != want {
			t.Errorf("%q: %q, want %q", errs, got, want)
		}
	}
}
