package cudaexec

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/internal/trace"
)

// here is the place of a command of these tests in an error.
const here = ", command enqueued at cudaexec/fake_test.go:"

// TestFake runs on the double of libcuda, which has two GPUs. Its streams run on threads of their
// own.
func TestFake(t *testing.T) {
	env := []string{"FAKECUDA_DEVICES=2", "FAKECUDA_DELAY=200"}
	testkit.RunWithLibraries(t, func(dir string) { testkit.BuildCUDA(t, dir) }, env, func(t *testing.T) {
		must(t, cuda.Load())
		t.Run("several GPUs", severalGPUs)
		t.Run("calls in order", callsInOrder)
		t.Run("graphs", graphs)
		t.Run("parts of graphs", partsOfGraphs)
		t.Run("a function that ends its goroutine", exits)
		t.Run("never waited for", neverWaitedFor)
		t.Run("replays never waited for", replaysNeverWaitedFor)
		t.Run("failure", failureOfHostFunc)
		t.Run("closed event", closedEvent)
	})
}

var must = testkit.Must

// world returns a GPU as a world of its own works on it, until the test ends.
func world(t *testing.T, index int) *CUDA {
	t.Helper()
	g, err := Open(index)
	must(t, err)
	d := NewDevice(g, exec.NewKernel("fill", kernels.Source{}, nil), control.NewTickets(), func(error) {})
	must(t, d.OpenStaging())
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func queueOf(t *testing.T, d *CUDA, name string) *Queue {
	t.Helper()
	q, err := d.NewQueue(name, exec.Normal)
	must(t, err)
	return q.(*Queue)
}

// memory returns n numbers of device memory, which are v.
func memory(t *testing.T, d *CUDA, n int, v float32) unsafe.Pointer {
	t.Helper()
	var b exec.Block
	must(t, d.Pools().Device.Alloc(&b, 4*n))
	must(t, d.ToDevice(b.Ptr, unsafe.Pointer(&slices.Repeat([]float32{v}, n)[0]), 4*n))
	return b.Ptr
}

func read(t *testing.T, d *CUDA, p unsafe.Pointer, n int) []float32 {
	t.Helper()
	got := make([]float32, n)
	must(t, d.ToHost(unsafe.Pointer(&got[0]), p, 4*n))
	return got
}

// copies enqueues a copy of n numbers.
func copies(t *testing.T, q *Queue, dst, src unsafe.Pointer, n int) {
	t.Helper()
	c, err := q.Begin(exec.DoCopy)
	must(t, err)
	c.Dst, c.Src, c.N = dst, src, 4*n
	must(t, q.Enqueue(c))
}

// Two worlds of a process work on a GPU each at the same time, and a third shares one of them.
func severalGPUs(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			t.Run(fmt.Sprint("world ", i), func(t *testing.T) {
				const n, rounds = 1 << 15, 20 // together more than a half of the staging memory
				d := world(t, i%2)
				if d.GPU.Dev.Index() != i%2 {
					t.Errorf("world %d is on GPU %d", i, d.GPU.Dev.Index())
				}
				a, b := queueOf(t, d, "a"), queueOf(t, d, "b")
				x, y := memory(t, d, n, float32(i+1)), memory(t, d, n, 0)
				zero, all := memory(t, d, n, 0), memory(t, d, rounds*n, 0)
				e := d.NewTimer()
				var at exec.Point
				for r := range rounds { // b takes what a has written, and takes it away
					copies(t, a, y, x, n)
					var err error
					at, err = e.Record(a)
					must(t, err)
					must(t, b.After(at, e))
					copies(t, b, unsafe.Add(all, 4*r*n), y, n)
					copies(t, b, y, zero, n)
					must(t, a.After(b.End(), nil))
				}
				must(t, b.End().Wait())
				for j, v := range read(t, d, all, rounds*n) {
					if v != float32(i+1) {
						t.Fatalf("world %d: [%d] of round %d = %v", i, j%n, j/n, v)
					}
				}
				if done, err := e.Passed(at); !done || err != nil {
					t.Errorf("the event has passed: %v, %v", done, err)
				}
			})
		}()
	}
	wg.Wait()
	if len(open) != 0 {
		t.Errorf("%d GPUs are open when all worlds are closed", len(open))
	}
}

// A queue for which other queues wait, and no host, does not collect events: a step costs no new
// ones.
func neverWaitedFor(t *testing.T) {
	d := world(t, 0)
	main, side := queueOf(t, d, "main"), queueOf(t, d, "side")
	const n = 8
	x, y := memory(t, d, n, 1), memory(t, d, n, 2)
	step := func() {
		copies(t, main, y, x, n)
		must(t, side.After(main.End(), nil))
		copies(t, side, x, y, n)
		must(t, main.After(side.End(), nil))
		must(t, main.End().Wait())
	}
	for range 100 {
		step()
	}
	if got := testkit.Allocations(50, step); got != 0 {
		t.Errorf("%v allocations in a step, want none", got)
	}
	if got := len(side.marks); got > pile {
		t.Errorf("the side queue holds %d events after 201 steps, want at most %d", got, pile)
	}

	// Where the GPU is behind, none is dropped that may be waited for.
	first := side.End()
	for range 3 * pile {
		copies(t, main, y, x, n)
		must(t, side.After(main.End(), nil))
		copies(t, side, x, y, n)
		must(t, main.After(side.End(), nil))
	}
	must(t, first.Wait())
	must(t, side.End().Wait())
	if got := side.known.Load(); got != side.tail.Load() {
		t.Errorf("%d of %d commands are known to have run", got, side.tail.Load())
	}
}

