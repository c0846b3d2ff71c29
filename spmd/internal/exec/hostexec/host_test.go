package hostexec

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/internal/trace"
)

// device returns a device for a test, and where it keeps the failures that it is told of.
func device(t *testing.T) (*Host, *[]error) {
	t.Helper()
	var mu sync.Mutex
	failures := &[]error{}
	d := NewDevice(control.NewTickets(), func(err error) {
		mu.Lock()
		defer mu.Unlock()
		*failures = append(*failures, err)
	})
	t.Cleanup(func() { must(t, d.Close()) })
	return d, failures
}

var must = testkit.Must

func newQueueOf(t *testing.T, d *Host, name string) exec.Queue {
	t.Helper()
	q, err := d.NewQueue(name, exec.Normal)
	must(t, err)
	return q
}

// do enqueues a function.
func do(t *testing.T, q exec.Queue, fn func() error) {
	t.Helper()
	c, err := q.Begin(exec.DoFunc)
	must(t, err)
	c.Func = fn
	must(t, q.Enqueue(c))
}

// call is a double of a call of a communicator: it notes its turns.
type call struct {
	made  *uint64 // calls of all queues so far, which take turns
	turns []uint64
}

func (c *call) Run(*trace.Thread) error {
	c.turns = append(c.turns, *c.made)
	*c.made++
	return nil
}

func (c *call) Issue(exec.Issuer, uint64, unsafe.Pointer) error             { return errors.New("this is no GPU") }
func (c *call) String() string                                              { return "a call" }
func (c *call) Touches(func(*exec.Block, unsafe.Pointer, int, bool)) string { return c.String() }
func (c *call) Captured([]exec.Party) []exec.Party                          { return nil }
func (c *call) Traced() *trace.Ledger                                       { return nil }

// Commands of a queue run in the order in which they were enqueued, far more of them than the ring
// holds at first, while the first still runs.
func TestOrder(t *testing.T) {
	d, _ := device(t)
	q := newQueueOf(t, d, "q")
	const n = 1000
	hold := make(chan struct{})
	do(t, q, func() error { <-hold; return nil })
	var got []int
	for i := range n {
		do(t, q, func() error { got = append(got, i); return nil })
	}
	s, busy := q.State()
	if !busy || s.Waiting != n+1 || s.Command != "HostFunc" || !strings.HasPrefix(s.At, "from ") || q.Idle() {
		t.Errorf("%+v, busy %v", s, busy)
	}
	if ends := d.Marks(); len(ends) != 1 || ends[0] != q.End() {
		t.Errorf("marks %v", ends)
	}
	close(hold)
	must(t, q.End().Wait())
	if len(got) != n || !slices.IsSorted(got) {
		t.Errorf("%d commands ran, in order: %v", len(got), slices.IsSorted(got))
	}
	if s, busy := q.State(); busy || len(d.Marks()) != 0 || q.Passed() != n+1 {
		t.Errorf("%+v, %d marks, %d passed", s, len(d.Marks()), q.Passed())
	}
}

// A queue that waits for a point of another runs behind it. A timer has the time at which its queue
// got there.
func TestPointsAndEvents(t *testing.T) {
	d, _ := device(t)
	a, b := newQueueOf(t, d, "a"), newQueueOf(t, d, "b")
	before, after := d.NewTimer(), d.NewTimer()
	hold := make(chan struct{})
	first := false
	_, err := before.Record(b)
	must(t, err)
	do(t, a, func() error { <-hold; first = true; return nil })
	must(t, b.After(a.End(), nil))
	seen := false
	do(t, b, func() error { seen = first; return nil })
	at, err := after.Record(b)
	must(t, err)
	if done, err := after.Passed(at); done || err != nil {
		t.Errorf("passed before it was: %v, %v", done, err)
	}
	start := time.Now()
	close(hold)
	must(t, after.Wait(at))
	took, err := after.Since(before)
	if must(t, err); !seen || took <= 0 || took > time.Since(start)+time.Minute {
		t.Errorf("b ran behind a: %v; %v between the events", seen, took)
	}
}

// A failure stops its queue, with the place in the error, and not what came before. Others that
// wait learn of it.
func TestFailure(t *testing.T) {
	d, failures := device(t)
	a, b := newQueueOf(t, d, "a"), newQueueOf(t, d, "b")
	hold := make(chan struct{})
	do(t, a, func() error { <-hold; return nil })
	good := a.End()
	broken := errors.New("broken")
	do(t, a, func() error { return broken })
	do(t, a, func() error { t.Error("what follows a failure runs"); return nil })
	must(t, b.After(a.End(), nil))
	close(hold)
	err := a.End().Wait()
	const place = `stream "a", command enqueued at hostexec/host_test.go:`
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), place) {
		t.Errorf("%v", err)
	}
	must(t, good.Wait())
	if err := b.End().Wait(); !errors.Is(err, broken) {
		t.Errorf("who waits gets %v", err)
	}
	if _, err := a.Begin(exec.DoFunc); !errors.Is(err, broken) {
		t.Errorf("the next command gets %v", err)
	}
	c := newQueueOf(t, d, "c")
	do(t, c, func() error { panic("help") })
	testkit.Refused(t, c.End().Wait(), "panic: help")
	if n := len(*failures); n != 3 || !errors.Is((*failures)[0], broken) {
		t.Errorf("told of %v", *failures)
	}
}

