package spmd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/launcher"
	"lockstep/internal/watch"
	"lockstep/spmd/internal/control"
)

// overseer ends a job of several ranks with one cause, which one of them prints, and
// says who is missing where the job hangs. It works on a channel beside MPI, and
// calls neither MPI nor CUDA but to abort.
type overseer struct {
	w       *World
	net     *watch.Net
	job     string // names the job to people
	stop    chan struct{}
	once    sync.Once
	ended   chan struct{} // closed when the job's cause is known
	cause   watch.Cause
	since   atomic.Int64 // start of the wait for the end of the others, in Unix ns; 0 before
	tick    atomic.Int64 // when look last looked, in Unix ns
	woken   atomic.Int64 // when it last found that the process had been stopped
	asking  atomic.Bool  // whether a rank waits for files
	patient atomic.Int64 // until when one does, in Unix ns
}

// failure is what a cause carries as its text.
type failure struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
}

const (
	// printFirst is how long the other ranks leave it to rank 0 to print and end the
	// job; a report takes it longer.
	printFirst  = 3 * time.Second
	reportFirst = 15 * time.Second
	standIn     = 3 * time.Second
	stopped     = 3 * time.Second // without a look at the clock: the process was stopped
	reportLimit = 10 * time.Second
)

// oversee starts the watch over a job of several ranks; nil for one rank.
//
// Collective over all ranks.
func (w *World) oversee() (*overseer, error) {
	if w.Size() == 1 {
		return nil, nil
	}
	o := &overseer{w: w, stop: make(chan struct{}), ended: make(chan struct{})}
	host, _ := os.Hostname() // empty where it has none
	var seen library
	joined := make(chan struct{}) // others may be ahead of this rank
	onPulse := func(rank int, pulse []byte) {
		if w.Rank() != 0 {
			return
		}
		if text := seen.compare(rank, pulse); text != "" {
			go func() {
				<-joined
				o.fail(watch.KindError, exitFailed, fmt.Sprintf("%v: %s", ErrContract, text))
			}()
		} else if text := seen.stuck(rank); text != "" {
			go func() {
				<-joined
				o.hang(text)
			}()
		}
	}
	cfg := watch.Config{Me: watch.Hello{Rank: w.Rank(), Node: w.node, PID: os.Getpid(), Host: host}, Size: w.Size(), State: w.state, Pulse: w.pulse, OnPulse: onPulse, OnEnd: o.onEnd, OnSilent: o.onSilent}
	var err error
	if w.Rank() < 2 {
		if cfg.Listener, err = watch.Listen(w.nodes == 1); err == nil && w.Rank() == 0 {
			_, err = rand.Read(cfg.Key[:])
		}
	}
	var addrs []string
	if cfg.Listener != nil {
		addrs = cfg.Listener.Addrs()
	}
	if err := w.channel.Agree(control.Start, err); err != nil {
		return nil, err
	}
	for hub := range 2 {
		var said struct {
			Addrs []string
			Key   [32]byte
		}
		if w.Rank() == hub {
			said.Addrs, said.Key = addrs, cfg.Key
		}
		if err := w.channel.Tell(control.Start, &said, hub); err != nil {
			return nil, err
		}
		cfg.Hubs = append(cfg.Hubs, said.Addrs)
		cfg.Key = said.Key
	}
	sum := sha256.Sum256(cfg.Key[:])
	o.job = hex.EncodeToString(sum[:4])
	ctx, cancel := context.WithTimeout(context.Background(), w.cfg.timeout())
	defer cancel()
	if o.net, err = watch.Join(ctx, cfg); err != nil {
		return nil, err
	}
	close(joined)
	o.tick.Store(time.Now().UnixNano()) // it may be stopped before the first look
	go o.look()
	if w.gpu != nil {
		go w.keepSigning(o.lookEvery(), o.stop)
	}
	w.overseer = o
	return o, nil
}

// limitStart ends this process when the start takes longer than --timeout, or than a
// minute where a GPU and its libraries may have to start: MPI and the other ranks wait
// without a limit of their own. Rank 0 speaks, or the next rank that can. stop must be
// called when the start is over.
func limitStart(name string, cfg *Config, rank int) (stop func() bool) {
	limit := cfg.timeout()
	if cfg.Device != "host" {
		limit = max(limit, time.Minute)
	}
	t := time.AfterFunc(limit, func() {
		leaveToFirst(rank)
		time.Sleep(min(time.Duration(max(rank-2, 0))*speakFirst, reportFirst)) // where ranks 0 and 1 are what is missing
		run, others := goroutines()
		at := "in no code of the program"
		for _, g := range append([]goroutine{run}, others...) {
			if len(g.Stack) > 0 {
				at = g.Stack[0]
				break
			}
		}
		host, _ := os.Hostname() // empty where it has none
		fmt.Fprintf(os.Stderr, "%s: the start has not ended in %v: a rank is missing; rank %d (host %s, pid %d) is at %s%s\n",
			name, limit, rank, host, os.Getpid(), at, manyInterfaces())
		os.Exit(exitFailed)
	})
	return t.Stop
}

