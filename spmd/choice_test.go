package spmd

import (
	"errors"
	"math"
	"testing"

	"github.com/spf13/pflag"
)

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
