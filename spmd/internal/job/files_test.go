package job

import (
	"errors"
	"io/fs"
	"testing"
	"time"
)

// A step is known from its begin to its end, also to a question for steps that began later.
func TestOldest(t *testing.T) {
	before := time.Now().Add(-time.Second)
	boom := errors.New("boom")
	var w FileWork
	err := w.Do("outer", func() error {
		middle := time.Now()
		for !time.Now().After(middle) { // a clock may stand still for a while
		}
		return w.Do("inner", func() error {
			if s := w.Oldest(before); s == nil || s.What != "outer" {
				t.Errorf("oldest %+v, want the outer step", s)
			}
			if s := w.Oldest(middle); s == nil || s.What != "inner" {
				t.Errorf("oldest since %v: %+v, want the inner step", middle, s)
			}
			if s := w.Oldest(time.Now().Add(time.Hour)); s != nil {
				t.Errorf("a step of the future: %+v", s)
			}
			return boom
		})
	})
	if err != boom {
		t.Errorf("%v, want what the step returned", err)
	}
	if s := w.Oldest(time.Time{}); s != nil {
		t.Errorf("%+v is left", s)
	}
}

func TestFault(t *testing.T) {
	defer func() { FileFault = nil }()
	full := errors.New("full")
	var w FileWork
	FileFault = func(op, path string) error {
		if s := w.Oldest(time.Time{}); s == nil || s.What != op+" of "+path {
			t.Errorf("in the fault of %s of %s the step is %+v", op, path, s)
		}
		if op == "sync" {
			return full
		}
		return nil
	}
	done := 0
	change := func(op string) error { return w.Change(op, "/x", func() error { done++; return nil }) }
	if err := change("write"); err != nil || done != 1 {
		t.Errorf("%v, %d changes", err, done)
	}
	var p *fs.PathError
	if err := change("sync"); !errors.Is(err, full) || !errors.As(err, &p) || p.Op != "sync" ||
		p.Path != "/x" || done != 1 {
		t.Errorf("%v, %d changes, want the fault and one", err, done)
	}
}

// A rank waits for files in a call of the program, while it is not in one of MPI, for as long as
// the limits allow.
func TestWaiting(t *testing.T) {
	const long, over = time.Hour, -1 // a limit that every step has exceeded
	for _, tc := range []struct {
		name            string
		limit, patience time.Duration
		step            string // that the rank is in, or between two
		meets           bool
		want            *FileState
	}{
		{"in a step", long, long, "sync of x", false, &FileState{What: "sync of x", Waits: true}},
		{"in a step for too long", over, long, "sync of x", false, &FileState{What: "sync of x"}},
		{"in a step of another goroutine", long, long, "sync of x", true, &FileState{What: "sync of x"}},
		{"between two", long, long, "", false, &FileState{What: "work between two steps on files", Waits: true}},
		{"between two for too long", long, over, "", false, &FileState{What: "work between two steps on files"}},
		{"in a collective", long, long, "", true, nil},
	} {
		w := &FileWork{Patience: tc.patience}
		if w.Used() || w.State(false) != nil {
			t.Fatalf("%s: used before its first call, and says %v", tc.name, w.State(false))
		}
		leave := w.Enter(tc.limit)
		var got *FileState
		look := func() error { got = w.State(tc.meets); return nil }
		if tc.step == "" {
			_ = look()
		} else if err := w.Do(tc.step, look); err != nil {
			t.Fatal(err)
		}
		if got != nil {
			if got.Seconds < 0 || got.Seconds > 3600 {
				t.Errorf("%s: for %v s", tc.name, got.Seconds)
			}
			got.Seconds = 0
		}
		if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
		leave()
		if !w.Used() {
			t.Errorf("%s: not used after a call", tc.name)
		}
	}

	// The others have waited as long as a long call took: the rank has as long to come. After a
	// short one there is nothing.
	w := &FileWork{}
	leave := w.Enter(long)
	for start := time.Now(); !time.Now().After(start); { // longer than half of no patience
	}
	leave()
	w.Patience = long
	if s := w.State(false); s == nil || s.What != "work after long steps on files" || !s.Waits {
		t.Errorf("after a long call: %+v", s)
	}
	w = &FileWork{Patience: long}
	w.Enter(long)()
	if s := w.State(false); s != nil {
		t.Errorf("after a short call: %+v", s)
	}
}
