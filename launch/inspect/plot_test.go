package inspect

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/cli"
)

func TestDraw(t *testing.T) {
	dir := t.TempDir()
	const log = "{\"step\":1,\"loss\":5,\"lr\":1,\"tok_s\":7}\n{\"step\":2,\"loss\":4,\"lr\":1,\"tok_s\":8}\n"
	one, two := write(t, "a/run/log.jsonl", log), write(t, "b/run/log.jsonl", log)
	out := filepath.Join(dir, "out.svg")
	runs := []string{filepath.Dir(one), filepath.Dir(two)}
	if note, err := drawRuns(out, false, axes{}, runs); err != nil || note != "" {
		t.Fatal(note, err)
	}
	text, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(text), filepath.Dir(two)) { // both are called run
		t.Errorf("%v: the second run has no name of its own", err)
	}
	for _, tc := range []struct {
		out  string
		runs []string
		want string
	}{
		{out, runs, "is there already"},
		{filepath.Join(dir, "x.pdf"), runs, "want a name that ends in .svg or .png"},
		{filepath.Join(dir, "x.png"), nil, "no run is named"},
		{filepath.Join(dir, "x.png"), []string{dir + "/none"}, "no such file"},
		{filepath.Join(dir, "x.png"), []string{filepath.Dir(filepath.Dir(one))},
			"a is no folder of --run-dir, since it has " + "no log.jsonl: give one, or a file that --json has written"},
		{filepath.Join(dir, "x.png"), []string{filepath.Dir(write(t, "b.jsonl", log))}, "name files in it, such as "},
		{out, []string{dir + "/none"}, "no such file"}, // the more useful of two messages
		{filepath.Join(dir, "x.png"), []string{write(t, "empty", "")}, "no number in it"},
	} {
		if _, err := drawRuns(tc.out, false, axes{}, tc.runs); err == nil || !strings.Contains(err.Error(), tc.want) ||
			!errors.As(err, new(cli.Usage)) {
			t.Errorf("%v: %v, want %s", tc.runs, err, tc.want)
		}
	}
	if after, err := os.ReadFile(out); err != nil || string(after) != string(text) {
		t.Error("the picture that was there has changed")
	}
	if _, err := drawRuns(out, true, axes{}, runs[:1]); err != nil {
		t.Error(err)
	}
	if _, err := drawRuns("/dev/full", false, axes{}, runs[:1]); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.png")); err == nil {
		t.Error("a refused picture was written")
	}
}

// The flags say what is drawn, and how.
func TestFlags(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.svg")
	log := write(t, "solver.jsonl", `{"ms":4}
{"step":1,"residual":1}
{"step":2,"residual":1e-6}
{"step":3,"residual":0}
`)
	for args, want := range map[string]string{
		"--y residual --log y --overwrite": "1 points are not above 0, and not on a logarithmic axis\n" + out + "\n",
		"--log z":                          "--log z: want x, y or xy",
		"--y loss":                         "--y loss: no run has it; there are: ms, step, residual",
		"--y ms --overwrite":               "nothing to draw: no line has step and one of ms",
		"--y residual,ms --log y --overwrite": "not drawn: ms, which no line has together with step " +
			"(--x line draws all)\n" +
			"1 points are not above 0, and not on a logarithmic axis\n" + out + "\n",
	} {
		c := PlotCommand()
		var text strings.Builder
		c.SetOut(&text)
		c.SetErr(&text)
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs(append(strings.Fields(args), "--out", out, log))
		if err := c.Execute(); err != nil {
			text.WriteString(err.Error())
		}
		if text.String() != want {
			t.Errorf("%s: %q, want %q", args, text.String(), want)
		}
	}
	if list := texts(t, out); !slices.Contains(list, "1e-05") || !slices.Contains(list, "residual") {
		t.Errorf("%q", list)
	}
}