// Calls take their turns in the order in which they were enqueued, whatever their queues. Those of
// a graph take theirs at each replay, together, and its lanes keep the order of its nodes.
func TestTurnsAndGraphs(t *testing.T) {
	d, _ := device(t)
	a, b := newQueueOf(t, d, "a"), newQueueOf(t, d, "b")
	var made uint64
	enqueue := func(q exec.Queue, c *call) {
		t.Helper()
		c.made = &made
		slot, err := q.Begin(exec.DoCall)
		must(t, err)
		slot.Call = c
		must(t, q.Enqueue(slot))
	}
	var firstA, firstB, onA, onB, last call
	enqueue(a, &firstA)
	enqueue(b, &firstB)
	capture, err := exec.NewCapture(d.NewBuilder(), a)
	must(t, err)
	var trace []string
	var mu sync.Mutex
	say := func(what string) func() error {
		return func() error {
			mu.Lock()
			defer mu.Unlock()
			trace = append(trace, what)
			return nil
		}
	}
	do(t, a, say("a"))
	enqueue(a, &onA)
	fork, err := a.Lane().Record()
	must(t, err)
	must(t, capture.Wait(b, fork))
	do(t, b, say("b"))
	enqueue(b, &onB)
	const alone = `stream "b" was joined to the capture of "a" and not waited for again`
	if err := capture.Joined(); err == nil || !strings.Contains(err.Error(), alone) {
		t.Errorf("%v", err)
	}
	join, err := b.Lane().Record()
	must(t, err)
	must(t, capture.Wait(a, join))
	do(t, a, say("end"))
	must(t, capture.Joined())
	must(t, capture.End(true))
	if a.Lane() != nil || b.Lane() != nil || len(trace) != 0 {
		t.Fatalf("after the capture: lanes %v, %v; %v ran", a.Lane(), b.Lane(), trace)
	}
	const replays = 20
	for range replays {
		must(t, capture.Launch(a))
	}
	enqueue(a, &last)
	must(t, errors.Join(a.End().Wait(), b.End().Wait()))
	if want := slices.Repeat([]string{"a", "b", "end"}, replays); !slices.Equal(trace, want) {
		t.Errorf("%v", trace)
	}
	for i := range replays {
		if onA.turns[i] != uint64(2+2*i) || onB.turns[i] != uint64(3+2*i) {
			t.Errorf("replay %d has turns %d and %d", i, onA.turns[i], onB.turns[i])
		}
	}
	if !slices.Equal(firstA.turns, []uint64{0}) || !slices.Equal(firstB.turns, []uint64{1}) ||
		!slices.Equal(last.turns, []uint64{2 + 2*replays}) {
		t.Errorf("turns %v and %v before the graph, %v behind it", firstA.turns, firstB.turns, last.turns)
	}
	must(t, capture.Drop(d))
}

// Scratch memory of a queue is one block until more is asked for. A capture has its own, which the
// graph keeps.
func TestScratch(t *testing.T) {
	d, _ := device(t)
	q := newQueueOf(t, d, "q")
	get := func(n int) *exec.Block {
		t.Helper()
		b, err := q.Scratch(n)
		must(t, err)
		return b
	}
	small := get(100)
	if get(50) != small || get(1<<20) == small {
		t.Error("memory that is large enough is taken again, and only that")
	}
	own := get(1 << 20)
	capture, err := exec.NewCapture(d.NewBuilder(), q)
	must(t, err)
	if first, more := get(100), get(1<<20); first == own || more == own || first == more {
		t.Error("a capture shares memory")
	}
	must(t, capture.End(false))
	before := d.pool.InUse()
	must(t, capture.Drop(d))
	if kept := before - d.pool.InUse(); kept < 1<<20+100 || kept > 2<<20 {
		t.Errorf("the graph has kept %d bytes, want those of two blocks", kept)
	}
	if get(100) != own {
		t.Error("the queue has lost its memory")
	}
}

// Fill agrees with a loop, for each size of elements, and beyond what one goroutine does.
func TestFillAs(t *testing.T) {
	for _, typ := range []elem.Type{elem.Int8, elem.Float16, elem.Float32, elem.Float64, elem.Complex128} {
		for _, n := range []int{0, 1, 7, Grain + 1, 3*Grain + 5} {
			size := typ.Size()
			v := elem.Bits{0x0123456789abcdef, 0xfedcba9876543210}
			buf := make([]byte, (n+1)*size)
			FillAs(typ, unsafe.Pointer(&buf[0]), n, v)
			for i := range n {
				for j := range size {
					if want := byte(v[j/8] >> (8 * (j % 8))); buf[i*size+j] != want {
						t.Fatalf("%v: byte %d of element %d of %d is %#x, want %#x", typ, j, i, n, buf[i*size+j], want)
					}
				}
			}
			if end := buf[n*size:]; slices.ContainsFunc(end, func(b byte) bool { return b != 0 }) {
				t.Errorf("%v: wrote behind %d elements", typ, n)
			}
		}
	}
}

// What computes looks for its rank's cores, once in a while, and nothing else does.
func TestNear(t *testing.T) {
	d, _ := device(t)
	looks := 0
	d.Near = func() { looks++ }
	q := newQueueOf(t, d, "q").(*queue)
	expect := func(want int, what string) {
		t.Helper()
		must(t, q.End().Wait())
		if looks != want {
			t.Errorf("%s: %d looks, want %d", what, looks, want)
		}
	}
	compute := func() {
		c, err := q.Begin(exec.DoKernel)
		must(t, err)
		c.Kernel = exec.NewKernel("nothing", kernels.Source{}, func(exec.Args) error { return nil })
		must(t, q.Enqueue(c))
	}
	do(t, q, func() error { return nil })
	expect(0, "a function of the host")
	compute()
	expect(1, "a kernel")
	q.looked.Store(time.Now().Add(time.Hour).UnixNano())
	compute()
	expect(1, "a kernel soon after")
	q.looked.Store(time.Now().Add(-time.Hour).UnixNano())
	compute()
	expect(2, "a kernel long after")
}