// lookEvery is the time between two looks.
func (o *overseer) lookEvery() time.Duration { return min(time.Second/4, o.w.cfg.timeout()/8) }

// look finds calls that do not end. It only reads counters.
func (o *overseer) look() {
	limit := o.w.cfg.timeout()
	tick := time.NewTicker(o.lookEvery())
	defer tick.Stop()
	type pending struct {
		at    uint64
		since time.Time
	}
	seen := map[any]pending{} // by communicator, and by stream on a GPU
	// stalls says whether who has been at the same place for longer than the limit.
	stalls := func(who any, at uint64, now time.Time) bool {
		p, ok := seen[who]
		if !ok || p.at != at {
			seen[who] = pending{at, now}
			return false
		}
		return now.Sub(p.since) > limit
	}
	for {
		select {
		case <-o.stop:
			return
		case <-o.ended:
			return
		case now := <-tick.C:
			if o.stoodStill(now) {
				o.woken.Store(now.UnixNano())
				clear(seen) // the time did not pass for this rank
			}
			o.tick.Store(now.UnixNano())
			o.w.mu.Lock()
			comms := append([]*commState{}, o.w.comms...)
			streams := append([]*Stream{}, o.w.streams...)
			o.w.mu.Unlock()
			for _, st := range comms {
				entered, left := st.activity.entered.Load(), st.activity.left.Load()
				if entered == left {
					delete(seen, st)
				} else if stalls(st, entered, now) {
					where := fmt.Sprintf(" on %q", st.id)
					if st == o.w.control.st {
						where = ""
					}
					o.suspect(fmt.Sprintf("%s%s has not ended in %v", st.last(), where, limit),
						func() bool { return st.activity.entered.Load() == entered && st.activity.left.Load() < entered })
				}
			}
			for _, s := range streams {
				if s.dev == nil {
					continue
				}
				passed := s.dev.passed()
				written := passed >= s.dev.wrote.Load()
				if written {
					delete(seen, s)
				}
				if s.dev.stuck(now, limit) || !written && stalls(s, passed, now) {
					o.suspect(fmt.Sprintf("what was enqueued on stream %q, collectives among it, has not ended in %v", s.name, limit),
						func() bool { return s.dev.passed() == passed })
				}
			}
			if at := o.since.Load(); at != 0 && now.Sub(time.Unix(0, at)) > limit {
				o.suspect(o.notEnded(), func() bool { return o.since.Load() == at })
			}
		}
	}
}

// suspect ends the job, which hangs, unless a rank waits for files, which has a limit of its own; still says that it does.
func (o *overseer) suspect(what string, still func() bool) {
	if o.w.files.Used() && time.Now().UnixNano() < o.patient.Load() || !o.asking.CompareAndSwap(false, true) {
		return
	}
	go func() { // what looks goes on
		defer o.asking.Store(false)
		if o.w.files.Used() {
			if t := slow(readStates(o.gather())); t != nil {
				if o.w.Rank() == b2i(t.Hello.Rank == 0) { // who waits is another
					log := o.w.Log.Level(min(o.w.Log.GetLevel(), zerolog.WarnLevel))
					log.Warn().Msgf("waits: rank %d is in the %v", t.Hello.Rank, t.Files)
				}
				o.patient.Store(time.Now().Add(o.w.cfg.timeout() / 2).UnixNano())
				return
			}
			if !still() {
				return
			}
		}
		o.hang(what)
	}()
}

func (o *overseer) hang(what string) { o.fail(watch.KindHang, exitFailed, "this job hangs: "+what) }

func (o *overseer) notEnded() string {
	return fmt.Sprintf("the program has ended here, and not on every rank in %v", o.w.cfg.timeout())
}

// fail makes this rank's failure the job's, unless there was an earlier one, and does
// not return if the job ends in time.
func (o *overseer) fail(kind string, status int, message string) {
	text, err := json.Marshal(failure{status, message})
	if err != nil {
		text = []byte(message)
	}
	o.net.Fail(watch.Cause{Kind: kind, Text: string(text), Time: time.Now()})
	<-o.ended // Fail has called onEnd, which ends the process
	select {}
}

