package world

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/process"
	"lockstep/internal/readable"
	"lockstep/internal/runfiles"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/trace"
)

// startTrace begins to note this rank's work, for --summary or --trace. The caller is in its turn
// in MPI.
func (w *World) startTrace(ranks int) {
	c := &w.start.Config
	summary := c.Summary == "on" || c.Summary == "auto" && w.start.Flags != nil || c.Dashboard != ""
	parts := c.Summary == "on" || c.Trace != "" // which a program that nobody asked is not to pay for
	w.rank.Trace = trace.New(trace.Options{Summary: summary, File: c.Trace, Ranks: ranks, Parts: parts})
	w.rank.Calls = w.rank.Trace.Thread("calls")
}

// openTrace has rank 0 make the file of --trace, and compares the clocks of the ranks. A failure of
// rank 0 is every rank's.
//
// Collective over all ranks, in the caller's turn in MPI.
func (w *World) openTrace() (err error) {
	if w.rank.Trace == nil {
		return nil
	}
	if w.rank.All.Rank() == 0 && w.start.Config.Trace != "" {
		err = w.createTrace()
	}
	failure, err := w.firstFailure(err)
	if err == nil && failure != nil {
		w.agreed = true
		return job.Usage(errors.New(failure.Text))
	}
	if err == nil {
		err = w.clocks.Start(w.rank.Control.Host(), w.node)
	}
	return err
}

// createTrace makes the file of --trace.
func (w *World) createTrace() error {
	f, err := runfiles.Create(w.start.Config.Trace, w.start.Config.Overwrite)
	if err != nil {
		return runfiles.About("--trace", err, "--overwrite")
	}
	w.traced.Store(f)
	return nil
}

// summarizeAfter is how long a run has to take for --summary auto.
const summarizeAfter = 10 * time.Second

// tell says where the time went, and writes the file of --trace.
//
// Collective over all ranks, blocking.
func (w *World) tell() error {
	if w.rank.Trace == nil {
		return nil
	}
	if w.rank.GPU != nil {
		w.rank.GPU.Harvest()
	}
	var all []*trace.Summary
	var logs []*trace.Log
	err := w.rank.Channel.Exchange(control.End, func(c control.Exchange) error {
		// Rank 0 decides: ranks take different times.
		mine := []byte{0}
		if w.wantsSummary() {
			mine[0] = 1
		}
		show, err := control.Broadcast(c, mine, 0)
		if err != nil || show[0] == 0 && !w.rank.Trace.Keeps() {
			return err
		}
		h := w.rank.Control.Host()
		clocks, err := w.clocks.End(h, w.node)
		if err == nil && show[0] != 0 {
			all, err = w.summary().Gather(c, clocks)
		}
		if err == nil && w.rank.Trace.Keeps() {
			logs, err = w.rank.Trace.Gather(h, clocks)
		}
		return err
	})
	if err != nil {
		return err
	}
	if !w.told.CompareAndSwap(false, true) {
		return nil
	}
	if all != nil {
		w.showSummary(trace.Compare(all, len(all)))
	}
	f := w.traced.Swap(nil)
	if f == nil {
		return nil
	}
	if err := trace.WriteFile(f, w.start.Config.Trace, logs, w.rank.All.Size()); err != nil {
		return fmt.Errorf("--trace: the run has ended well, but its trace is not written: %w", err)
	}
	w.showTrace(logs)
	return nil
}

// summary is the uses of this rank's time.
func (w *World) summary() *trace.Summary {
	var start []trace.Part
	w.startup.Each(func(name string, ms float64) { start = append(start, trace.Part{Name: name, Ms: ms}) })
	return w.rank.Trace.Summary(w.rank.All.Rank(), start, w.memoryPeaks())
}

// wantsSummary says whether to show a summary: always if the flag says so, and after a while if a
// person reads the log.
func (w *World) wantsSummary() bool {
	return w.start.Config.Summary == "on" ||
		w.start.Config.Summary == "auto" && w.start.Flags != nil && time.Since(w.startup.Started) > summarizeAfter &&
			w.rank.Log.GetLevel() <= zerolog.InfoLevel
}

// eachPool calls fn with each kind of memory that buffers have had.
func (w *World) eachPool(fn func(kind string, p *exec.Pool)) {
	pools := w.rank.Dev.Pools()
	seen := []*exec.Pool{pools.Device, pools.Pinned, pools.Managed}
	if p := w.rank.SymmetricPool(); p != nil {
		seen = append(seen, p)
	}
	for i, p := range seen {
		if slices.Contains(seen[:i], p) || p.Peak() == 0 {
			continue
		}
		kind := p.What
		if !p.Host {
			kind += " of " + w.rank.Dev.Name()
		}
		fn(kind, p)
	}
}

// memoryPeaks is the most memory of each kind that was in use.
func (w *World) memoryPeaks() (list []trace.Memory) {
	w.eachPool(func(kind string, p *exec.Pool) { list = append(list, trace.Memory{Kind: kind, Peak: p.Peak()}) })
	if peak := process.Peak("/"); peak > 0 {
		list = append(list, trace.Memory{Kind: "process", Peak: peak})
	}
	return list
}

// showSummary writes the summary to the log's place.
func (w *World) showSummary(t *trace.Table) {
	facts := w.rank.Trace.Facts()
	if w.start.Config.LogFormat == "json" {
		w.rank.Log.WithLevel(zerolog.InfoLevel).Interface("summary", t).Interface("added", facts).Msg("summary")
		return
	}
	fmt.Fprint(os.Stderr, readable.Text(t.Text(facts)))
}

// showTrace says that the file of --trace is written.
func (w *World) showTrace(logs []*trace.Log) {
	line := w.rank.Log.Info().Str("file", w.start.Config.Trace)
	if len(logs) < w.rank.All.Size() {
		line = line.Int("ranks", len(logs)).Int("of", w.rank.All.Size())
	}
	if dropped := trace.Dropped(logs); dropped > 0 {
		line = line.Uint64("dropped", dropped)
	}
	if runfiles.IsFile(w.start.Config.Trace) {
		line.Msg("trace: open it at ui.perfetto.dev, or type launch trace " + w.start.Config.Trace)
	} else {
		line.Msg("trace: a file of it opens at ui.perfetto.dev")
	}
}
