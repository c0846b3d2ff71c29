package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// A person at a terminal sees the progress of a run, also through mpirun. The line disappears
// at the end, and after Ctrl-C.
func TestLive(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "no device plays a part")
	for _, tc := range []struct {
		name   string
		ranks  int // 0: without mpirun
		steps  int
		ctrlC  bool
		status int
	}{{"alone", 0, 4, false, 0}, {"mpirun", 2, 4, false, 0}, {"Ctrl-C", 0, 1_000_000, true, 130}} {
		t.Run(tc.name, func(t *testing.T) {
			p := testkit.OpenTerminal(t, 150)
			before := p.Modes(t)
			cmd := spmdtest.Command(t.Context(), t, tc.ranks, nil,
				smallRun(t, tc.steps, "--log-every", "1000", "--val-batches", "0")...)
			out, err := cmd.StdoutPipe()
			spmdtest.Must(t, err)
			cmd.Stderr, cmd.Stdin = p.Far, p.Far
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			spmdtest.Must(t, mpirun.Start(cmd))
			steps := 0
			for buf := make([]byte, 1<<10); ; {
				n, err := out.Read(buf)
				steps += strings.Count(string(buf[:n]), "\n")
				if tc.ctrlC && steps > 20 && strings.Contains(p.Seen(), "loss ") {
					time.AfterFunc(0, func() { p.Type(t, "\x03") })
					tc.ctrlC = false
				}
				if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
					break
				}
				spmdtest.Must(t, err)
			}
			err = cmd.Wait()
			ended := (*exec.ExitError)(nil)
			if cmd.ProcessState.ExitCode() != tc.status || err != nil && !errors.As(err, &ended) {
				t.Errorf("%v, want status %d", err, tc.status)
			}
			if p.Modes(t) != before {
				t.Error("the modes of the terminal have changed")
			}
			seen := p.Close()
			if !strings.Contains(seen, "\rtraining  ") || !strings.Contains(seen, fmt.Sprintf("/%d steps", tc.steps)) ||
				!strings.Contains(seen, "loss ") {
				t.Errorf("no live line in %q", seen)
			}
			lines := testkit.ScreenLines(seen)
			if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "training") }) ||
				lines[len(lines)-1] != "" {
				t.Errorf("left on the screen: %q", lines)
			}
		})
	}
}