// onEnd ends this process. One rank prints the cause: rank 0, or where that has died
// or does not get to it the next one.
func (o *overseer) onEnd(c watch.Cause) {
	o.cause = c
	close(o.ended)
	first := 0
	if (c.Kind == watch.KindDied || c.Kind == watch.KindCut) && c.Rank == 0 {
		first = 1
	}
	rank := o.w.Rank()
	wasStopped := o.wasStopped(time.Now())
	patience := printFirst
	var states []watch.RankState
	if c.Kind == watch.KindHang && rank < 2 {
		states = o.gather()
		if s := states[0]; s.State == nil && !s.Died && !s.Left { // rank 0 is what hangs: it is stopped
			first = 1
		}
	}
	if rank == 0 && wasStopped {
		first = 1 // which has seen to it; the launcher wakes this process to end it
	}
	if rank != first {
		if c.Kind == watch.KindHang {
			patience = reportFirst
		}
		if rank > 1 {
			patience += standIn // rank 1 before all others
		}
		time.Sleep(patience + time.Duration(rank)*100*time.Millisecond)
	}
	f := failure{exitFailed, c.Text}
	if err := json.Unmarshal([]byte(c.Text), &f); err != nil {
		f = failure{exitFailed, c.Text}
	}
	if c.Kind == watch.KindHang {
		if states == nil {
			states = o.gather()
		}
		fmt.Fprint(os.Stderr, renderReport(f.Message, states, o.w.cfg.LogFormat == "json"))
	}
	log := o.w.cfg.logger(launcher.Job{Rank: c.Rank, Size: o.w.Size()}, os.Stderr)
	line := log.Error().Str("host", c.Host)
	if c.Kind == watch.KindDied {
		line = line.Int("pid", c.PID)
		f.Message = "the rank died: killed from outside, by lack of memory, or by os.Exit or log.Fatal in the program (" + c.Text + ")"
	}
	line.Msg(strings.TrimPrefix(f.Message, fmt.Sprintf("rank %d: ", c.Rank))) // the line has it
	o.w.Abort(f.Status)
}

// onSilent warns of ranks that may be stopped, or cut off: the launcher may notice, and
// end everything, before that is certain. Where rank 0 is one of them rank 1 says it.
func (o *overseer) onSilent(who string) {
	log := o.w.Log.Level(min(o.w.Log.GetLevel(), zerolog.WarnLevel))
	log.Warn().Msg("nothing heard from " + who + " for 10s: stopped, or its host is down or cut off")
}

// stoodStill says whether look has not looked for so long that this process must have
// been stopped.
func (o *overseer) stoodStill(now time.Time) bool {
	return now.UnixNano()-o.tick.Load() > int64(stopped)
}

// wasStopped says whether it was, and goes on for a moment only.
func (o *overseer) wasStopped(now time.Time) bool {
	return o.stoodStill(now) || now.UnixNano()-o.woken.Load() < int64(stopped)
}

// gather asks every rank what it does.
func (o *overseer) gather() []watch.RankState {
	ctx, cancel := context.WithTimeout(context.Background(), reportLimit)
	defer cancel()
	return o.net.Report(ctx)
}

// show returns what every rank does, for who asks while the job goes on.
func (o *overseer) show(w *World, asJSON bool) string {
	var states []watch.RankState
	if o == nil {
		states = []watch.RankState{{Hello: watch.Hello{PID: os.Getpid()}, State: w.state()}}
	} else {
		states = o.gather()
	}
	return renderReport("shown on request", states, asJSON)
}

// leaving says that this rank has ended its program and waits for the others to.
func (o *overseer) leaving() {
	if o != nil {
		o.since.Store(time.Now().UnixNano())
	}
}

// close takes leave of the other ranks, all of which do. It does not return where one of them has failed in the last
// moment, or does not take leave: onEnd ends this process. MPI is over.
func (o *overseer) close() error {
	if o == nil {
		return nil
	}
	o.once.Do(func() { close(o.stop) })
	select {
	case <-o.ended:
		select {}
	default:
	}
	o.net.Done()
	// A rank that stands still at the end of MPI holds up nobody: ranks 0 and 1 stay to say so.
	for !o.net.AllLeft(o.lookEvery()) {
		now := time.Now()
		if o.stoodStill(now) {
			o.since.Store(now.UnixNano())
			o.woken.Store(now.UnixNano())
		}
		o.tick.Store(now.UnixNano())
		if now.Sub(time.Unix(0, o.since.Load())) > o.w.cfg.timeout() {
			o.hang(o.notEnded())
		}
	}
	return o.net.Close()
}
