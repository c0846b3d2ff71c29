package watch

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/process"
	"lockstep/internal/testkit"
)

// envRank makes this test binary a rank of a job of processes, which obeys its standard input.
const envRank = "LOCKSTEP_WATCH_RANK"

func TestMain(m *testing.M) {
	if os.Getenv(envRank) != "" {
		os.Exit(beRank())
	}
	os.Exit(m.Run())
}

// order is a line of a rank's standard input, and word one of its standard output.
type order struct {
	Rank, Size int
	Key        [32]byte
	Hubs       [][]string
	Silence    time.Duration
	Carry      bool
	Do         string
}

type word struct {
	Addrs   []string
	Joined  bool
	Carrier bool
	Done    bool
	Cause   *Cause
	States  []RankState
	Silent  string
}

func beRank() int {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var o order
	if err := in.Decode(&o); err != nil {
		return fail(err)
	}
	cfg := Config{
		Me: Hello{Rank: o.Rank, PID: os.Getpid(), Host: "here"}, Size: o.Size, Key: o.Key,
		State: func() []byte { return []byte("{}") },
		Beat:  50 * time.Millisecond, carry: o.Carry,
	}
	if o.Silence != 0 {
		cfg.Silence, cfg.Beat = o.Silence, o.Silence/8
		cfg.OnSilent = func(who string) { out.Encode(word{Silent: who}) }
	}
	cfg.OnEnd = func(c Cause) {
		out.Encode(word{Cause: &c})
		os.Exit(1) // at once, as a rank that is told to end does
	}
	if o.Rank < 2 {
		l, err := Listen(Loopback)
		if err != nil {
			return fail(err)
		}
		cfg.Listener = l
		out.Encode(word{Addrs: l.Addrs()})
	}
	if err := in.Decode(&o); err != nil {
		return fail(err)
	}
	cfg.Hubs = o.Hubs
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := Join(ctx, cfg)
	if err != nil {
		return fail(err)
	}
	out.Encode(word{Joined: true, Carrier: n.carrier != nil})
	for {
		if err := in.Decode(&o); err != nil {
			return 3 // the test is over
		}
		switch o.Do {
		case "exit":
			os.Exit(0)
		case "fail":
			go n.Fail(Cause{Kind: KindError, Text: "told to"})
		case "report":
			out.Encode(word{States: n.Report(ctx)})
		case "done":
			n.Done()
			out.Encode(word{Done: true})
		}
	}
}

// childRank is a rank of the job, as the test sees it.
type childRank struct {
	t    *testing.T
	rank int
	cmd  *exec.Cmd
	// It carries the beats of all.
	carrier bool
	in      io.WriteCloser
	out     chan word
}

func (p *childRank) tell(o order) {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		p.t.Fatalf("rank %d: %v", p.rank, err)
	}
}

func (p *childRank) hear() word {
	p.t.Helper()
	select {
	case w, ok := <-p.out:
		if !ok {
			p.t.Fatalf("rank %d ended", p.rank)
		}
		return w
	case <-time.After(patience):
		p.t.Fatalf("rank %d says nothing", p.rank)
	}
	panic("unreachable")
}

func (p *childRank) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("rank %d: %v", p.rank, err)
	}
}

// dies checks that the rank is told a cause, and ends because of it.
func (p *childRank) dies(rank int, kind string) {
	p.t.Helper()
	w := p.hear()
	if w.Cause == nil || w.Cause.Rank != rank || w.Cause.Kind != kind || w.Cause.PID == 0 {
		p.t.Errorf("rank %d was told %+v, not that rank %d: %s", p.rank, w.Cause, rank, kind)
	}
}

func startProcesses(t *testing.T, size int) []*childRank {
	t.Helper()
	return start(t, order{Size: size})
}

// startObserved starts ranks that say when others are silent, unless silence is 0.
func startObserved(t *testing.T, size int, silence time.Duration) []*childRank {
	t.Helper()
	return start(t, order{Size: size, Silence: silence})
}

func start(t *testing.T, o order) []*childRank {
	t.Helper()
	rand.Read(o.Key[:])
	ranks := make([]*childRank, o.Size)
	for rank := range ranks {
		p := &childRank{t: t, rank: rank, cmd: exec.Command(os.Args[0]), out: make(chan word, 16)}
		p.cmd.Env = append(os.Environ(), envRank+"=1")
		p.cmd.Stderr = os.Stderr
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var err error
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := p.cmd.StdoutPipe()
		testkit.Must(t, err)
		testkit.Must(t, p.cmd.Start())
		read := make(chan struct{})
		go func() {
			defer close(read)
			defer close(p.out)
			for s := bufio.NewScanner(out); s.Scan(); {
				var w word
				if err := json.Unmarshal(s.Bytes(), &w); err != nil {
					t.Errorf("rank %d: %q", rank, s.Text())
					continue
				}
				p.out <- w
			}
		}()
		t.Cleanup(func() {
			p.cmd.Process.Kill()
			<-read
			p.cmd.Wait()
		})
		ranks[rank] = p
	}
	for rank, p := range ranks {
		o.Rank = rank
		p.tell(o)
		if rank < 2 {
			o.Hubs = append(o.Hubs, p.hear().Addrs)
		}
	}
	for _, p := range ranks {
		p.tell(order{Hubs: o.Hubs})
	}
	for _, p := range ranks {
		w := p.hear()
		if !w.Joined {
			t.Fatalf("rank %d did not join", p.rank)
		}
		p.carrier = w.Carrier
	}
	return ranks
}

