package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"lockstep/internal/launcher"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/transport"
)

var onHost = Start{Config: job.Flags{Device: "host", LogLevel: "error", Seed: 7}}

// Ranks that are goroutines are one node and one process, and divide its cores.
func TestPlace(t *testing.T) {
	for ranks := 1; ranks <= 4; ranks++ {
		var mu sync.Mutex
		seen := map[int]bool{}
		err := Local(t.Context(), onHost, ranks, nil, func(_ context.Context, w *World) error {
			mu.Lock()
			defer mu.Unlock()
			seen[w.rank.All.Rank()] = true
			node, nodes := w.Place()
			if w.rank.All.Size() != ranks || w.ranks.Here() != ranks || w.rank.Node.Size() != ranks || node != 0 ||
				nodes != 1 || w.Threads() < 1 || w.Seed() != 7 || !w.rank.OnHost() {
				return fmt.Errorf("rank %d of %d: %d here, %d on node %d of %d, %d threads, seed %d",
					w.rank.All.Rank(), w.rank.All.Size(), w.ranks.Here(), w.rank.Node.Size(), node, nodes,
					w.Threads(), w.Seed())
			}
			return nil
		})
		if err != nil || len(seen) != ranks {
			t.Errorf("%d ranks, %d ran: %v", ranks, len(seen), err)
		}
	}
}

// Work that a program leaves enqueued belongs to it. Then come the functions of AtClose, the last
// first, but not those taken back. A failure there is the job's error, with its rank.
func TestEnd(t *testing.T) {
	mine := errors.New("of my own")
	for _, failing := range []bool{false, true} {
		var done [3][]string
		err := Local(t.Context(), onHost, 3, nil, func(_ context.Context, w *World) error {
			me := w.rank.All.Rank()
			say := func(what string, err error) func() error {
				return func() error { done[me] = append(done[me], what); return err }
			}
			w.AtClose(say("first", nil))
			defer w.AtClose(say("taken back", nil))()
			last := error(nil)
			if failing && me == 1 {
				last = mine
			}
			w.AtClose(say("last", last))
			q, err := w.rank.NewQueue("s", exec.Normal)
			if err != nil {
				return err
			}
			c, err := w.rank.Begin(q, exec.DoFunc, nil, nil)
			if err != nil {
				return err
			}
			c.Func = say("enqueued", nil)
			return q.Enqueue(c)
		})
		if failing != errors.Is(err, mine) || failing && !strings.Contains(err.Error(), "rank 1: ") {
			t.Errorf("a failing end %v: %v", failing, err)
		}
		for rank, got := range done {
			if want := []string{"enqueued", "last", "first"}; !slices.Equal(got, want) {
				t.Errorf("rank %d: %v, want %v", rank, got, want)
			}
		}
	}
}

// A rank that returns an error, or panics, is named. Ranks that wait for it, in whatever way, learn
// it.
func TestFails(t *testing.T) {
	for name, end := range map[string]func() error{
		"rank 2: it fails":      func() error { return errors.New("it fails") },
		"rank 2: panic: it did": func() error { panic("it did") },
	} {
		var told [3]error
		err := Local(t.Context(), onHost, 3, nil, func(ctx context.Context, w *World) error {
			switch me := w.rank.All.Rank(); me {
			case 2:
				return end()
			case 1:
				_, told[me] = w.rank.All.Split(0, 0)
			default:
				<-ctx.Done()
				told[me] = context.Cause(ctx)
			}
			return told[w.rank.All.Rank()]
		})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
		for rank := range 2 {
			if told[rank] == nil || !strings.Contains(told[rank].Error(), name) {
				t.Errorf("rank %d has learned %v, want %q", rank, told[rank], name)
			}
		}
	}
}

// A line goes to each listener, until that wants no more.
func TestEmitted(t *testing.T) {
	err := Local(t.Context(), onHost, 1, nil, func(_ context.Context, w *World) error {
		var got []string
		listen := func(name string) func() {
			return w.Emitted(func(line []byte) { got = append(got, name+" "+string(line)) })
		}
		one, two := listen("one"), listen("two")
		err := w.Emit(map[string]int{"x": 1})
		one()
		err = errors.Join(err, w.Emit(2))
		two()
		if want := []string{"one {\"x\":1}\n", "two {\"x\":1}\n", "two 2\n"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		return errors.Join(err, w.Emit(func() {})) // nobody listens, and nothing is made of it
	})
	if err != nil {
		t.Error(err)
	}
}

// builtWith is ranks of a program that is built with another MPI library.
type builtWith struct {
	transport.Ranks
	library string
}

// Library implements transport.Ranks.
func (b builtWith) Library() string { return b.library }

// A library with wrong results is bad input, before anything of it is called; its relatives are
// not.
func TestMPICH(t *testing.T) {
	const want = "this program is built with MPICH 4.0.2, which gives wrong minima and maxima of " +
		"unsigned integers: build it with Open MPI"
	_, err := open(builtWith{library: "MPICH 4.0.2"}, onHost)
	if err == nil || err.Error() != want || fmt.Sprintf("%T", err) != fmt.Sprintf("%T", job.Usage(err)) {
		t.Errorf("%v, want %q, as bad input", err, want)
	}
	for _, other := range []string{"Open MPI 4.1.4", "Intel(R) MPI Library 2021.5 for Linux* OS",
		"CRAY MPICH 8.1.29", "none"} {
		if err := launcher.CheckLibrary(other); err != nil {
			t.Errorf("%s: %v", other, err)
		}
	}
}
