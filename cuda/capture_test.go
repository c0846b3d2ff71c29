package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func fakeCallback(t *testing.T) {
	o := make1(t)
	var order []string
	a, b := NewCallback(func() { order = append(order, "a") }), NewCallback(func() { order = append(order, "b") })
	must(t, o.s.HostFunc(a))
	must(t, o.s.HostFunc(b))
	must(t, o.s.HostFunc(a))
	must(t, o.s.BeginCapture(ThreadLocal))
	must(t, o.s.HostFunc(b))
	must(t, o.s.HostFunc(a))
	g := try(o.s.EndCapture())(t)
	x := try(g.Instantiate())(t)
	must(t, x.Launch(o.s))
	must(t, x.Launch(o.s))
	a.Close()
	a.Close()
	must(t, x.Launch(o.s)) // without a
	if got := strings.Join(order, ""); got != "aba"+"baba"+"b" {
		t.Errorf("called in the order %s", got)
	}
	must(t, errors.Join(x.Close(), g.Close(), o.close()))
}

func fakeGraph(t *testing.T) {
	o := make1(t)
	host := unsafe.Slice((*byte)(o.h), 64)
	capture := func(m CaptureMode, v uint64, nodes int) *Graph {
		t.Helper()
		must(t, o.s.BeginCapture(m))
		if on := try(o.s.Capturing())(t); !on {
			t.Error("not capturing")
		}
		must(t, o.s.Fill(o.p, 1, v, 64))
		must(t, o.s.Launch(o.k, [3]int{1, 1, 1}, [3]int{1, 1, 1}, 0, []uint64{v}))
		if nodes > 2 {
			must(t, o.s.Copy(o.h, o.p, 64))
		}
		g := try(o.s.EndCapture())(t)
		if n := try(g.Nodes())(t); n != nodes {
			t.Errorf("%d nodes, want %d", n, nodes)
		}
		if on := try(o.s.Capturing())(t); on {
			t.Error("still capturing")
		}
		return g
	}
	clear(host)
	g := capture(Global, 7, 3)
	if host[0] != 0 {
		t.Error("a captured copy has run")
	}
	x := try(g.Instantiate())(t)
	must(t, g.Close())
	log := logOf(t)
	must(t, x.Launch(o.s))
	if host[0] != 7 || host[63] != 7 {
		t.Errorf("after the launch the memory holds %d", host[0])
	}
	lines := strings.Join(log(), "\n")
	for _, want := range []string{"replay cuMemsetD8Async", "replay cuLaunchKernel", "args=0x7 =",
		"replay cuMemcpyAsync"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, lines)
		}
	}
	g = capture(ThreadLocal, 9, 3)
	small := capture(Relaxed, 1, 2)
	must(t, errors.Join(g.Close(), g.Close(), small.Close(), x.Close(), x.Close(), o.close()))
}

// Records in a graph say how long its parts take, in the runs of the graphs made from it with them,
// and in no other.
func fakeGraphRecords(t *testing.T) {
	o := make1(t)
	side := try(o.d.NewStream(0))(t)
	var events []*Event
	var ends [][]Node
	event := func() *Event {
		events = append(events, try(o.d.NewTimedEvent())(t))
		return events[len(events)-1]
	}
	one := [3]int{1, 1, 1}
	part := func(s *Stream, seconds int) {
		t.Helper()
		k := try(o.m.Function(fmt.Sprintf("lasts_%d", seconds)))(t)
		must(t, s.Launch(k, one, one, 0, nil))
		list := make([]Node, 4)
		ends = append(ends, list[:try(s.CaptureEnds(list))(t)])
	}
	_, err := o.s.CaptureEnds(nil)
	wantError(t, err, "cuStreamGetCaptureInfo", ErrInvalidValue) // it is not captured
	must(t, o.s.BeginCapture(Relaxed))
	if n := try(o.s.CaptureEnds(nil))(t); n != 0 {
		t.Errorf("%d nodes before the first", n)
	}
	part(o.s, 3)
	must(t, o.e.Record(o.s))
	must(t, side.Wait(o.e))
	part(side, 5)
	part(o.s, 2)
	must(t, o.f.Record(side))
	must(t, o.s.Wait(o.f))
	list := make([]Node, 2)
	if n := try(o.s.CaptureEnds(list))(t); n != 2 || list[0] != ends[2][0] || list[1] != ends[1][0] {
		t.Errorf("%d ends %v of %v", n, list, ends)
	}
	_, err = o.s.CaptureEnds(list[:1])
	wantError(t, err, "cuStreamGetCaptureInfo", ErrInvalidValue) // no room
	part(o.s, 4)
	g := try(o.s.EndCapture())(t)
	plain := try(g.Instantiate())(t)
	follow := func(of Node) []Node {
		list := make([]Node, 4)
		return list[:try(g.Followers(of, list))(t)]
	}
	_, err = g.Followers(ends[0][0], list[:1])
	wantError(t, err, "cuGraphNodeGetDependentNodes", ErrInvalidValue) // no room
	before := [][]Node{follow(0)}
	for _, after := range ends {
		before = append(before, follow(after[0]))
	}
	want := [][]Node{ends[0], {ends[1][0], ends[2][0]}, ends[3], ends[3], {}}
	if fmt.Sprint(before) != fmt.Sprint(want) {
		t.Errorf("followers %v, want %v", before, want)
	}
	beside := try(o.d.NewTimedEvent())(t)
	must(t, g.Records(event(), nil, before[0]))
	for i, after := range ends {
		must(t, g.Records(event(), after, before[i+1]))
	}
	must(t, g.Records(beside, ends[0], nil))
	if n := try(g.Nodes())(t); n != 10 {
		t.Errorf("%d nodes, want 4 and 6 records", n)
	}
	timed := try(g.Instantiate())(t)
	must(t, errors.Join(g.Close(), plain.Launch(o.s)))
	if _, err := events[1].Elapsed(events[0]); err == nil {
		t.Error("the plain graph records")
	}
	for range 2 {
		must(t, errors.Join(timed.Launch(o.s), o.s.Synchronize()))
		at := time.Duration(0)
		for i, seconds := range []int{3, 5, 2, 4} { // the double runs them one after the other, as they were captured
			at += time.Duration(seconds) * time.Second
			if got := try(events[i+1].Elapsed(events[0]))(t); got.Round(time.Second) != at {
				t.Errorf("part %d ends after %v, want %v", i, got, at)
			}
		}
	}
	if got := try(beside.Elapsed(events[1]))(t); got.Round(time.Second) != 11*time.Second {
		t.Errorf("a record beside the others' way comes %v later, want 11 s", got)
	}
	for _, e := range append(events, beside) {
		must(t, e.Close())
	}
	must(t, errors.Join(plain.Close(), timed.Close(), side.Close(), o.close()))
}

