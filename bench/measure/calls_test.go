package measure

import (
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
			if m.name == "pingpong" && w.Size() != 2 {
				continue
			}
			if err := m.run(w, 8); err != nil {
				t.Fatalf("%s: %v", m.name, err)
			}
		}
	})
}

// The program prints what the runner reads.
func TestRank(t *testing.T) { testRank(t, "--what", "pingpong", 2) }

// The run that the watch is compared with has no watch.
func TestUnwatched(t *testing.T) {
	spmdtest.HostOnly(t, "the watch is compared on the host")
	testRank(t, Unwatched, "step", 2)
}

func testRank(t *testing.T, flag, what string, ranks int) {
	t.Helper()
	p := spmdtest.Program(t, ranks, nil, "--device="+spmdtest.Device(), flag, what, "--json", "-", "--log-level",
		"warn")
	if p.Status != 0 {
		t.Fatalf("status %d\n%s", p.Status, p.Stderr)
	}
	points, err := Lines[struct {
		What  string
		Ranks int
		US    float64 `json:"median_us"`
		MS    float64
	}](p.Stdout)
	if err != nil || len(points) == 0 {
		t.Fatalf("%v: %q", err, p.Stdout)
	}
	for _, x := range points {
		if x.What == "" || x.Ranks != ranks || x.US+x.MS <= 0 {
			t.Errorf("%+v from %q", x, p.Stdout)
		}
	}
}

func TestCheckRank(t *testing.T) {
	for _, tc := range []struct {
		what  string
		sizes []int
		ranks int
		ok    bool
	}{
		{"allreduce", []int{8, 1 << 20}, 3, true},
		{"pingpong", []int{8}, 2, true},
		{"pingpong", []int{8}, 3, false},
		{"", []int{8}, 2, false},
		{"allreduce", []int{8, 0}, 2, false},
		{"allreduce", []int{4}, 2, false},
		{"allreduce", []int{12}, 2, false},
		{"allreduce", []int{-8}, 2, false},
	} {
		if err := checkRank(tc.what, tc.sizes, tc.ranks); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
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
