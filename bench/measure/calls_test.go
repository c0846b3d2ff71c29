package measure

import (
	"strings"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// init makes the programs of this package's tests make few calls, too.
func init() { mostCalls = 20 }

// Every measurement runs on the ranks of a job, and checks its own results.
func TestMeasures(t *testing.T) {
	spmdtest.Run(t, []int{1, 2}, func(t *testing.T, w *spmd.World) {
		for _, m := range measures {
			if err := m.run(w); err != nil {
				t.Fatalf("%s: %v", m.name, err)
			}
		}
	})
}

// The program prints what the runner reads, also without Main's watch, with which the watch is
// compared. It refuses what is no measurement.
func TestRank(t *testing.T) {
	spmdtest.HostOnly(t, "the watch is compared on the host")
	for _, flag := range []string{"--what", Unwatched} {
		p := spmdtest.Program(t, 2, nil, flag, "step", "--device=host", "--json", "-", "--log-level", "warn")
		all, err := Exactly[Point](p.Stdout, 1)
		if err != nil || p.Status != 0 || all[0].What != "step" || all[0].Ranks != 2 || all[0].MedianUS < 100 {
			t.Errorf("%s: status %d, %+v, %v\n%s", flag, p.Status, all, err, p.Stderr)
		}
	}
	if p := spmdtest.Program(t, 0, nil, "--what", "all"); p.Status != 2 ||
		!strings.Contains(p.Stderr, "--what all: want step, enqueue, launch, startup") {
		t.Errorf("status %d\n%s", p.Status, p.Stderr)
	}
}

// A program's start takes some time, and no more than its whole run.
func TestStartup(t *testing.T) {
	const tick = 10 * time.Millisecond
	start := time.Now()
	p := spmdtest.Program(t, 1, nil, "--device="+spmdtest.Device(), "--what", "startup", "--json", "-", "--log-level",
		"warn")
	most := time.Since(start)
	all, err := Lines[Started](p.Stdout)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v: %q\n%s", err, p.Stdout, p.Stderr)
	}
	if ms := all[0].MS; ms <= 0 || all[0].PeakMiB < 1 || ms > float64((most+tick).Milliseconds()) {
		t.Errorf("started %v ms ago, by a program that ran for %v", ms, most)
	}
}
