// Package apptest has what the tests of all programs of apps do. A program's TestMain is that of
// spmdtest.
package apptest

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Measures starts the program, which has to write one line of JSON with the usual fields and more,
// and a table. It returns the line. ranks as of spmdtest.Program.
func Measures(t *testing.T, ranks int, more string, args ...string) map[string]any {
	t.Helper()
	p := spmdtest.Program(t, ranks, nil, append(args, "--json", "-")...)
	var line map[string]any
	if err := json.Unmarshal([]byte(p.Stdout), &line); err != nil || p.Status != 0 || line["ok"] != true ||
		!strings.Contains(p.Stderr, "median us") {
		t.Fatalf("status %d, %v: %s\n%s", p.Status, err, p.Stdout, p.Stderr)
	}
	for _, f := range strings.Fields("app ranks nodes device collectives graph dtype bytes iters min_us median_us " +
		"p99_us max_us gbps max_rel_err " + more) {
		if _, ok := line[f]; !ok {
			t.Errorf("the JSON line has no %s: %s", f, p.Stdout)
		}
	}
	return line
}

// InProcess starts the program on 4 ranks that are goroutines. They share nothing that they change,
// which the race detector checks in make race.
func InProcess(t *testing.T, args ...string) {
	t.Helper()
	spmdtest.HostOnly(t, "the ranks are goroutines")
	if line := Measures(t, 0, "", append(args, "--ranks", "4")...); line["ranks"] != 4.0 {
		t.Errorf("%v", line)
	}
}

// Reports checks that a wrong result is reported, also if JSON cannot hold its relative error.
func Reports(t *testing.T, want string, report func(w *spmd.World, relErr float64) error) {
	t.Helper()
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for _, e := range []float64{math.NaN(), math.Inf(1), 1.5} {
			if err := report(w, e); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a relative error of %v: error %v", e, err)
			}
		}
	})
}

// Refuses starts the program on 3 ranks for each row, flags and what they are refused with: by one
// line that begins with the program's name.
func Refuses(t *testing.T, name string, rows ...[2]string) {
	spmdtest.Ranks(t, 3)
	for _, row := range rows {
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			p := spmdtest.Program(t, 3, nil, strings.Fields(row[0])...)
			said := slices.DeleteFunc(strings.Split(p.Stderr, "\n"),
				func(l string) bool { return !strings.HasPrefix(l, name+": ") })
			if p.Status != 2 || len(said) != 1 || !strings.Contains(p.Stderr, row[1]) {
				t.Errorf("status %d, want 2 and one line with %q:\n%s", p.Status, row[1], p.Stderr)
			}
		})
	}
}
