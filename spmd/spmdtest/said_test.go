package spmdtest

import (
	"testing"

	"lockstep/internal/testkit"
)

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

// The result of a run is found among the lines of its steps.
func TestResult(t *testing.T) {
	var r struct{ Step, Points int }
	e := Ended{Status: 0, Stdout: "text\n{\"step\":1,\"summary\":false}\n{\"step\":2,\"summary\":{\"ranks\":2}}\n" +
		"{\"summary\":true,\"points\":7}\n{\"step\":3}\n"}
	if err := e.Result(&r); err != nil || r.Points != 7 || r.Step != 0 {
		t.Errorf("%v, %+v", err, r)
	}
	e = Ended{Status: 2, Stdout: "{\"step\":1}\n", Stderr: "app: unknown flag"}
	testkit.Refused(t, e.Result(&r), "status 2", "app: unknown flag")
	e.Stdout = "{\"summary\":true,\"points\":\"many\"}\n"
	if err := e.Result(&r); err == nil {
		t.Error("a text is a number of points")
	}
}
