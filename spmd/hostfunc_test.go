package spmd_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/library"
	"lockstep/spmd/managed"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// A function of HostFunc may use no stream, event, graph or communicator, and no memory that a GPU
// has, on any device. The table has every call there is: it would wait for ever on a GPU, or CUDA
// would refuse it.
func TestHostFuncRefuses(t *testing.T) {
	spmdtest.Run(t, []int{1, 2}, func(t *testing.T, w *spmd.World) {
		x, other := fill(t, w, 4, 1), stream(t, w, "other")
		c := w.Comm()
		half, err := c.Split(0, 0)
		must(t, err)
		early, err := w.NewEvent()
		must(t, err)
		must(t, early.Record(other))
		must(t, early.Synchronize())
		g, err := other.Capture(func() error { return spmd.Fill(other, x, 1) })
		must(t, err)
		one, number := x.Slice(0, 1), []int{1}
		whole, from := alloc[float32](t, w, w.Size()), alloc[float32](t, w, w.Size())
		refused := map[string]func() error{
			"SendRecv of none": func() error { return spmd.SendRecv(c, one, spmd.None, whole, spmd.None) },
			"Send to none":     func() error { return spmd.Send(c, one, spmd.None) },
			"Group":            func() error { return c.Group(func() error { return nil }) },
			"Split":            func() error { _, err := c.Split(0, 0); return err },
			"Close of a Comm":  half.Close,
			"Mesh": func() error {
				_, err := parallel.NewMesh(w, parallel.Axis{Name: "all", Size: parallel.Fit})
				return err
			},
			"Broadcast of a number": func() error { _, err := hostdata.Broadcast(c, 1, 0); return err },
			"AllGather of numbers":  func() error { _, err := hostdata.AllGather(c, 1); return err },
			"Any":                   func() error { _, err := hostdata.Any(c, true); return err },
			"AllReduceSlice":        func() error { return hostdata.AllReduceSlice(c, number, number, spmd.Sum) },
			"ReduceSlice":           func() error { return hostdata.ReduceSlice(c, number, number, spmd.Sum, 0) },
			"AllReduceIf": func() error {
				_, err := hostdata.AllReduceIf(c, true, number, number, spmd.Sum)
				return err
			},
			"Broadcast of a value": func() error { _, err := hostdata.Broadcast(c, "1", 0); return err },
			"AllGather of values":  func() error { _, err := hostdata.AllGather(c, "1"); return err },
			"Choose": func() error {
				_, err := library.Choose(w, "test", func() (int, error) { return 1, nil })
				return err
			},
			"NewStream": func() error { _, err := w.NewStream("new"); return err },
			"Close":     other.Close,
			"After":     func() error { return other.After(other) },
			"Wait":      func() error { return other.Wait(early) },
			"Capture": func() error {
				_, err := other.Capture(func() error { return nil })
				return err
			},
			"Copy":                      func() error { return spmd.Copy(other, x, x) },
			"Launch":                    func() error { return g.Launch(other) },
			"Close of a graph":          g.Close,
			"NewEvent":                  func() error { _, err := w.NewEvent(); return err },
			"Record":                    func() error { return early.Record(other) },
			"Synchronize with an event": early.Synchronize,
			"Elapsed":                   func() error { _, err := early.Elapsed(early); return err },
			"Close of an event":         early.Close,
			"Await":                     func() error { return spmd.Await(other, x, func() error { return nil }) },
			"Alloc":                     func() error { _, err := spmd.Alloc[int8](w, 1); return err },
			"AllocPinned":               func() error { _, err := spmd.AllocPinned[int8](w, 1); return err },
			"AllocManaged":              func() error { _, err := managed.Alloc[int8](w, 1); return err },
			"AllocSymmetric":            func() error { _, err := spmd.AllocSymmetric[int8](w, 1); return err },
			"Free":                      x.Free,
			"CopyFrom":                  func() error { return x.CopyFrom(make([]float32, 4)) },
			"AllReduce on":              func() error { return spmd.AllReduce(c.On(other), x, x, spmd.Sum) },
			"Send":                      func() error { return spmd.Send(c, x, w.Rank()) },
			"Fill":                      func() error { return spmd.Fill(other, x, 2) },
			"Synchronize":               other.Synchronize,
			"CopyTo":                    func() error { return x.CopyTo(make([]float32, 4)) },
			"SetAll":                    func() error { return x.SetAll(3) },
			"HostFunc":                  func() error { return other.HostFunc(func() error { return nil }) },
			"AllReduce of a number":     func() error { _, err := hostdata.AllReduce(c, 1, spmd.Sum); return err },
		}
		for _, call := range everyCall(1) {
			refused[call.kind.String()] = func() error { return call.do(c, whole, from, 0) }
		}
		for what, call := range refused {
			var got error
			s := stream(t, w, what)
			must(t, s.HostFunc(func() error { got = call(); return nil }))
			must(t, s.Synchronize())
			if got == nil || !strings.Contains(got.Error(),
				"in a function of HostFunc, which may not use streams, events, graphs, communicators and "+
					"a GPU's memory") ||
				!strings.Contains(got.Error(), "_test.go:") {
				t.Errorf("%s in a function of HostFunc: %v", what, got)
			}
		}
		must(t, spmd.AllReduce(c, x, x, spmd.Sum)) // nothing is left behind
	})
}