// fakeCall is a double of a call of a communicator: a copy on the stream.
type fakeCall struct {
	by       any
	dst, src unsafe.Pointer
	n        int
	numbers  []uint64 // of its commands
	replays  []string
}

func (c *fakeCall) Run(*trace.Thread) error        { return errors.New("this is no host") }
func (c *fakeCall) String() string                 { return "a call" }
func (c *fakeCall) Traced() *trace.Ledger          { return nil }
func (c *fakeCall) Closed() bool                   { return false }
func (c *fakeCall) Replays(q exec.Queue, _ uint64) { c.replays = append(c.replays, q.Name()) }

func (c *fakeCall) Touches(func(*exec.Block, unsafe.Pointer, int, bool)) string { return c.String() }
func (c *fakeCall) Captured([]exec.Party) []exec.Party                          { return []exec.Party{c} }

func (c *fakeCall) Issue(q exec.Issuer, seq uint64, work unsafe.Pointer) error {
	if work == nil {
		return errors.New("no scratch memory")
	}
	c.numbers = append(c.numbers, seq)
	return q.Stream().Copy(c.dst, c.src, 4*c.n)
}

func enqueue(t *testing.T, q *Queue, c *fakeCall) {
	t.Helper()
	slot, err := q.Begin(exec.DoCall)
	must(t, err)
	slot.Call, slot.Plan = c, &exec.Plan{By: c.by, Bytes: 1000, Size: 2,
		What: &coll.Call{Kind: coll.AllReduce, Type: elem.Float32, N: c.n}}
	must(t, q.Enqueue(slot))
}

// Calls on two streams that nobody orders run one after the other, in the order in which they were
// enqueued. So does a graph of them.
func callsInOrder(t *testing.T) {
	const n = 1 << 16
	d := world(t, 0)
	a, b := queueOf(t, d, "a"), queueOf(t, d, "b")
	x, y, z := memory(t, d, n, 7), memory(t, d, n, 0), memory(t, d, n, 0)
	first, second := &fakeCall{dst: y, src: x, n: n}, &fakeCall{by: "somebody", dst: z, src: y, n: n}
	both := func() {
		enqueue(t, a, first)
		enqueue(t, b, second)
	}
	check := func(what string) {
		t.Helper()
		must(t, errors.Join(a.End().Wait(), b.End().Wait()))
		for i, v := range read(t, d, z, n) {
			if v != 7 {
				t.Fatalf("%s: [%d] = %v: the second call did not wait for the first", what, i, v)
			}
		}
		must(t, d.SetAll(elem.Float32, y, n, elem.Bits{}))
		must(t, d.SetAll(elem.Float32, z, n, elem.Bits{}))
	}
	const rounds = 20
	for range rounds {
		both()
		check("enqueued")
	}
	if n := second.numbers; len(n) != rounds || n[0] == 0 || !slices.IsSorted(n) || len(second.replays) != 0 {
		t.Errorf("the calls are commands number %v of their queue; replays %q", n, second.replays)
	}
	if passed, busy := b.Position(); busy || b.Stuck(time.Now(), 0) {
		t.Errorf("b is at %d, busy %v", passed, busy)
	}
	capture, err := exec.NewCapture(d.NewBuilder(), a)
	must(t, err)
	fork, err := a.Lane().Record()
	must(t, err)
	must(t, capture.Wait(b, fork))
	both()
	join, err := b.Lane().Record()
	must(t, err)
	must(t, capture.Wait(a, join))
	must(t, capture.Joined())
	must(t, capture.End(true))
	for range rounds {
		must(t, capture.Launch(b))
		check("in a graph")
	}
	if got := second.numbers[rounds:]; !slices.Equal(got, []uint64{0}) {
		t.Errorf("the captured call is command number %v", got)
	}
	if len(second.replays) != rounds || second.replays[0] != "b" {
		t.Errorf("replays: %q", second.replays)
	}
	must(t, capture.Drop(d))
	d.GPU.Forget("somebody")
}

