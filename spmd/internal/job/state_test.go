package job

import (
	"context"
	"os"
	"strings"
	"testing"
)

// The goroutine that runs the program is found in supervise, wherever the code of both lies; the one that watches over it
// has frames of the program too, and is no other goroutine of the program.
func TestProgramGoroutine(t *testing.T) {
	idle := make(chan struct{})
	defer close(idle)
	go waitsAside(idle)
	var run Goroutine
	var others []Goroutine
	sig, err := New(&Config{}, nil).supervise(make(chan os.Signal, 1), func(context.Context) error {
		run, others = theProgram()
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
	if run, others := Goroutines(); run.At != "" || !hasOne(others, "job.TestProgramGoroutine ") {
		t.Errorf("after the program %+v runs, and others are %+v", run, others)
	}
}

// A goroutine marks itself where no job runs the program.
func TestMarkProgram(t *testing.T) {
	MarkProgram()
	defer programMark.Store(nil)
	if run, others := theProgram(); !has(run, "job.TestMarkProgram ") || hasOne(others, "job.TestMarkProgram ") {
		t.Errorf("the program's goroutine is %+v, others %+v", run, others)
	}
}

//go:noinline
func theProgram() (Goroutine, []Goroutine) { return Goroutines() }

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
