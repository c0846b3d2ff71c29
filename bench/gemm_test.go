package main

import (
	"strconv"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

// The table has a line for each product of a layer and of the head, with times by both choices.
func TestGemmTable(t *testing.T) {
	p := spmdtest.Program(t, 0, nil, "gemm", "--rows=24,16", "--channels=16", "--vocab=32", "--log-level=warn")
	if p.Status != 0 {
		t.Fatalf("status %d\n%s", p.Status, p.Stderr)
	}
	seen := map[string]int{}
	for line := range strings.Lines(p.Stdout) {
		f := strings.Fields(line)
		if len(f) < 6 || f[0] == "product" || !strings.Contains("fwd dgrad wgrad", f[1]) {
			continue
		}
		seen[f[0]+" "+f[1]]++
		for _, at := range []int{len(f) - 4, len(f) - 2} {
			if ms, err := strconv.ParseFloat(f[at], 64); err != nil || ms < 0 {
				t.Errorf("no time in field %d of %q", at, line)
			}
		}
	}
	for _, layer := range []string{"qkv", "proj", "fc", "fcproj", "head"} {
		for _, pass := range []string{"fwd", "dgrad", "wgrad"} {
			if seen[layer+" "+pass] == 0 {
				t.Errorf("no line for %s %s in\n%s", layer, pass, p.Stdout)
			}
		}
	}
	for _, bad := range [][]string{{"--channels=12"}, {"--rows=0"}, {"--vocab=-8"}} {
		if p := spmdtest.Program(t, 0, nil, append([]string{"gemm"}, bad...)...); p.Status == 0 ||
			!strings.Contains(p.Stderr, "multiples of 8") {
			t.Errorf("%q: status %d, %s", bad, p.Status, p.Stderr)
		}
	}
}
