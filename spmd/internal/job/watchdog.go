package job

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

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/watch"
)

// Watchdog ends a job of several ranks with one cause, which one of them prints. If the job hangs
// it says who is missing. It works on a channel beside MPI. It calls neither MPI nor CUDA, but to
// abort.
type Watchdog struct {
	job     *Job
	net     *watch.Net
	name    string // of the job, to people
	stop    chan struct{}
	once    sync.Once
	ended   chan struct{} // closed when the job's cause is known
	since   atomic.Int64  // start of the wait for the end of the others, in Unix ns; 0 before
	tick    atomic.Int64  // when look last looked, in Unix ns
	woken   atomic.Int64  // when it last found that the process had been stopped
	asking  atomic.Bool   // suspect is asking the ranks whether one waits for files
	patient atomic.Int64  // until when suspect need not ask again, in Unix ns
}

// failure is the text of a cause.
type failure struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
	Stack   string `json:"stack,omitempty"` // of a panic
}

// mostOfPanic is how many bytes of a stack go with a cause.
const mostOfPanic = 6 << 10

const (
	// printFirst is how long the other ranks wait for rank 0 to print the cause and end the job. A
	// report takes longer.
	printFirst  = 3 * time.Second
	reportFirst = 15 * time.Second
	standIn     = 3 * time.Second
	stopped     = 3 * time.Second // a process that has not looked at the clock for so long was stopped
	reportLimit = 10 * time.Second
)

// Watch starts the watchdog of a job. Ranks of one process have a Team, and so has one rank.
//
// Collective over all ranks, blocking.
func (j *Job) Watch() error {
	switch {
	case j.team:
		return nil
	case j.Size == 1:
		j.alone = NewTeam(1, func(_ int, err error) { j.abort(err, exitFailed) })
		j.alone.Add(j)
		go j.world.KeepSigning(j.lookEvery(), j.alone.stop)
		return nil
	}
	d := &Watchdog{job: j, stop: make(chan struct{}), ended: make(chan struct{})}
	host, _ := os.Hostname()      // empty if it has none
	joined := make(chan struct{}) // others may be ahead of this rank
	onHeartbeat := func(rank int, heartbeat []byte) {
		if j.Rank != 0 {
			return
		}
		why, hang := j.world.Heard(rank, heartbeat)
		if why == "" {
			return
		}
		go func() {
			<-joined
			if hang {
				d.hang(why)
			} else {
				d.fail(watch.KindError, failure{Status: exitFailed, Message: why})
			}
		}()
	}
	cfg := watch.Config{Me: watch.Hello{Rank: j.Rank, Node: j.Node, PID: os.Getpid(), Host: host},
		Size: j.Size, State: j.state,
		Account: j.world.Account, Heartbeat: j.world.Heartbeat, OnHeartbeat: onHeartbeat, Carry: j.world.Carry,
		OnEnd: d.onEnd, OnSilent: d.onSilent}
	if err := j.meet(&cfg); err != nil {
		return err
	}
	sum := sha256.Sum256(cfg.Key[:])
	d.name = hex.EncodeToString(sum[:4])
	ctx, cancel := context.WithTimeout(context.Background(), j.Limit())
	defer cancel()
	var err error
	if d.net, err = watch.Join(ctx, cfg); err != nil {
		return err
	}
	close(joined)
	d.tick.Store(time.Now().UnixNano()) // it may be stopped before the first look
	go d.look()
	go j.world.KeepSigning(j.lookEvery(), d.stop)
	j.watchdog = d
	return nil
}

// meet gives all ranks the key of the watch, and the addresses on which ranks 0 and 1 listen.
// Collective.
func (j *Job) meet(cfg *watch.Config) (err error) {
	var addrs []string
	if j.Rank < 2 {
		if cfg.Listener, err = watch.Listen(j.Nodes == 1); err == nil {
			addrs = cfg.Listener.Addrs()
			if j.Rank == 0 {
				_, err = rand.Read(cfg.Key[:])
			}
		}
	}
	if err := j.world.Agree(err); err != nil {
		return err
	}
	for hub := range 2 {
		var said struct {
			Addrs []string
			Key   [32]byte
		}
		if j.Rank == hub {
			said.Addrs, said.Key = addrs, cfg.Key
		}
		if err := j.world.Tell(hub, &said); err != nil {
			return err
		}
		cfg.Hubs = append(cfg.Hubs, said.Addrs)
		cfg.Key = said.Key
	}
	return nil
}

// lookEvery returns the time between two looks.
func (j *Job) lookEvery() time.Duration { return min(time.Second/4, j.Limit()/8) }

