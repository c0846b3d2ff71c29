package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// report is a hub's report so far. Those who want one meanwhile share it.
type report struct {
	states []RankState   // under Net.mu
	begun  chan struct{} // closed when the hub has begun
	whole  chan struct{} // closed when all has come
}

type stateRun struct {
	state json.RawMessage
	note  string
	done  chan struct{}
}

// Report asks every rank for its State, and returns what came within about four seconds, one entry
// for each rank. If a rank gives no answer, another of its node looks at its process. Any rank may
// ask; several at once cost little more.
//
// It needs one hub that answers. Without one, or when ctx ends, each Note says what is missing.
func (n *Net) Report(ctx context.Context) []RankState {
	up := n.up()
	slices.SortStableFunc(up, func(a, b *link) int { return cmp.Compare(n.late(a), n.late(b)) })
	for _, k := range up {
		if states, ok := n.ask(ctx, k); ok {
			return states
		}
	}
	states := n.blank("no hub of the control channel answers")
	states[n.cfg.Me.Rank].Hello = n.cfg.Me
	run := n.runState()
	t := time.NewTimer(gatherLimit)
	defer t.Stop()
	select {
	case <-run.done:
		states[n.cfg.Me.Rank] = RankState{Hello: n.cfg.Me, State: run.state, Note: run.note}
	case <-t.C:
	case <-ctx.Done():
	case <-n.done:
	}
	return states
}

// late is 0 for a hub that answers beats, and grows with the time of its silence.
func (n *Net) late(k *link) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k.beat.IsZero() {
		return 0
	}
	return int(time.Since(k.beat) / (2 * n.cfg.Beat))
}

func (n *Net) blank(note string) []RankState {
	states := make([]RankState, n.cfg.Size)
	for i := range states {
		states[i] = RankState{Hello: Hello{Rank: i}, Note: note}
	}
	return states
}

// ask gets a report from one hub. It reports false if that hub does not answer.
func (n *Net) ask(ctx context.Context, k *link) ([]RankState, bool) {
	n.mu.Lock()
	r := k.report
	if r == nil {
		r = &report{
			states: n.blank("the report did not come whole"),
			begun:  make(chan struct{}), whole: make(chan struct{}),
		}
		k.report = r
		k.line.send(message{Kind: msgReport})
	}
	n.mu.Unlock()
	wait := func(c chan struct{}, limit time.Duration) bool {
		t := time.NewTimer(limit)
		defer t.Stop()
		select {
		case <-c:
			return true
		case <-t.C:
		case <-ctx.Done():
		case <-k.line.down:
		}
		return false
	}
	ok := wait(r.begun, failLimit) && wait(r.whole, gatherLimit+lookLimit+deliverLimit)
	if !ok && ctx.Err() == nil {
		return nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]RankState(nil), r.states...), true
}

// runState calls State, or joins the present call.
func (n *Net) runState() *stateRun {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != nil {
		return n.state
	}
	run := &stateRun{done: make(chan struct{})}
	n.state = run
	go func() { // not waited for by Close: State may hang
		run.state, run.note = callState(n.cfg.State)
		n.mu.Lock()
		n.state = nil
		n.mu.Unlock()
		close(run.done)
	}()
	return run
}

func callState(f func() []byte) (state json.RawMessage, note string) {
	if f == nil {
		return nil, ""
	}
	defer func() {
		if p := recover(); p != nil {
			state, note = nil, fmt.Sprintf("its state cannot be had: panic: %.1000v", p)
		}
	}()
	state = f()
	if len(state) > 0 && !json.Valid(state) {
		return nil, fmt.Sprintf("its state of %d bytes is not JSON", len(state))
	}
	return state, ""
}