// A function of the host in a graph runs at each replay, in the order of the stream. Its failure is
// that of the queue on which it is replayed.
func graphs(t *testing.T) {
	const n, replays = 1 << 10, 10
	d := world(t, 1)
	a, b := queueOf(t, d, "a"), queueOf(t, d, "b")
	x, y := memory(t, d, n, 3), memory(t, d, n, 0)
	broken := errors.New("broken")
	runs := 0
	capture, err := exec.NewCapture(d.NewBuilder(), a)
	must(t, err)
	copies(t, a, y, x, n)
	c, err := a.Begin(exec.DoFunc)
	must(t, err)
	c.Func = func() error {
		if runs++; runs > replays {
			return broken
		}
		return nil
	}
	must(t, a.Enqueue(c))
	must(t, capture.End(true))
	if v := read(t, d, y, 1)[0]; runs != 0 || v != 0 {
		t.Fatalf("the capture ran: %d, %v", runs, v)
	}
	launch := func() {
		t.Helper()
		must(t, capture.Launch(b))
	}
	for range replays {
		launch()
	}
	must(t, b.End().Wait())
	if v := read(t, d, y, n)[n-1]; runs != replays || v != 3 {
		t.Errorf("%d runs, [%d] = %v", runs, n-1, v)
	}
	good := b.End()
	launch()
	if err := b.End().Wait(); !errors.Is(err, broken) || !strings.Contains(err.Error(), `stream "b"`+here) {
		t.Errorf("%v", err)
	}
	must(t, good.Failure())
	must(t, a.End().Wait()) // on which it was captured
	capture.Last = good
	must(t, capture.Drop(d))
}

// A function of the host that ends its goroutine fails the queue. On the driver's thread it would
// end the process.
func exits(t *testing.T) {
	d := world(t, 1)
	q := queueOf(t, d, "q")
	c, err := q.Begin(exec.DoFunc)
	must(t, err)
	c.Func = func() error { runtime.Goexit(); return nil }
	must(t, q.Enqueue(c))
	testkit.Refused(t, q.End().Wait(), "runtime.Goexit")
}

// A graph does not collect its replays on queues that nobody waits for. A failure in one of them is
// told of its queue.
func replaysNeverWaitedFor(t *testing.T) {
	d := world(t, 1)
	a, sides := queueOf(t, d, "a"), []*Queue{queueOf(t, d, "b"), queueOf(t, d, "c")}
	broken := errors.New("broken")
	fails := false
	capture, err := exec.NewCapture(d.NewBuilder(), a)
	must(t, err)
	c, err := a.Begin(exec.DoFunc)
	must(t, err)
	c.Func = func() error {
		if fails {
			return broken
		}
		return nil
	}
	must(t, a.Enqueue(c))
	must(t, capture.End(true))
	launch := func(q *Queue) {
		t.Helper()
		must(t, capture.Launch(q))
	}
	for i := range 10 * pile {
		launch(sides[i%2])
		if i%8 == 7 {
			must(t, d.GPU.Dev.Synchronize()) // which tells no queue anything
		}
	}
	if n := len(capture.Replay.(*graph).replaying()); n > 4*pile {
		t.Errorf("%d replays of two queues may be running, want at most %d", n, 4*pile)
	}
	must(t, sides[0].End().Wait())
	fails = true
	launch(sides[1])
	must(t, d.GPU.Dev.Synchronize())
	if err := sides[1].End().Wait(); !errors.Is(err, broken) || !strings.Contains(err.Error(), `stream "c"`+here) {
		t.Errorf("%v", err)
	}
	capture.Last = sides[0].End()
	must(t, capture.Drop(d))
}

// What fails on the host fails its queue, and who waits for it learns why; other queues go on.
func failureOfHostFunc(t *testing.T) {
	d := world(t, 0)
	a, b := queueOf(t, d, "a"), queueOf(t, d, "b")
	x, y := memory(t, d, 4, 1), memory(t, d, 4, 0)
	c, err := a.Begin(exec.DoFunc)
	must(t, err)
	c.Func = func() error { panic("help") }
	must(t, a.Enqueue(c))
	err = a.End().Wait()
	if err == nil || !strings.Contains(err.Error(), `stream "a"`) || !strings.Contains(err.Error(), "panic: help") {
		t.Errorf("%v", err)
	}
	testkit.Refused(t, b.After(a.End(), nil), "panic: help")
	if c, err = a.Begin(exec.DoCopy); err == nil {
		c.Dst, c.Src, c.N = y, x, 16
		err = a.Enqueue(c)
	}
	testkit.Refused(t, err, "panic: help")
	copies(t, b, y, x, 4)
	must(t, b.End().Wait())
	if got := read(t, d, y, 4); !slices.Equal(got, []float32{1, 1, 1, 1}) {
		t.Errorf("another queue copied %v", got)
	}
}

// An event that was closed is waited for no longer, and has no time.
func closedEvent(t *testing.T) {
	d := world(t, 0)
	a, b := queueOf(t, d, "a"), queueOf(t, d, "b")
	e := d.NewTimer()
	at, err := e.Record(a)
	must(t, errors.Join(err, e.Wait(at)))
	must(t, errors.Join(e.Close(), e.Close()))
	if done, err := e.Passed(at); done || err != nil {
		t.Errorf("passed: %v, %v", done, err)
	}
	must(t, errors.Join(e.Wait(at), b.After(at, e)))
	at, err = e.Record(b) // it begins anew
	must(t, errors.Join(err, e.Wait(at)))
	if done, err := e.Passed(at); !done || err != nil {
		t.Errorf("passed again: %v, %v", done, err)
	}
}