// look finds work that does not end. It only reads counters.
func (d *Watchdog) look() {
	limit := d.job.Limit()
	tick := time.NewTicker(d.job.lookEvery())
	defer tick.Stop()
	seen := map[Work]standstill{}
	for {
		select {
		case <-d.stop:
			return
		case <-d.ended:
			return
		case now := <-tick.C:
			if d.stoodStill(now) {
				d.woken.Store(now.UnixNano())
				clear(seen) // the time did not pass for this rank
			}
			d.tick.Store(now.UnixNano())
			for _, w := range d.job.world.Work() {
				at, busy := w.Position()
				if !busy {
					delete(seen, w)
				}
				if w.Stuck(now, limit) || busy && stalls(seen, w, at, now, limit) {
					d.suspect(fmt.Sprintf("%v has not ended in %v", w, limit), func() bool {
						later, busy := w.Position()
						return later == at && (busy || w.Stuck(time.Now(), limit))
					})
				}
			}
			if at := d.since.Load(); at != 0 && now.Sub(time.Unix(0, at)) > limit {
				d.suspect(d.job.notEnded(), func() bool { return d.since.Load() == at })
			}
		}
	}
}

// standstill is the place of work, and since when it was seen there.
type standstill struct {
	at    uint64
	since time.Time
}

// stalls reports whether work has been at the same place for longer than the limit.
func stalls(seen map[Work]standstill, w Work, at uint64, now time.Time, limit time.Duration) bool {
	s, ok := seen[w]
	if !ok || s.at != at {
		seen[w] = standstill{at, now}
		return false
	}
	return now.Sub(s.since) > limit
}

// suspect ends the job, which seems to hang. But a rank that waits for files has a limit of its
// own: with such a rank the job goes on. still says whether the job hangs even now.
func (d *Watchdog) suspect(what string, still func() bool) {
	if d.job.world.WritesFiles() && time.Now().UnixNano() < d.patient.Load() || !d.asking.CompareAndSwap(false, true) {
		return
	}
	go func() { // look goes on
		defer d.asking.Store(false)
		if d.job.world.WritesFiles() {
			if t := slow(readStates(d.gather())); t != nil {
				speaker := 0
				if t.Hello.Rank == 0 { // who waits is another
					speaker = 1
				}
				if d.job.Rank == speaker {
					d.log().Warn().Msgf("waits: rank %d is in the %v", t.Hello.Rank, t.said.Files)
				}
				d.patient.Store(time.Now().Add(d.job.Limit() / 2).UnixNano())
				return
			}
			if !still() {
				return
			}
		}
		d.hang(what)
	}()
}

func (d *Watchdog) hang(what string) {
	d.fail(watch.KindHang, failure{Status: exitFailed, Message: "this job hangs: " + what})
}

func (j *Job) notEnded() string {
	if j.Size == 1 {
		return fmt.Sprintf("the program has ended, and its world is not closed in %v", j.Limit())
	}
	return fmt.Sprintf("the program has ended here, and not on every rank in %v", j.Limit())
}

// fail makes this rank's failure the job's, unless there was an earlier one. It does not return:
// onEnd ends the process.
func (d *Watchdog) fail(kind string, f failure) {
	d.net.Fail(causeOf(kind, f))
	<-d.ended
	select {}
}

// warn says that this rank is about to end by a signal, which is the cause of all that follows.
func (d *Watchdog) warn(sig os.Signal) {
	d.net.Warn(causeOf(watch.KindSignal, failure{Status: signalStatus(sig), Message: signalError(sig).Error()}))
}

func causeOf(kind string, f failure) watch.Cause {
	f.Stack = f.Stack[:min(len(f.Stack), mostOfPanic)]
	text, err := json.Marshal(f)
	if err != nil {
		text = []byte(f.Message)
	}
	return watch.Cause{Kind: kind, Text: string(text), Time: time.Now()}
}

// onEnd ends this process. One rank prints the cause: rank 0 or, if that has died or is too late,
// the next one.
func (d *Watchdog) onEnd(c watch.Cause) {
	close(d.ended)
	first := 0
	if (c.Kind == watch.KindDied || c.Kind == watch.KindCut) && c.Rank == 0 {
		first = 1
	}
	rank := d.job.Rank
	wasStopped := d.wasStopped(time.Now())
	patience := printFirst
	var states []watch.RankState
	ofMPI := strings.Contains(c.Text, "MPI_ERR_")
	asks := c.Kind == watch.KindHang || ofMPI || strings.Contains(c.Text, ccall.ErrMismatch.Error())
	if asks && rank < 2 {
		states = d.gather()
		if s := states[0]; s.State == nil && !s.Died && !s.Left { // rank 0 hangs: it is stopped
			first = 1
		}
	}
	if rank == 0 && wasStopped {
		first = 1 // which has seen to it; the launcher wakes this process to end it
	}
	if rank != first {
		if asks {
			patience = reportFirst
		}
		if rank > 1 {
			patience += standIn // rank 1 before all others
		}
		time.Sleep(patience + time.Duration(rank)*100*time.Millisecond)
	}
	f := failure{Status: exitFailed, Message: c.Text}
	if err := json.Unmarshal([]byte(c.Text), &f); err != nil {
		f = failure{Status: exitFailed, Message: c.Text}
	}
	if f.Stack != "" {
		fmt.Fprintf(os.Stderr, "%s\n", f.Stack)
	}
	if asks && states == nil {
		states = d.gather()
	}
	if ofMPI {
		f.Message = d.differ(states) + f.Message
	}
	f.Message += refusals(f.Message, states)
	if c.Kind == watch.KindHang {
		fmt.Fprint(os.Stderr, Render(f.Message, states, d.job.LogFormat == "json"))
	}
	if rank == first {
		d.job.tellLast(c.Kind != watch.KindSignal, d.net.Accounts)
	}
	log := d.job.Logger(c.Rank, d.job.Size, os.Stderr)
	line := log.Error().Str("host", c.Host)
	if c.Kind == watch.KindDied {
		line = line.Int("pid", c.PID)
		f.Message =
			"the rank died: killed from outside or by lack of memory, by a crash in C or a panic in a " +
				"goroutine, which stand above, or by os.Exit or log.Fatal"
		if c.Text != watch.NoWord {
			f.Message += " (" + c.Text + ")"
		}
	}
	line.Msg(strings.TrimPrefix(f.Message, fmt.Sprintf("rank %d: ", c.Rank))) // the line has it
	d.job.world.Abort(f.Status)
}

