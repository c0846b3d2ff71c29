package spmd

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/cudampi"
)

// TestFirstFree: which GPU the last of the ranks of a node takes; a word is what a
// rank sees.
func TestFirstFree(t *testing.T) {
	for _, tc := range []struct {
		seen string
		want int
	}{
		{"abcd", 0},
		{"abcd abcd", 1},
		{"abcd abcd abcd abcd", 3},
		{"a b", 0}, // each its own
		{"b a ab", -1},
		{"ab a", -1}, // the first could have had b, but that is not looked for
		{"ab bc", 0},
		{"ab ab bc", 1}, // b is taken
		{"ab bc ca", 0},
		{"ba ab", 0}, // in another order
		{"a a", -1},
		{"a a b", 0}, // the second has none and takes none
		{"a a a", -1},
		{"- a", 0}, // the first sees none
		{"-", -1},
		{"a -", -1},
	} {
		var seen [][]string
		for _, word := range strings.Fields(tc.seen) {
			seen = append(seen, strings.Split(strings.Trim(word, "-"), ""))
		}
		if got := firstFree(seen); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.seen, got, tc.want)
		}
	}
}

// TestPathsOfMPI: --collectives takes the names that the start line shows.
func TestPathsOfMPI(t *testing.T) {
	for _, p := range []cudampi.Path{cudampi.Staged, cudampi.AwareMPI, cudampi.Peer} {
		c := Config{Collectives: p.String()}
		if got, byMPI := c.mpiPath(); got != p || !byMPI || c.forJob().Complete() != nil {
			t.Errorf("--collectives %v is %v, %v, %v", p, got, byMPI, c.forJob().Complete())
		}
	}
	for name, want := range map[string]bool{"": false, "auto": false, "nccl": false, "mpi": true} {
		c := Config{Collectives: name}
		if got, byMPI := c.mpiPath(); got != cudampi.Auto || byMPI != want {
			t.Errorf("--collectives %q is %v, %v", name, got, byMPI)
		}
	}
}

// TestEmptyConfig: what a program leaves empty is what its flags would be.
func TestEmptyConfig(t *testing.T) {
	var flags, empty Config
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.forJob().Flags(fs)
	if err := errors.Join(fs.Parse(nil), empty.forJob().Complete()); err != nil {
		t.Fatal(err)
	}
	values := func(c Config) [6]string {
		return [6]string{c.Device, c.Collectives, c.Symmetric, c.Check, c.LogLevel, c.LogFormat}
	}
	if values(flags) != values(empty) {
		t.Errorf("by flags %q, of nothing %q", values(flags), values(empty))
	}
}

// TestBestWay: one way for graphs and calls, which is not far from the fastest in either.
func TestBestWay(t *testing.T) {
	never := [2]float64{math.MaxFloat64, math.MaxFloat64}
	for _, tc := range []struct {
		name string
		us   taken
		want way
	}{
		{"only one", taken{{9, 10}, never, never}, plainWay},
		{"the fastest in both", taken{{9, 10}, {4, 9}, {3, 5}}, peerWay},
		{"a little slower in graphs, much faster without", taken{{9, 10}, {4, 9}, {4.2, 5}}, peerWay},
		{"much slower in graphs, a little faster without", taken{{9, 10}, {4, 9}, {8, 8.5}}, symmetricWay},
		{"the same", taken{{9, 9}, {9, 9}, never}, plainWay},
	} {
		if got := tc.us.best(); got != tc.want {
			t.Errorf("%s: way %d, want %d", tc.name, got, tc.want)
		}
	}
}
