package spmd_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/mpirun"
	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/spmdtest"
)

// A measurement is a line of rank 0. The first of a type tells the units that its fields have as
// tags; a map has none. What JSON does not have is refused.
func TestEmit(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	type inner struct {
		Heat float64 `json:"heat,omitempty" unit:"K"`
	}
	type step struct {
		Step int `json:"step"`
		inner
		Rate float64 `unit:"\"B\"/s"`
	}
	cfg := spmdtest.Config()
	cfg.JSON = filepath.Join(t.TempDir(), "x.jsonl")
	err := spmd.Local(t.Context(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		var seen []string
		defer library.Emitted(w, func(line []byte) { seen = append(seen, string(line)) })()
		err := errors.Join(w.Emit(step{1, inner{2}, 3}), w.Emit(&step{2, inner{0}, 4}), w.Emit(map[string]int{"n": 5}),
			w.Emit(struct {
				A *float64 `json:",omitempty" unit:"J"`
			}{}))
		if err := w.Emit(map[string]float64{"x": math.NaN()}); err == nil ||
			!strings.Contains(err.Error(), "emit_test.go:") {
			t.Errorf("rank %d: %v", w.Rank(), err)
		}
		if w.Rank() == 0 && (len(seen) != 4 || seen[2] != "{\"n\":5}\n") {
			t.Errorf("%q", seen)
		}
		return err
	})
	must(t, err)
	const want = `{"step":1,"heat":2,"Rate":3,"units":{"heat":"K","Rate":"\"B\"/s"}}` + "\n" +
		`{"step":2,"Rate":4}` + "\n" + `{"n":5}` + "\n" + `{"units":{"A":"J"}}` + "\n"
	if got, err := os.ReadFile(cfg.JSON); err != nil || string(got) != want {
		t.Errorf("%v: %s, want\n%s", err, got, want)
	}
}

// What cannot be written to a full disk fails the program, when it has ended in order.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range []string{"--help", "--version", "__complete --", "--json -", "--json /dev/full"} {
		var said strings.Builder
		cmd := spmdtest.Command(mpirun.Patience(t), t, 0, []string{appEnv + "=sum"}, strings.Fields(args)...)
		cmd.Stdout, cmd.Stderr = full, &said
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		ran := strings.Contains(said.String(), "INF done") == strings.HasPrefix(args, "--json") // for --help nothing
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "no space left on device") || !ran {
			t.Errorf("%s: %v\n%s", args, cmd.ProcessState, &said)
		}
	}
}