// differ says where the last calls of two ranks differ, before an error of MPI's that comes from
// that; "" if they do not.
func (d *Watchdog) differ(states []watch.RankState) string {
	for _, t := range readStates(states) {
		if why, _ := d.job.world.Heard(t.Hello.Rank, t.said.History); why != "" {
			return why + "; so "
		}
	}
	return ""
}

// onSilent warns of ranks that may be stopped or cut off. Before that is certain the launcher may
// notice and end everything. If rank 0 is one of them, rank 1 warns.
func (d *Watchdog) onSilent(who string) {
	d.log().Warn().Msg("nothing heard from " + who + " for 10s: stopped, or its host is down or cut off")
}

// log returns a log that has warnings also if --log-ranks leaves this rank out.
func (d *Watchdog) log() *zerolog.Logger {
	log := d.job.Log.Level(min(d.job.Log.GetLevel(), zerolog.WarnLevel))
	return &log
}

// stoodStill reports whether look has not looked for so long that this process must have been
// stopped.
func (d *Watchdog) stoodStill(now time.Time) bool {
	return now.UnixNano()-d.tick.Load() > int64(stopped)
}

// wasStopped reports whether this process was stopped until a moment ago.
func (d *Watchdog) wasStopped(now time.Time) bool {
	return d.stoodStill(now) || now.UnixNano()-d.woken.Load() < int64(stopped)
}

// gather asks every rank for its state.
func (d *Watchdog) gather() []watch.RankState {
	ctx, cancel := context.WithTimeout(context.Background(), reportLimit)
	defer cancel()
	return d.net.Report(ctx)
}

// show returns the state of every rank, for somebody who asks while the job goes on.
func (j *Job) show(asJSON bool) string {
	var states []watch.RankState
	if t := j.led.Load(); t != nil {
		states = t.states()
	} else if j.world == nil { // it leads ranks that have not started
	} else if j.watchdog == nil {
		states = []watch.RankState{{Hello: watch.Hello{PID: os.Getpid()}, State: j.state()}}
	} else {
		states = j.watchdog.gather()
	}
	return Render("shown on request", states, asJSON)
}

// state is this rank's part of a report, as JSON.
func (j *Job) state() []byte {
	s := j.world.State()
	s.Phase = *j.phase.Load()
	s.Run, s.Others = j.Goroutines()
	b, err := json.Marshal(s)
	if err != nil {
		return nil // it holds nothing that JSON has not
	}
	return b
}

// Leaving says that this rank has ended its program and waits for the others to.
func (j *Job) Leaving() {
	j.left.Store(time.Now().UnixNano())
	if j.watchdog != nil {
		j.watchdog.since.Store(time.Now().UnixNano())
	}
}

// EndWatch takes leave of the other ranks, after the end of MPI. All ranks do. If one of them has
// failed in the last moment, or does not take leave, EndWatch does not return: the watchdog ends
// this process.
func (j *Job) EndWatch() error {
	if j.alone != nil {
		j.alone.Close()
	}
	if j.watchdog == nil {
		return nil
	}
	return j.watchdog.close()
}

func (d *Watchdog) close() error {
	d.once.Do(func() { close(d.stop) })
	select {
	case <-d.ended:
		select {}
	default:
	}
	d.net.Done()
	// A rank that stands still at the end of MPI holds up nobody. So ranks 0 and 1 stay, to report
	// it.
	for !d.net.AllLeft(d.job.lookEvery()) {
		now := time.Now()
		if d.stoodStill(now) {
			d.since.Store(now.UnixNano())
			d.woken.Store(now.UnixNano())
		}
		d.tick.Store(now.UnixNano())
		if now.Sub(time.Unix(0, d.since.Load())) > d.job.Limit() {
			d.hang(d.job.notEnded())
		}
	}
	return d.net.Close()
}
