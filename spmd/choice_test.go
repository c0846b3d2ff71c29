package spmd

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/transport/route"
)

// TestEmptyConfig: an empty field has the default of its flag.
func TestEmptyConfig(t *testing.T) {
	var flags, empty Config
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.forJob().Flags(fs, route.Names())
	testkit.Must(t, errors.Join(fs.Parse(nil), empty.forJob().Complete(route.Names())))
	values := func(c Config) [6]string {
		return [6]string{c.Device, c.Collectives, c.Symmetric, c.Check, c.LogLevel, c.LogFormat}
	}
	if values(flags) != values(empty) {
		t.Errorf("by flags %q, of nothing %q", values(flags), values(empty))
	}
}
