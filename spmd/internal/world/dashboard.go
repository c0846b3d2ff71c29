package world

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/cuda/nvml"
	"lockstep/internal/process"
	"lockstep/spmd/internal/dashboard"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/watch"
)

// shown is the samples and numbers of the ranks while the job runs: on rank 0 for all ranks,
// elsewhere with --dashboard for this rank.
type shown struct {
	beats  int                               // heartbeats so far
	board  *dashboard.Board                  // on rank 0: with --dashboard, and of several ranks
	server dashboard.Server                  // nil if there is none
	gpu    atomic.Pointer[dashboard.Reading] // the latest
	stop   chan struct{}                     // ends the reader of the GPU, and of a rank alone; nil if there is none
	wait   sync.WaitGroup
	mu     sync.Mutex // held while the rank is read
	over   bool       // the GPU may be gone
}

// heartbeat is a rank's message to rank 0 each second.
type heartbeat struct {
	Calls json.RawMessage   `json:"calls,omitempty"`
	Now   *dashboard.Sample `json:"now,omitempty"` // without --dashboard only how long the rank waits for others
}

// sampleEach is how often a rank is read.
const sampleEach = time.Second

// mostSamples is the most samples that rank 0 takes in a second. With more ranks each tells of
// itself less often.
const mostSamples = 256

// openDashboard has rank 0 listen at --dashboard. A failure of rank 0 is every rank's.
//
// Collective over all ranks, in the caller's turn in MPI.
func (w *World) openDashboard() error {
	if w.rank.All.Rank() == 0 && (w.start.Config.Dashboard != "" || w.rank.All.Size() > 1 && w.rank.Trace != nil) {
		w.shown.board = dashboard.NewBoard(w.rank.All.Size(), w.startup.Started, time.Now)
	}
	if w.start.Config.Dashboard == "" {
		return nil
	}
	var err error
	if w.rank.All.Rank() == 0 {
		err = w.serve()
	}
	failure, err := w.firstFailure(err)
	if err == nil && failure != nil {
		w.agreed = true
		return job.Usage(errors.New(failure.Text))
	}
	return err
}

// serve begins to serve the page.
func (w *World) serve() error {
	asked := w.start.Config.Dashboard
	if dashboard.Serve == nil {
		return fmt.Errorf("--dashboard %s: this program serves no page: import _ \"lockstep/spmd/dashboard\"", asked)
	}
	address, err := dashboard.Address(asked)
	if err != nil {
		return err
	}
	token, err := dashboard.Token(os.Getenv(dashboard.TokenVariable))
	if err != nil {
		return err
	}
	w.shown.server, err = dashboard.Serve(w.shown.board, address, token)
	var of *net.OpError
	if errors.As(err, &of) {
		err = of.Err // without the address, which stands before it
	}
	if err != nil {
		return fmt.Errorf("--dashboard %s: cannot listen there: %w", asked, err)
	}
	return nil
}

// startDashboard logs the address of the page, and begins to read the numbers that change with
// time. The world is open.
func (w *World) startDashboard() {
	if w.start.Config.Dashboard == "" {
		return
	}
	s := &w.shown
	s.stop = make(chan struct{})
	if w.rank.GPU != nil {
		s.wait.Go(w.readGPU)
	}
	if s.board == nil {
		return
	}
	s.board.Describe(dashboard.Facts{Program: filepath.Base(os.Args[0]), Nodes: w.nodes,
		Device: w.rank.Dev.Name(), Collectives: w.rank.All.Routes().Name()})
	w.rank.Log.Info().Str("url", s.server.URL()).Msg("dashboard")
	if w.rank.All.Size() == 1 { // no heartbeats
		s.wait.Go(func() { s.each(func() { s.board.Hear(w.sample()) }) })
	}
}

// each calls fn now and then, until stop.
func (s *shown) each(fn func()) {
	tick := time.NewTicker(sampleEach)
	defer tick.Stop()
	for {
		fn()
		select {
		case <-tick.C:
		case <-s.stop:
			return
		}
	}
}

// readGPU keeps the state of the GPU. It asks NVML, which may take its time, so it has a goroutine
// of its own.
func (w *World) readGPU() {
	defer job.MarkKeeper()()
	d := w.rank.GPU.GPU.Dev
	meter, err := nvml.Open(d.UUID())
	if err != nil {
		w.rank.Log.Warn().Err(err).Msg("dashboard: nothing of the GPU")
		return
	}
	w.shown.each(func() {
		r := meter.Read()
		w.shown.gpu.Store(&dashboard.Reading{Name: d.Name(), MemoryUsed: r.MemoryUsed,
			MemoryTotal: r.MemoryTotal, Clock: r.Clock, MostClock: r.MostClock,
			MemoryClock: r.MemoryClock, Power: r.Power, PowerLimit: r.PowerLimit,
			Temperature: r.Temperature, Busy: r.Busy, Slowed: r.Slowed})
	})
	_ = meter.Close() // nothing depends on it any more
}

