package job_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/watch"
)

// settings are the settings of a measurement, for rank 0, too.
type settings struct {
	Ranks, PerNode, Files int
	Idle, Beat, Silence   time.Duration
	Key                   [32]byte
	Hubs                  [][]string
}

var many settings

func TestMain(m *testing.M) {
	if os.Getenv(envHub) != "" {
		if err := beHub(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.IntVar(&many.Ranks, "ranks", 64, "ranks of the job of BenchmarkManyRanks, at least 4")
	flag.IntVar(&many.PerNode, "per-node", 16, "ranks that say they are of one node")
	flag.IntVar(&many.Files, "files", 0, "files that rank 0 may open, as by ulimit -n; 0 leaves it as it is")
	flag.DurationVar(&many.Idle, "idle", 10*time.Second, "for how long heartbeats are measured")
	flag.DurationVar(&many.Beat, "beat", 0, "time between two heartbeats of a rank, such as 1s; 0 is as jobs have it")
	flag.DurationVar(&many.Silence, "silence", 5*time.Second, "without a heartbeat, after which a rank is silent")
	os.Exit(m.Run())
}

// BenchmarkManyRanks measures the control network of a job of many ranks on one machine: what it
// costs rank 0, and how long news takes. Rank 0 is a process of its own, which may have a limit of
// open files. All others are goroutines of this one, over the loopback.
//
//	go test ./spmd/internal/job -run '^$' -bench ManyRanks -ranks 1024
//	go test ./spmd/internal/job -run '^$' -bench ManyRanks -ranks 1024 -files 1024
func BenchmarkManyRanks(b *testing.B) {
	b.ReportMetric(0, "ns/op")
	testkit.Must(b, measure(many, os.Stdout))
}

// network is the job, as this process sees it.
type network struct {
	settings
	nets    []*watch.Net // of ranks 1 and up, by rank
	hub     *exec.Cmd
	orders  *json.Encoder
	words   chan word
	mute    atomic.Int64 // the rank that says nothing any more
	release chan struct{}
	ended   chan time.Time // when a rank was told that the job ends
}

// measure prints the costs of a job's network.
func measure(s settings, out io.Writer) (err error) {
	if s.Ranks < 4 {
		return fmt.Errorf("-ranks %d: must be at least 4", s.Ranks)
	}
	rand.Read(s.Key[:])
	n := &network{settings: s, nets: make([]*watch.Net, s.Ranks), words: make(chan word, 4),
		release: make(chan struct{}), ended: make(chan time.Time, s.Ranks)}
	n.mute.Store(-1)
	defer func() { err = errors.Join(err, n.end()) }()
	say := func(what, format string, args ...any) {
		fmt.Fprintf(out, "%-44s "+format+"\n", append([]any{what}, args...)...)
	}
	say("ranks", "%d, of %d nodes", s.Ranks, (s.Ranks+s.PerNode-1)/s.PerNode)

	begun := time.Now()
	if err := n.join(); err != nil {
		return err
	}
	say("all have joined after", "%.2f s", time.Since(begun).Seconds())
	before, err := n.ask("cpu")
	if err != nil {
		return err
	}
	say("  which took rank 0", "%.2f s of a core", before.Seconds)
	at := time.Now()
	time.Sleep(s.Idle)
	after, err := n.ask("cpu")
	if err != nil {
		return err
	}
	say("heartbeats take rank 0", "%.2f %% of a core", 100*(after.Seconds-before.Seconds)/time.Since(at).Seconds())

	r, err := n.ask("report")
	if err != nil {
		return err
	}
	say("a report, as for launch status, takes", "%.2f s", r.Seconds)
	say("  with the states of", "%d ranks, %.1f MB; as text %.1f kB", r.States, float64(r.Bytes)/1e6,
		float64(r.Text)/1e3)

	at = time.Now()
	n.mute.Store(int64(s.Ranks - 2))
	w, err := n.hear()
	if err != nil {
		return err
	}
	say("a rank that is silent is named after", "%.1f s: %s", time.Since(at).Seconds(), w.Silent)
	if r, err = n.ask("report"); err != nil {
		return err
	}
	say("a report with one that is silent takes", "%.2f s, with the states of %d ranks", r.Seconds, r.States)

	at = time.Now()
	if err := n.nets[s.Ranks-1].Close(); err != nil {
		return err
	}
	if w, err = n.hear(); err != nil {
		return err
	}
	say("a rank that dies is named by rank 0 after", "%.2f s: rank %d", time.Since(at).Seconds(), w.Died)
	for told := 0; told < s.Ranks-3; told++ { // neither rank 0, nor the silent one, nor the dead
		<-n.ended
	}
	say("  and all ranks know after", "%.2f s", time.Since(at).Seconds())
	return nil
}

// join starts rank 0 and has all ranks join.
func (n *network) join() error {
	listener, err := watch.Listen(watch.Loopback)
	if err != nil {
		return err
	}
	first, err := n.startHub(listener.Addrs())
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	n.Hubs = [][]string{first, listener.Addrs()}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	errs := make([]error, n.Ranks)
	var joining sync.WaitGroup
	for rank := 1; rank < n.Ranks; rank++ {
		cfg := n.config(rank)
		cfg.State = func() []byte {
			n.speak(rank)
			return n.state(rank)
		}
		talks := newTalk(rank, n.Ranks)
		cfg.Heartbeat = func() []byte {
			n.speak(rank)
			return talks.heartbeat()
		}
		cfg.Carry = talks.carry
		cfg.OnEnd = func(watch.Cause) { n.ended <- time.Now() }
		if rank == 1 {
			cfg.Listener = listener
		}
		joining.Go(func() { n.nets[rank], errs[rank] = watch.Join(ctx, cfg) })
	}
	w, err := n.hear()
	if err != nil {
		cancel()
	}
	joining.Wait()
	if err == nil && !w.Joined {
		err = errors.New("rank 0 has not joined")
	}
	for _, other := range errs {
		if err == nil {
			err = other
		}
	}
	return err
}

func (s *settings) config(rank int) watch.Config {
	return watch.Config{
		Me: watch.Hello{Rank: rank, Node: rank / s.PerNode, PID: os.Getpid(),
			Host: fmt.Sprintf("n%d", rank/s.PerNode)},
		Size: s.Ranks, Key: s.Key, Hubs: s.Hubs, Beat: s.Beat, Silence: s.Silence,
	}
}

// speak does not return before the end for the rank that falls silent.
func (n *network) speak(rank int) {
	if n.mute.Load() == int64(rank) {
		<-n.release
	}
}

// state returns the state of a rank in a collective, in its own words.
func (s *settings) state(rank int) []byte {
	said := job.State{Phase: "running", Run: job.Goroutine{State: "sync.Cond.Wait", At: "train/trainer/step.go:41"},
		Comms: []job.CommState{{ID: "world", Rank: rank, Size: s.Ranks, Entered: 4711, Left: 4710,
			Calls: 4711, Last: "AllReduce of 124475904 float32 (sum)"}}}
	for i := range 20 {
		said.Run.Stack = append(said.Run.Stack,
			fmt.Sprintf("lockstep/spmd/internal/transport/carriers.(*NCCL).Do carriers/nccl.go:%d", 40+i))
	}
	b, err := json.Marshal(said)
	if err != nil {
		return nil
	}
	return b
}

// end ends rank 0, and all that is left.
func (n *network) end() error {
	close(n.release)
	if n.hub != nil {
		_ = n.orders.Encode(order{Do: "end"}) // it may have ended
		_ = n.hub.Wait()
	}
	var errs []error
	for _, net := range n.nets {
		if net != nil {
			errs = append(errs, net.Close())
		}
	}
	return errors.Join(errs...)
}

// limitFiles is ulimit -n.
func limitFiles(n int) error {
	if n == 0 {
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(n), Max: uint64(n)})
}
