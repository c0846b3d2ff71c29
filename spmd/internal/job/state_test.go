package job

import (
	"context"
	"os"
	"strings"
	"testing"
)

// The goroutine that runs the program is found in supervise, wherever the code of both lies. The
// one that watches over it has frames of the program too, and is no other goroutine of the program.
func TestProgramGoroutine(t *testing.T) {
	idle := make(chan struct{})
	defer close(idle)
	go waitsAside(idle)
	var run Goroutine
	var others []Goroutine
	j := New(&Flags{}, nil)
	defer j.Unmark()
	sig, err := j.supervise(make(chan os.Signal, 1), func() {}, func(context.Context) error {
		run, others = theProgram(j)
		return nil
	})
	if sig != nil || err != nil {
		t.Fatal(sig, err)
	}
	if !strings.HasPrefix(run.At, "job/state_test.go:") || run.State != "running" || !has(run, "job.theProgram ") {
		t.Errorf("the program's goroutine is %+v", run)
	}
	aside := 0
	for _, g := range others {
		if has(g, "job.TestProgramGoroutine ") && !has(g, "job.waitsAside ") {
			t.Errorf("the goroutine that watches is shown: %+v", g)
		}
		if has(g, "job.waitsAside ") {
			aside++
		}
	}
	if aside != 1 {
		t.Errorf("%d goroutines wait aside, want 1: %+v", aside, others)
	}
	if run, others := (*Job)(nil).Goroutines(); run.At != "" || !hasOne(others, "job.TestProgramGoroutine ") {
		t.Errorf("after the program %+v runs, and others are %+v", run, others)
	}
}

// A goroutine marks itself if no job runs the program.
func TestMarkProgram(t *testing.T) {
	one, two := new(Job), new(Job)
	one.MarkProgram()
	defer one.Unmark()
	marked, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	go func() {
		two.MarkProgram()
		defer two.Unmark()
		close(marked)
		runsAnother(end)
	}()
	<-marked
	if run, others := theProgram(one); hasOne(others, "job.runsAnother ") || has(run, "job.runsAnother ") {
		t.Errorf("the program of another job is shown as this one's: %+v, others %+v", run, others)
	}
	if run, others := theProgram(two); !has(run, "job.runsAnother ") || hasOne(others, "job.TestMarkProgram ") {
		t.Errorf("the other program's goroutine is %+v, others %+v", run, others)
	}
	if run, others := theProgram(one); !has(run, "job.TestMarkProgram ") || hasOne(others, "job.TestMarkProgram ") {
		t.Errorf("the program's goroutine is %+v, others %+v", run, others)
	}
}

//go:noinline
func theProgram(j *Job) (Goroutine, []Goroutine) { return j.Goroutines() }

//go:noinline
func runsAnother(end <-chan struct{}) { <-end }

//go:noinline
func waitsAside(idle <-chan struct{}) { <-idle }

func has(g Goroutine, function string) bool {
	for _, frame := range g.Stack {
		if strings.Contains(frame, function) {
			return true
		}
	}
	return false
}

func hasOne(list []Goroutine, function string) bool {
	for _, g := range list {
		if has(g, function) {
			return true
		}
	}
	return false
}
