package spmd

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/cudampi"
)

// TestPathsOfMPI: each value of --collectives that names a way of MPI chooses one, of its own, and the others choose none. The
// values are those that --help shows.
func TestPathsOfMPI(t *testing.T) {
	ways := map[cudampi.Path]string{}
	for _, name := range []string{"auto", "nccl", "mpi", "mpi-staged", "mpi-aware", "mpi-peer"} {
		c := Config{Collectives: name}
		if err := c.forJob().Complete(); err != nil {
			t.Errorf("--collectives %s: %v", name, err)
		}
		p, byMPI := c.mpiPath()
		if byMPI != strings.HasPrefix(name, "mpi") || strings.HasPrefix(name, "mpi-") != (p != cudampi.Auto) {
			t.Errorf("--collectives %s chooses %v, and MPI is %v", name, p, byMPI)
		}
		if other := ways[p]; other != "" && p != cudampi.Auto {
			t.Errorf("--collectives %s and %s both choose %v", name, other, p)
		}
		ways[p] = name
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
