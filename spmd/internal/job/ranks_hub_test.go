package job_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/verify"
	"lockstep/spmd/internal/watch"
)

// envHub makes this program rank 0, which does what its standard input says.
const envHub = "LOCKSTEP_WATCH_SCALE"

// order is a line of rank 0's standard input, and word one of its standard output.
type order struct {
	Do       string
	Settings *settings
}

type word struct {
	Addrs   []string
	Joined  bool
	Seconds float64 // of a report, or of a core
	States  int     // of a report: ranks that have said one
	Bytes   int     // of these
	Text    int     // bytes as text
	Silent  string
	Died    int // a rank
	Error   string
}

// startHub starts rank 0 and returns its addresses. others are rank 1's.
func (n *network) startHub(others []string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n.hub = exec.Command(self)
	n.hub.Env = append(os.Environ(), envHub+"=1")
	n.hub.Stderr = os.Stderr
	in, err := n.hub.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := n.hub.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.hub.Start(); err != nil {
		return nil, err
	}
	n.orders = json.NewEncoder(in)
	go func() {
		defer close(n.words)
		for words := json.NewDecoder(out); ; {
			var w word
			if words.Decode(&w) != nil { // it has ended
				return
			}
			if w.Silent != "" && n.mute.Load() < 0 {
				fmt.Fprintf(os.Stderr, "%s: nothing heard, though nothing is wrong\n", w.Silent)
				continue
			}
			n.words <- w
		}
	}()
	s := n.settings
	s.Hubs = [][]string{nil, others}
	w, err := n.ask2(order{Settings: &s})
	return w.Addrs, err
}

// hear returns the next word of rank 0.
func (n *network) hear() (word, error) {
	w, ok := <-n.words
	if !ok {
		return w, errors.New("rank 0 has ended")
	}
	if w.Error != "" {
		return w, errors.New("rank 0: " + w.Error)
	}
	return w, nil
}

func (n *network) ask(what string) (word, error) { return n.ask2(order{Do: what}) }

func (n *network) ask2(o order) (word, error) {
	if err := n.orders.Encode(o); err != nil {
		return word{}, err
	}
	return n.hear()
}

// beHub is rank 0.
func beHub(from io.Reader, to io.Writer) error {
	in, words := json.NewDecoder(from), make(chan word, 16)
	go func() {
		for out := json.NewEncoder(to); ; {
			_ = out.Encode(<-words) // if nobody reads any more, the orders end, too
		}
	}()
	var o order
	if err := in.Decode(&o); err != nil {
		return err
	}
	s := o.Settings
	if err := limitFiles(s.Files); err != nil {
		return err
	}
	listener, err := watch.Listen(watch.Loopback)
	if err != nil {
		return err
	}
	s.Hubs[0] = listener.Addrs()
	words <- word{Addrs: listener.Addrs()}
	cfg := s.config(0)
	cfg.Listener = listener
	cfg.State = func() []byte { return s.state(0) }
	var analyzer verify.Analyzer
	cfg.OnHeartbeat = func(rank int, said []byte) {
		if why, _ := analyzer.Hear(rank, said); why != "" {
			words <- word{Error: why}
		}
	}
	cfg.OnSilent = func(who string) { words <- word{Silent: who} }
	cfg.OnEnd = func(c watch.Cause) { words <- word{Died: c.Rank} }
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	n, err := watch.Join(ctx, cfg)
	if err != nil {
		words <- word{Error: err.Error()}
		_ = in.Decode(&o) // until it is heard
		return nil
	}
	defer n.Close()
	words <- word{Joined: true}
	for {
		if err := in.Decode(&o); err != nil {
			return nil
		}
		switch o.Do {
		case "cpu":
			words <- word{Seconds: cpu()}
		case "report":
			words <- report(n)
		case "end":
			return nil
		}
	}
}

// report asks all ranks for their state, and writes a hang report.
func report(n *watch.Net) word {
	begun := time.Now()
	states := n.Report(context.Background())
	text := job.Render(fmt.Sprintf("this job hangs: %d ranks", len(states)), states, job.AsText)
	w := word{Seconds: time.Since(begun).Seconds(), Text: len(text)}
	for _, s := range states {
		if s.State != nil {
			w.States++
			w.Bytes += len(s.State)
		}
	}
	return w
}

// cpu returns how long this process has had a core so far, in seconds.
func cpu() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
