package plan

import (
	"slices"
	"strings"
	"testing"

	"lockstep/internal/cli"
	"lockstep/internal/testkit"
)

// A live line of a rank stays below the lines of all, and is gone at the end. What the
// terminal had as modes it has still.
func TestLive(t *testing.T) {
	need(t, "openmpi4")
	p := testkit.OpenTerminal(t, 66)
	before := p.Modes(t)
	cmd := launchCommand(t, "run", "--launcher", "openmpi4", "-np", "2", "--oversubscribe", "--", self(t), "program",
		"live")
	cmd.Stdout, cmd.Stderr = p.Far, p.Far
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	if p.Modes(t) != before {
		t.Error("the modes of the terminal have changed")
	}
	seen := p.Close()
	lines := testkit.ScreenLines(seen)
	slices.Sort(lines)
	if want := []string{"", "0: \rnot live", "0: a line", "1: another"}; !slices.Equal(lines, want) &&
		!slices.Equal(lines, []string{"", "0: a line", "1: another", "not live"}) {
		t.Errorf("%q on the screen, want %q; written %q", lines, want, seen)
	}
	for _, want := range []string{cli.Live("a half of 66"), cli.Live("all") + cli.Live("")} {
		if !strings.Contains(seen, want) {
			t.Errorf("%q is not in %q", want, seen)
		}
	}
}

// Where no terminal is, live lines are what any other bytes are.
func TestNotLive(t *testing.T) {
	need(t, "openmpi4")
	out, errs, status := result(t,
		launchCommand(t, "run", "--launcher", "openmpi4", "-np", "1", "--", self(t), "program", "live"))
	want := "0: " + cli.Live("a half of ") + "a line\n0: " + cli.Live("most") + "\rnot live\n0: " +
		cli.Live("all") + "\n"
	if status != 0 || out != "" || errs != want {
		t.Errorf("status %d, %q and %q, want %q", status, out, errs, want)
	}
}