// endDashboard tells the viewers that the run has ended.
func (w *World) endDashboard() error {
	s := &w.shown
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	if s.stop != nil {
		close(s.stop)
		s.wait.Wait()
		s.stop = nil
	}
	if s.server == nil {
		return nil
	}
	server := s.server
	s.server = nil
	return server.Close()
}

// heartbeat returns the message for rank 0 with this rank's next sign of life; nil for nothing.
func (w *World) heartbeat() []byte {
	h := heartbeat{Calls: w.reporter.Heartbeat()}
	if w.rank.Trace != nil && w.shown.beats%(w.rank.All.Size()/mostSamples+1) == 0 {
		h.Now = w.sample()
	}
	w.shown.beats++
	if h.Calls == nil && h.Now == nil {
		return nil
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil // it holds nothing that JSON has not
	}
	return text
}

// carry turns heartbeats of this node into the message for rank 0: see verify.Carrier.
func (w *World) carry(beats []watch.Beat) (on []watch.Beat) {
	tell := func(rank int, h heartbeat) {
		if h.Calls == nil && h.Now == nil {
			return
		}
		if text, err := json.Marshal(h); err == nil { // it holds nothing that JSON has not
			on = append(on, watch.Beat{Rank: rank, State: text})
		}
	}
	for _, b := range beats {
		var h heartbeat
		if json.Unmarshal(b.State, &h) != nil {
			continue // no rank sends this, and the channel is authenticated
		}
		if h.Calls != nil {
			h.Calls = w.carrier.Hear(b.Rank, h.Calls)
		}
		tell(b.Rank, h)
	}
	tell(w.rank.All.Rank(), heartbeat{Calls: w.carrier.Pages()})
	return on
}

// heard takes a rank's heartbeat, on rank 0. It returns why the job has to end, or "".
func (w *World) heard(rank int, said []byte) (why string, hang bool) {
	var h heartbeat
	if json.Unmarshal(said, &h) != nil {
		return "", false // no rank sends this, and the channel is authenticated
	}
	if w.shown.board != nil && h.Now != nil && h.Now.Rank == rank {
		w.shown.board.Hear(h.Now)
	}
	if h.Calls == nil {
		return "", false
	}
	return w.analyzer.Hear(rank, h.Calls)
}

// phases are the rows of the summary, with their classes.
var phases = []struct {
	name          string
	class         trace.Class
	host, streams bool
}{
	{"compute", trace.Compute, true, true},
	{"collectives", trace.Collective, true, true},
	{"messages", trace.Message, true, true},
	{"copies", trace.Copy, true, true},
	{"graphs", trace.Replay, true, true},
	{"streams wait", trace.Wait, false, true},
	{"program waits", trace.Wait, true, false},
}

// mostRegions is how many regions a rank tells of: those that have taken longest.
const mostRegions = 16

// sample is this rank's present state; nil if it ends. It waits for nothing.
func (w *World) sample() *dashboard.Sample {
	w.shown.mu.Lock()
	defer w.shown.mu.Unlock()
	if w.shown.over {
		return nil
	}
	page := w.start.Config.Dashboard != ""
	t := w.rank.Trace.Totals()
	s := &dashboard.Sample{Rank: w.rank.All.Rank(), Node: w.node, At: t.At}
	for _, p := range phases {
		if !page && p.class != trace.Collective {
			continue
		}
		phase := dashboard.Phase{Name: p.name}
		add := func(t *trace.Total) {
			phase.Count, phase.Bytes, phase.Nanos = phase.Count+t.Count, phase.Bytes+t.Bytes, phase.Nanos+int64(t.Nanos)
			phase.Meets = phase.Meets || p.class == trace.Collective && t.Count > t.InGraph
		}
		if p.host {
			add(&t.Host[p.class])
		}
		if p.streams {
			add(&t.Streams[p.class])
		}
		s.Phases = append(s.Phases, phase)
	}
	if !page {
		return s
	}
	s.Host, _ = os.Hostname() // empty if it has none
	s.Process, s.GPU = process.Resident("/"), w.shown.gpu.Load()
	for name, r := range t.Regions {
		s.Regions = append(s.Regions, dashboard.Phase{Name: name, Count: r.Count, Nanos: int64(r.Nanos)})
	}
	slices.SortFunc(s.Regions, func(a, b dashboard.Phase) int {
		return cmp.Or(cmp.Compare(b.Nanos, a.Nanos), cmp.Compare(a.Name, b.Name))
	})
	s.Regions = s.Regions[:min(len(s.Regions), mostRegions)]
	w.eachPool(func(kind string, p *exec.Pool) {
		s.Pools = append(s.Pools, dashboard.Pool{Kind: kind, Used: p.InUse(), Peak: p.Peak()})
	})
	if free, total, err := process.Memory("/"); err == nil { // else a system that does not tell
		s.Free, s.Total = free, total
	}
	return s
}

// Slowest returns the rank that the others wait for. It is false if no rank is, or it is not known.
// Only rank 0 knows.
func (w *World) Slowest() (rank int, known bool) {
	if w.shown.board == nil {
		return 0, false
	}
	s := w.shown.board.Slowest()
	if s == nil {
		return 0, false
	}
	return s.Rank, true
}