// If a rank dies, all others are told the same, though every rank ends as soon as it is told.
func TestProcessDies(t *testing.T) {
	for dead := range 4 {
		for name, kill := range map[string]func(p *childRank){
			"killed":    func(p *childRank) { p.signal(syscall.SIGKILL) },
			"os.Exit":   func(p *childRank) { p.tell(order{Do: "exit"}) },
			"an error":  func(p *childRank) { p.tell(order{Do: "fail"}) },
			"a stopped": func(p *childRank) { p.signal(syscall.SIGSTOP); p.signal(syscall.SIGKILL) },
		} {
			t.Run(fmt.Sprintf("%s rank %d", name, dead), func(t *testing.T) {
				ranks := startProcesses(t, 4)
				kill(ranks[dead])
				kind := KindDied
				if name == "an error" {
					kind = KindError
				}
				for rank, p := range ranks {
					if rank != dead || kind == KindError {
						p.dies(dead, kind)
					}
				}
			})
		}
	}
	t.Run("both hubs", func(t *testing.T) {
		ranks := startProcesses(t, 4)
		ranks[1].signal(syscall.SIGSTOP)
		ranks[0].signal(syscall.SIGKILL)
		ranks[1].signal(syscall.SIGKILL)
		for _, p := range ranks[2:] {
			w := p.hear()
			if w.Cause == nil || w.Cause.Rank > 1 || w.Cause.Kind != KindDied {
				t.Errorf("rank %d: %+v", p.rank, w.Cause)
			}
		}
	})
}

// A stopped rank is named as stopped, and goes on as if nothing had happened.
func TestProcessStopped(t *testing.T) {
	for stopped := range 3 {
		t.Run(fmt.Sprint("rank ", stopped), func(t *testing.T) {
			t.Parallel()
			ranks := startProcesses(t, 4)
			ranks[stopped].signal(syscall.SIGSTOP)
			eventually(t, "it stops", func() bool {
				return process.State(ranks[stopped].cmd.Process.Pid) == "T (stopped)"
			})
			ranks[3].tell(order{Do: "report"})
			for rank, s := range ranks[3].hear().States {
				bad := s.PID != ranks[rank].cmd.Process.Pid || s.Died || s.Left
				if rank == stopped {
					bad = bad || !s.Silent || s.ProcState != "T (stopped)" || s.State != nil ||
						!strings.Contains(s.Note, "nothing heard")
				} else {
					bad = bad || s.Silent || s.State == nil
				}
				if bad {
					t.Errorf("%+v", s)
				}
			}
			ranks[stopped].signal(syscall.SIGCONT)
			ranks[stopped].tell(order{Do: "report"})
			for _, s := range ranks[stopped].hear().States {
				if s.Silent || s.State == nil {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// Silent ranks are reported once: by rank 0, or by rank 1 if rank 0 is silent. A rank that goes on
// after it was stopped reports nobody.
func TestProcessesSilent(t *testing.T) {
	for _, tc := range []struct {
		stopped []int
		says    int
		want    string
	}{
		{[]int{2, 3}, 0, "ranks 2-3 on here"},
		{[]int{0, 3}, 1, "ranks 0, 3 on here"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			t.Parallel()
			const silence = 4 * time.Second // longer than a machine under load lets a rank wait
			ranks := startObserved(t, 5, silence)
			for _, rank := range tc.stopped {
				ranks[rank].signal(syscall.SIGSTOP)
			}
			if w := ranks[tc.says].hear(); w.Silent != tc.want {
				t.Errorf("rank %d says %+v, want silence of %s", tc.says, w, tc.want)
			}
			for _, rank := range tc.stopped {
				ranks[rank].signal(syscall.SIGCONT)
			}
			for _, rank := range []int{0, 1} { // next comes the answer, and no other silence
				ranks[rank].tell(order{Do: "report"})
				if w := ranks[rank].hear(); w.States == nil {
					t.Errorf("rank %d says %+v", rank, w)
				}
			}
		})
	}
}

// A failure reaches every rank though the hub, the stand-in or both are stopped. It reaches these,
// too, when they go on.
func TestFailPastStopped(t *testing.T) {
	for name, stopped := range map[string][]int{"hub": {0}, "stand-in": {1}, "both": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ranks := startProcesses(t, 4)
			for _, rank := range stopped {
				ranks[rank].signal(syscall.SIGSTOP)
				eventually(t, "it stops", func() bool {
					return process.State(ranks[rank].cmd.Process.Pid) == "T (stopped)"
				})
			}
			ranks[3].tell(order{Do: "fail"})
			ranks[3].dies(3, KindError)
			if len(stopped) < 2 {
				ranks[2].dies(3, KindError)
			}
			for _, rank := range stopped {
				ranks[rank].signal(syscall.SIGCONT)
				ranks[rank].dies(3, KindError)
			}
		})
	}
}

// Ranks that said goodbye may end by any means.
func TestProcessDone(t *testing.T) {
	ranks := startProcesses(t, 4)
	for _, rank := range []int{3, 0} {
		ranks[rank].tell(order{Do: "done"})
		if !ranks[rank].hear().Done {
			t.Fatalf("rank %d", rank)
		}
		ranks[rank].signal(syscall.SIGKILL)
		ranks[rank].cmd.Process.Wait()
	}
	ranks[2].tell(order{Do: "report"})
	for rank, s := range ranks[2].hear().States {
		if s.Left != (rank == 0 || rank == 3) || s.Died {
			t.Errorf("%+v", s)
		}
	}
	ranks[1].signal(syscall.SIGKILL)
	ranks[2].dies(1, KindDied)
}