func fakeCaptureEnds(t *testing.T) {
	o := make1(t)
	idle := func() {
		t.Helper()
		if on := try(o.s.Capturing())(t); on {
			t.Fatal("still capturing")
		}
		must(t, o.s.Synchronize())
	}
	must(t, o.s.Abandon()) // nothing to abandon

	must(t, o.s.BeginCapture(ThreadLocal))
	must(t, o.s.Fill(o.p, 1, 0, 64))
	must(t, o.s.Abandon())
	idle()

	for _, end := range []func(){
		func() { must(t, o.s.Abandon()) },
		func() { _, err := o.s.EndCapture(); wantError(t, err, "cuStreamEndCapture", ErrCaptureInvalidated) },
	} {
		must(t, o.s.BeginCapture(ThreadLocal))
		_, err := o.d.Malloc(1)
		wantError(t, err, "cuMemAlloc", ErrCaptureUnsupported)
		if on := try(o.s.Capturing())(t); !on {
			t.Error("an invalidated capture has to be ended, too")
		}
		end()
		idle()
	}

	// A second stream joins by an event, and has to come back by one.
	side := try(o.d.NewStream(0))(t)
	fork := func(join bool) {
		t.Helper()
		must(t, o.s.BeginCapture(Relaxed))
		must(t, o.e.Record(o.s))
		must(t, side.Wait(o.e))
		must(t, side.Fill(o.p, 1, 3, 64))
		must(t, o.f.Record(side))
		if join {
			must(t, o.s.Wait(o.f))
		}
	}
	fork(true)
	g := try(o.s.EndCapture())(t)
	if n := try(g.Nodes())(t); n != 1 {
		t.Errorf("%d nodes", n)
	}
	must(t, g.Close())
	fork(false)
	_, err := o.s.EndCapture()
	wantError(t, err, "cuStreamEndCapture", ErrCaptureUnjoined)
	idle()
	fork(false)
	must(t, o.s.Abandon())
	idle()
	must(t, errors.Join(side.Close(), o.close()))
}

func fakeCaptureThread(t *testing.T) {
	o := make1(t)
	for _, m := range []CaptureMode{Global, ThreadLocal} {
		must(t, o.s.BeginCapture(m))
		// The thread keeps this goroutine: without that, waiting for others would soon move it.
		thread := syscall.Gettid()
		for range 100 {
			c := make(chan bool)
			for range 4 {
				go func() { runtime.Gosched(); c <- true }()
			}
			for range 4 {
				<-c
			}
			if syscall.Gettid() != thread {
				t.Fatal("the goroutine has left the thread of the capture")
			}
		}
		must(t, try(o.s.EndCapture())(t).Close())

		must(t, o.s.BeginCapture(m))
		must(t, onFreshThread(func() error {
			_, err := o.s.EndCapture()
			wantError(t, err, "cuStreamEndCapture", ErrCaptureWrongThread)
			return nil
		}))
		if !o.s.locked {
			t.Error("the end on another thread has untied nothing, but is taken for it")
		}
		must(t, o.s.Abandon())
		if o.s.locked {
			t.Error("after Abandon the goroutine is still tied to its thread")
		}
		_, err := o.s.EndCapture()
		wantError(t, err, "cuStreamEndCapture", ErrIllegalState)
	}
	must(t, o.s.BeginCapture(Relaxed))
	must(t, onFreshThread(func() error { return try(o.s.EndCapture())(t).Close() }))
	must(t, o.close())
}
