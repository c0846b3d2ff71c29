package watch

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// patience bounds every wait of a test, and measures nothing: a machine under load is slow.
const patience = 10 * time.Minute // only a hang takes so long

// job is a network whose ranks are all in this process, or some of them.
type job struct {
	t     *testing.T
	base  Config
	lns   []*Listener
	nets  []*Net // by rank; nil for one that has not joined
	ends  []chan Cause
	calls []atomic.Int32 // of OnEnd
	// changes that a test wants
	change func(c *Config)
}

// newJob makes the listeners of a job, and no rank.
func newJob(t *testing.T, size int) *job {
	t.Helper()
	j := &job{t: t, nets: make([]*Net, size), ends: make([]chan Cause, size), calls: make([]atomic.Int32, size)}
	j.base = Config{Size: size, Beat: 20 * time.Millisecond, Silence: time.Second}
	rand.Read(j.base.Key[:])
	for range min(2, size) {
		l, err := Listen(Loopback)
		testkit.Must(t, err)
		j.lns = append(j.lns, l)
		j.base.Hubs = append(j.base.Hubs, l.Addrs())
	}
	for i := range j.ends {
		j.ends[i] = make(chan Cause, 8)
	}
	t.Cleanup(func() {
		for _, n := range j.nets {
			if n != nil {
				n.Close()
			}
		}
		for _, l := range j.lns {
			l.Close()
		}
	})
	return j
}

func (j *job) config(rank int) Config {
	c := j.base
	c.Me = Hello{Rank: rank, Node: rank / 4, PID: os.Getpid(), Host: "here"}
	if rank < len(j.lns) {
		c.Listener = j.lns[rank]
	}
	c.State = func() []byte { return fmt.Appendf(nil, `{"seq":%d}`, rank) }
	c.OnEnd = func(c Cause) {
		j.calls[rank].Add(1)
		j.ends[rank] <- c
	}
	if j.change != nil {
		j.change(&c)
	}
	return c
}

// join makes ranks join, all at the same time.
func (j *job) join(ranks ...int) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, rank := range ranks {
		wg.Go(func() { j.nets[rank], errs[i] = Join(ctx, j.config(rank)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			j.t.Fatal(err)
		}
	}
}

func startJob(t *testing.T, size int) *job {
	t.Helper()
	j := newJob(t, size)
	j.join(upTo(size)...)
	return j
}

func upTo(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = i
	}
	return v
}

// end returns the cause that a rank gets.
func (j *job) end(rank int) Cause {
	j.t.Helper()
	select {
	case c := <-j.ends[rank]:
		return c
	case <-time.After(patience):
		j.t.Fatalf("rank %d was not told that the job ends", rank)
		panic("unreachable")
	}
}