// TestGoexit: runtime.Goexit in a function of a program, which t.Fatal calls too, fails the stream,
// and nobody waits for ever.
func TestGoexit(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	exits := func() error { runtime.Goexit(); return nil }
	kernel := spmd.NewKernel("exits", "", func(spmd.Args) error { return exits() })
	captured := func(s *spmd.Stream, fn func() error) error {
		g, err := s.Capture(fn)
		if err != nil {
			return err
		}
		return g.Launch(s)
	}
	for what, enqueue := range map[string]func(s, beside *spmd.Stream) error{
		"a HostFunc": func(s, _ *spmd.Stream) error { return s.HostFunc(exits) },
		"a kernel":   func(s, _ *spmd.Stream) error { return kernel.Launch(s, spmd.Cover1D(1, 1)) },
		"a graph":    func(s, _ *spmd.Stream) error { return captured(s, func() error { return s.HostFunc(exits) }) },
		"a graph's other stream": func(s, beside *spmd.Stream) error {
			return captured(s, func() error {
				return errors.Join(beside.After(s), beside.HostFunc(exits), s.After(beside))
			})
		},
	} {
		err := spmd.Local(t.Context(), spmdtest.Config(), 3, func(_ context.Context, w *spmd.World) error {
			if w.Rank() != 1 {
				return spmd.Barrier(w.Comm())
			}
			s, beside := stream(t, w, "s"), stream(t, w, "beside")
			must(t, enqueue(s, beside))
			err := s.Synchronize()
			if err == nil || !strings.Contains(err.Error(), "runtime.Goexit") {
				t.Errorf("%s: the stream has %v", what, err)
			}
			return errors.Join(s.Close(), err)
		})
		if err == nil || !strings.Contains(err.Error(), "runtime.Goexit") ||
			!strings.Contains(err.Error(), "spmd/hostfunc_test.go:") {
			t.Errorf("%s: the job has %v", what, err)
		}
	}
}

// TestGoexitInAGroup: a group and a capture whose function ends its goroutine leave nothing behind.
func TestGoexitInAGroup(t *testing.T) {
	everyKind(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		c, s, x := w.Comm(), stream(t, w, "s"), fill(t, w, 4, 1)
		for _, begin := range []func(fn func() error) error{
			c.Group,
			func(fn func() error) error { _, err := s.Capture(fn); return err },
		} {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = begin(func() error {
					_ = spmd.AllReduce(c.On(s), x, x, spmd.Sum)
					runtime.Goexit()
					return nil
				})
			}()
			<-ended
			must(t, x.SetAll(1))
			must(t, spmd.AllReduce(c, x, x, spmd.Sum))
			if got := x.At(0); got != float32(w.Size()) {
				t.Errorf("the sum is %v on %d ranks", got, w.Size())
			}
		}
	})
}

// TestBlocksInACapture: a call that waits for other ranks is refused in a capture.
func TestBlocksInACapture(t *testing.T) {
	everyKind(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		c, s := w.Comm(), stream(t, w, "s")
		half, err := c.Split(0, 0)
		must(t, err)
		for what, call := range map[string]func() error{
			"Split": func() error { _, err := c.Split(0, 0); return err },
			"Mesh": func() error {
				_, err := parallel.NewMesh(w, parallel.Axis{Name: "all", Size: parallel.Fit})
				return err
			},
			"Close":                 half.Close,
			"Broadcast of a value":  func() error { _, err := hostdata.Broadcast(c, "1", 0); return err },
			"AllReduce of a number": func() error { _, err := hostdata.AllReduce(c, 1, spmd.Sum); return err },
			"Barrier that blocks":   func() error { return spmd.Barrier(c) },
		} {
			_, err := s.Capture(call)
			if err == nil || !strings.Contains(err.Error(), "in the middle of a capture") {
				t.Errorf("%s in a capture: %v", what, err)
			}
		}
		must(t, half.Close())
		must(t, spmd.Barrier(c.On(s)))
		must(t, s.Synchronize())
	})
}

// TestCaptureSeenByOthers: another goroutine may ask a stream that is being captured. The race
// detector looks on (make race).
func TestCaptureSeenByOthers(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, x := stream(t, w, "s"), fill(t, w, 4, 1)
		over, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-over:
					return
				default:
					if err := s.Synchronize(); err != nil && !strings.Contains(err.Error(), "is being captured") {
						t.Error(err)
					}
				}
			}
		}()
		for range 100 {
			g, err := s.Capture(func() error { return spmd.Fill(s, x, 2) })
			must(t, err)
			must(t, g.Launch(s))
			must(t, g.Close())
		}
		close(over)
		<-ended
	})
}
