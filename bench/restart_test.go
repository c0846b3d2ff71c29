package main

import (
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/bench/measure"
)

// The time without training goes from the kill to the first step of the next start, by
// the run's lines.
func TestKilling(t *testing.T) {
	plain := []measure.TrainStep{{Step: 1, Loss: 5}, {Step: 2, Loss: 4}, {Step: 3, Loss: 3}, {Step: 4, Loss: 2}}
	const (
		saved = "!0: 02:22:37 INF checkpoint saved bytes=9 steps=2"
		again = "!launch: rank 1 on vm: the rank died; status 137 (SIGKILL) after 3 s; restart 1 of 3 in 1s, from " +
			"step 2, the newest checkpoint in d"
		one   = `{"step":1,"loss":5}`
		two   = `{"step":2,"loss":4}`
		three = `{"step":3,"loss":3}`
		four  = `{"step":4,"loss":2}`
		end   = `{"summary":true,"loss_last":2}`
	)
	for _, tc := range []struct {
		what   string
		lines  []string
		took   time.Duration
		differ float64
		err    string
	}{
		{"killed", []string{one, saved, two, again, three, four, end}, 2, 0, ""},
		{"a step comes late", []string{one, saved, two, three, again, two, three, four, end}, 4, 0, ""},
		{"another loss", []string{one, saved, two, again, three, `{"step":4,"loss":2.5}`, end}, 2, 0.5, ""},
		{"another loss, once", []string{one, saved, two, `{"step":3,"loss":3.25}`, again, three, four, end}, 3, 0.25,
			""},
		{"a step too few", []string{one, saved, two, again, three, end}, 2, 0, "step 4 was not made"},
		{"a step too many", []string{one, saved, two, again, three, `{"step":5,"loss":2}`, end}, 2, 0,
			"there is no step 5"},
		{"never saved", []string{one, two, three, four, end}, 0, 0, "the job was not killed"},
		{"not started again", []string{one, saved, two, three, four, end}, 0, 0, "the job was not killed"},
	} {
		clock, kills := time.Unix(1e9, 0), 0
		k := &killing{now: func() time.Time { return clock }, kill: func() error { kills++; return nil }}
		for _, line := range tc.lines {
			line, errs := strings.CutPrefix(line, "!")
			if err := k.hear(errs, line); err != nil {
				t.Errorf("%s: %v", tc.what, err)
			}
			clock = clock.Add(1)
		}
		differ, err := k.difference(plain)
		if tc.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tc.err) {
				t.Errorf("%s: %v, want %s", tc.what, err, tc.err)
			}
			continue
		}
		if err != nil || differ != tc.differ || k.took() != tc.took || kills != 1 {
			t.Errorf("%s: %v after %d, %d kills, %v; want %v after %d",
				tc.what, differ, k.took(), kills, err, tc.differ, tc.took)
		}
	}
}

// Among processes with the same arguments the one of the right rank is killed.
func TestKillRank(t *testing.T) {
	const program = "a program for TestKillRank"
	word := t.TempDir()
	var ranks [3]*exec.Cmd
	var inputs [3]io.Closer
	for i := range ranks {
		cmd := exec.Command("sh")
		cmd.Args = []string{program, "-c", "read line; exit 7", word} // until its standard input ends
		cmd.Env = []string{"OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_RANK=" + strconv.Itoa(i)}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		ranks[i], inputs[i] = cmd, in
	}
	if err := killRank(program, "another word", 1); err == nil {
		t.Error("a process without the word was killed")
	}
	if err := killRank(program, word, 1); err != nil {
		t.Error(err)
	}
	for i, cmd := range ranks {
		if i != 1 {
			inputs[i].Close()
		}
		_ = cmd.Wait() // how it has ended says its state
		ended := cmd.ProcessState.Sys().(syscall.WaitStatus)
		killed := ended.Signaled() && ended.Signal() == syscall.SIGKILL
		if killed != (i == 1) || !killed && ended.ExitStatus() != 7 {
			t.Errorf("rank %d: %v", i, cmd.ProcessState)
		}
	}
}