// noEnd checks that no rank was told to end.
func (j *job) noEnd() {
	j.t.Helper()
	for rank := range j.calls {
		if j.calls[rank].Load() != 0 {
			j.t.Errorf("rank %d was told that the job ends: %+v", rank, <-j.ends[rank])
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func TestFail(t *testing.T) {
	for _, size := range []int{1, 2, 3, 64} {
		for _, from := range slices.Compact([]int{0, min(1, size-1), size - 1}) {
			t.Run(fmt.Sprintf("rank %d of %d", from, size), func(t *testing.T) {
				j := startJob(t, size)
				j.noEnd()
				j.nets[from].Fail(Cause{Kind: KindPanic, Text: "<index out of range>"})
				if j.calls[from].Load() == 0 && len(j.ends[from]) == 0 {
					select {
					case <-j.nets[from].ended:
					default:
						t.Error("Fail returned before the cause was settled")
					}
				}
				for rank := range size {
					c := j.end(rank)
					if c.Hello != j.config(from).Me || c.Kind != KindPanic || c.Text != "<index out of range>" ||
						c.Time.IsZero() {
						t.Errorf("rank %d: %+v", rank, c)
					}
				}
				j.nets[0].Fail(Cause{Kind: KindError, Text: "later"})
				for rank := range size {
					j.nets[rank].Close()
					if n := j.calls[rank].Load(); n != 1 {
						t.Errorf("rank %d: OnEnd called %d times", rank, n)
					}
				}
			})
		}
	}
}

// Every rank fails at the same time: one cause wins, and it is the same everywhere.
func TestFailEverywhere(t *testing.T) {
	const size = 16
	j := newJob(t, size)
	j.base.standIn = patience
	j.join(upTo(size)...)
	var wg sync.WaitGroup
	for rank, n := range j.nets {
		for i := range 8 {
			wg.Go(func() { n.Fail(Cause{Kind: KindError, Text: fmt.Sprint(rank, i)}) })
		}
	}
	wg.Wait()
	first := j.end(0)
	for rank := 1; rank < size; rank++ {
		if c := j.end(rank); c.Text != first.Text || c.Hello != first.Hello {
			t.Errorf("rank %d: %+v, rank 0: %+v", rank, c, first)
		}
	}
}

// A death goes before the errors that follow from it and are quicker.
func TestDeathFirst(t *testing.T) {
	j := newJob(t, 4)
	j.base.standIn = patience
	j.join(upTo(4)...)
	h := j.nets[0].hub
	h.mu.Lock()
	h.claim(Cause{Hello: Hello{Rank: 2, PID: 1}, Kind: KindError, Text: "peer gone"})
	h.claim(Cause{Hello: Hello{Rank: 3}, Kind: KindDied})
	h.mu.Unlock()
	for rank := range 4 {
		if c := j.end(rank); c.Hello != j.config(3).Me || c.Kind != KindDied {
			t.Errorf("rank %d: %+v", rank, c)
		}
	}
}

// A warned end is the cause of all that follows, deaths too, and ends nothing by itself.
func TestWarn(t *testing.T) {
	j := newJob(t, 3)
	j.base.standIn = patience
	j.join(upTo(3)...)
	j.nets[2].Warn(Cause{Kind: KindSignal, Text: "terminated"})
	h := j.nets[0].hub
	h.await(patience, func() bool { return h.warned != nil })
	h.mu.Lock()
	if len(h.claims) > 0 || h.cause != nil {
		t.Errorf("a warning is taken for a failure: %+v, %+v", h.claims, h.cause)
	}
	h.claim(Cause{Hello: Hello{Rank: 1, PID: 1}, Kind: KindError, Text: "another call"})
	h.claim(Cause{Hello: Hello{Rank: 1}, Kind: KindDied})
	h.mu.Unlock()
	for rank := range 3 {
		if c := j.end(rank); c.Hello != j.config(2).Me || c.Kind != KindSignal || c.Text != "terminated" {
			t.Errorf("rank %d: %+v", rank, c)
		}
	}
}

func TestFailForAnother(t *testing.T) {
	j := startJob(t, 3)
	j.nets[0].Fail(Cause{Hello: Hello{Rank: 2}, Kind: KindHang, Text: strings.Repeat("\xff\x01", maxCauseText)})
	for rank := range 3 {
		c := j.end(rank)
		if c.Hello != j.config(2).Me || c.Kind != KindHang || len(c.Text) < maxCauseText/2 {
			t.Errorf("rank %d: %+v, %d bytes of text", rank, c.Hello, len(c.Text))
		}
	}
}

// A connection of any rank that ends without goodbye is a death.
func TestDeath(t *testing.T) {
	for _, size := range []int{2, 3, 8} {
		for _, dead := range slices.Compact([]int{0, 1, size - 1}) {
			t.Run(fmt.Sprintf("rank %d of %d", dead, size), func(t *testing.T) {
				t.Parallel()
				j := startJob(t, size)
				j.nets[dead].Close()
				for rank := range size {
					if rank == dead {
						continue
					}
					if c := j.end(rank); c.Hello != j.config(dead).Me || c.Kind != KindDied {
						t.Errorf("rank %d: %+v", rank, c)
					}
				}
				if j.calls[dead].Load() != 0 {
					t.Error("OnEnd was called after Close")
				}
			})
		}
	}
	t.Run("both hubs", func(t *testing.T) {
		t.Parallel()
		j := startJob(t, 5)
		go j.nets[0].Close()
		j.nets[1].Close()
		for rank := 2; rank < 5; rank++ {
			if c := j.end(rank); c.Rank > 1 || c.PID != os.Getpid() || c.Kind != KindDied {
				t.Errorf("rank %d: %+v", rank, c)
			}
		}
	})
}

// A rank that said goodbye may go. So may a hub, and the other goes on.
func TestDone(t *testing.T) {
	j := startJob(t, 5)
	for _, rank := range []int{4, 0} {
		j.nets[rank].Done()
		j.nets[rank].Done()
		j.nets[rank].Close()
	}
	states := j.nets[3].Report(t.Context())
	for rank, s := range states {
		if s.Left != (rank == 0 || rank == 4) || (s.State == nil) != s.Left || s.Died || s.Silent {
			t.Errorf("%+v", s)
		}
	}
	j.noEnd()
	j.nets[2].Close()
	for _, rank := range []int{1, 3} {
		if c := j.end(rank); c.Rank != 2 || c.Kind != KindDied {
			t.Errorf("rank %d: %+v", rank, c)
		}
	}
}

// A hub sees whether all have said goodbye. If one dies instead, they have not.
func TestAllLeft(t *testing.T) {
	j := startJob(t, 4)
	for _, rank := range []int{0, 1, 2} {
		j.nets[rank].Done()
	}
	if !j.nets[2].AllLeft(0) {
		t.Error("a rank that is no hub waits")
	}
	if j.nets[0].AllLeft(time.Millisecond) || j.nets[1].AllLeft(0) {
		t.Error("rank 3 has not said goodbye")
	}
	j.nets[3].Done()
	j.nets[3].Close()
	if !j.nets[0].AllLeft(time.Minute) || !j.nets[1].AllLeft(time.Minute) {
		t.Error("all have said goodbye")
	}
	k := startJob(t, 3)
	k.nets[0].Done()
	k.nets[2].Close()
	if k.nets[0].AllLeft(time.Minute) {
		t.Error("rank 2 has died")
	}
	k.end(0)
}

// The whole life of a job leaves nothing behind.
func TestLeaks(t *testing.T) {
	life := func() {
		j := startJob(t, 8)
		j.nets[5].Report(t.Context())
		var wg sync.WaitGroup
		for _, n := range j.nets {
			wg.Go(n.Done)
		}
		wg.Wait()
		j.noEnd()
		for _, n := range j.nets {
			n.Close()
			n.Close()
		}
		j = startJob(t, 8)
		j.nets[3].Fail(Cause{Kind: KindError})
		for rank, n := range j.nets {
			j.end(rank)
			n.Close()
		}
	}
	life()
	fds := countFDs(t)
	for range 3 {
		life()
	}
	eventually(t, "goroutines end", func() bool { return goroutines() == "" })
	eventually(t, "descriptors are closed", func() bool { return countFDs(t) <= fds })
}

func countFDs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	testkit.Must(t, err)
	return len(fds)
}

// goroutines returns the stacks of this package's goroutines that are no test's.
func goroutines() string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var found []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "/internal/watch.") && !strings.Contains(g, "_test.go") {
			found = append(found, g)
		}
	}
	return strings.Join(found, "\n\n")
}

