package spmd_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/verify"
	"lockstep/spmd/internal/world"
	"lockstep/spmd/spmdtest"
)

// TestCallsOfSomeRanks is countedCalls on the host; TestGPUsOfOneProcess has it on GPUs.
func TestCallsOfSomeRanks(t *testing.T) { spmdtest.RunInProcess(t, []int{3}, countedCalls()) }

// countedCalls: ranks that leave out a call make no other calls than the ranks that make it. So
// with every kind of call that some ranks leave out, in each way of making it: two heartbeats find
// nothing, nor do two after the next collective of all, nor does the end. It is the same where the
// graphs of ranks hold other numbers of their calls.
func countedCalls() func(t *testing.T, w *spmd.World) {
	var heard verify.Analyzer
	var mu sync.Mutex
	come, open := 0, make(chan struct{})
	pass := func() { // of all three ranks
		mu.Lock()
		mine := open
		if come++; come%3 == 0 {
			open = make(chan struct{})
			close(mine)
		}
		mu.Unlock()
		<-mine
	}
	return func(t *testing.T, w *spmd.World) {
		me, all, s := w.Rank(), w.Comm(), stream(t, w, "s")
		dst, src, part := alloc[float32](t, w, 4), alloc[float32](t, w, 4), all
		if w.OnHost() { // the double of NCCL splits into as many ranks again
			half, err := all.Split(me/2, 0)
			must(t, err)
			part = half
		}
		beats := verify.Reporter{Recorders: (*world.World)(w).Rank().Recorders, Ended: func() bool { return false }}
		after := func(what string, err error) {
			if err := errors.Join(err, s.Synchronize()); err != nil {
				t.Errorf("rank %d: %s: %v", me, what, err)
			}
			for i := range 4 {
				if i == 2 {
					must(t, spmd.Barrier(all))
				}
				pass()
				if said := beats.Heartbeat(); said != nil {
					if why, _ := heard.Hear(me, said); why != "" {
						t.Errorf("%s: %s", what, why)
					}
				}
				pass()
			}
		}
		graph := func(replays int, fn func() error) error {
			g, err := s.Capture(fn)
			if err != nil {
				return err
			}
			for range replays {
				err = errors.Join(err, g.Launch(s))
			}
			return errors.Join(err, g.Close())
		}
		var kinds []calling
		for _, call := range everyCall(2) {
			if call.kind == coll.SendRecv || w.OnHost() {
				kinds = append(kinds, call)
			}
		}
		message := func(c spmd.Comm, dst, src floats, to int) error {
			if me == to {
				return spmd.Recv(c, dst, 1-to)
			}
			return spmd.Send(c, src, to)
		}
		for _, call := range append(kinds, calling{coll.Send, message}) {
			on := part
			one := func(c spmd.Comm) func() error { return func() error { return call.do(c, dst, src, 1) } }
			switch call.kind {
			case coll.Send:
				on = all
			case coll.SendRecv:
				on = all
				call.do = func(c spmd.Comm, dst, src floats, _ int) error {
					return spmd.SendRecv(c, dst, 1-me, src, 1-me)
				}
			}
			queued := one(on.On(s))
			for i, way := range []func() error{
				one(on), queued,
				func() error { return on.On(s).Group(queued) },
				func() error { return graph(2, queued) },
				func() error { return graph(1, func() error { return errors.Join(queued(), on.On(s).Group(queued)) }) },
				func() error { // a graph on one rank alone
					if me == 0 {
						return graph(2, queued)
					}
					return errors.Join(queued(), one(on)())
				},
			} {
				if me == 2 {
					way = func() error { return nil }
				}
				after(fmt.Sprintf("%v in way %d", call.kind, i), way())
			}
		}
		sum := func() error { return spmd.AllReduce(all.On(s), dst, src, spmd.Sum) }
		if me == 0 {
			after("graphs of other lengths", graph(1, func() error { return errors.Join(sum(), sum()) }))
		} else {
			after("graphs of other lengths", graph(2, sum))
		}
	}
}