// A rank that joins late is told the cause that was settled before.
func TestJoinLate(t *testing.T) {
	j := newJob(t, 4)
	j.join(0, 1, 2)
	j.nets[2].Fail(Cause{Kind: KindError, Text: "at start"})
	j.end(0)
	j.end(1)
	j.join(3)
	if c := j.end(3); c.Text != "at start" {
		t.Errorf("%+v", c)
	}
}

func TestJoinFails(t *testing.T) {
	t.Run("no hub", func(t *testing.T) {
		j := newJob(t, 3)
		for _, l := range j.lns {
			l.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		n, err := Join(ctx, j.config(2))
		if n != nil || err == nil || !strings.Contains(err.Error(), "rank 2 cannot reach rank 0") ||
			!strings.Contains(err.Error(), j.base.Hubs[0][0]) {
			t.Errorf("%v", err)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		j := newJob(t, 3)
		j.join(0, 1)
		c := j.config(2)
		c.Key[0] ^= 1
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if n, err := Join(ctx, c); n != nil || err == nil {
			t.Errorf("%v", err)
		}
		j.noEnd()
		j.join(2)
		j.noEnd()
	})
	t.Run("twice", func(t *testing.T) {
		j := newJob(t, 4)
		j.join(0, 1, 2)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if n, err := Join(ctx, j.config(2)); n != nil || err == nil || !strings.Contains(err.Error(), "joined before") {
			t.Errorf("%v", err)
		}
		j.noEnd()
	})
	t.Run("half", func(t *testing.T) { // a rank that reaches only one hub says so before it gives up
		j := newJob(t, 3)
		j.join(0, 1)
		c := j.config(2)
		c.Hubs = [][]string{c.Hubs[0], {"127.0.0.1:1"}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := Join(ctx, c); err == nil {
			t.Fatal("joined")
		}
		for rank := range 2 {
			if c := j.end(rank); c.Rank != 2 || c.Kind != KindError ||
				!strings.Contains(c.Text, "cannot reach rank 1") {
				t.Errorf("rank %d: %+v", rank, c)
			}
		}
	})
	t.Run("config", func(t *testing.T) {
		for name, wrong := range map[string]func(*Config){
			"no key":      func(c *Config) { c.Key = [32]byte{} },
			"no size":     func(c *Config) { c.Size = 0 },
			"rank":        func(c *Config) { c.Me.Rank = 3 },
			"hubs":        func(c *Config) { c.Hubs = c.Hubs[:1] },
			"no listener": func(c *Config) { c.Listener = nil },
			"silence":     func(c *Config) { c.Silence = c.Beat },
		} {
			c := newJob(t, 3).config(0)
			wrong(&c)
			if n, err := Join(t.Context(), c); n != nil || err == nil {
				t.Errorf("%s: joined", name)
			}
		}
	})
}

// Close ends what waits, and works from OnEnd.
func TestCloseInOnEnd(t *testing.T) {
	j := newJob(t, 3)
	closed := make(chan struct{})
	n := make(chan *Net, 1)
	c := j.config(2)
	c.OnEnd = func(Cause) {
		(<-n).Close()
		close(closed)
	}
	j.join(0, 1)
	nt, err := Join(t.Context(), c)
	testkit.Must(t, err)
	n <- nt
	nt.Fail(Cause{Kind: KindError})
	<-closed
	nt.Fail(Cause{})
	nt.Done()
	if s := nt.Report(t.Context()); len(s) != 3 {
		t.Errorf("%+v", s)
	}
}
