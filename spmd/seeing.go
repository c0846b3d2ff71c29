package spmd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/elem"
	"lockstep/internal/plain"
	"lockstep/internal/procfs"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// startTrace begins to note what this rank does, where --summary or --trace wants it. The caller is in its turn in MPI.
func (w *World) startTrace(ranks int) {
	summary := w.cfg.Summary == "on" || w.cfg.Summary == "auto" && w.flags != nil
	w.trace = trace.New(trace.Options{Summary: summary, File: w.cfg.Trace, Ranks: ranks})
	w.calls = w.trace.Thread("calls", false)
}

// traceMessage begins a message on the host. The caller is in its turn in MPI.
func (st *commState) traceMessage(kind coll.Kind, t elem.Type, peer, n int) {
	if st.trace != nil {
		c := coll.Call{Kind: kind, Type: t, Root: int32(peer), N: n}
		st.trace.Begin(st.w.calls, &c, nil)
	}
}

// openTrace has rank 0 make the file of --trace, and compares the clocks of the ranks. A failure of rank 0 is every rank's.
//
// Collective over all ranks, in the caller's turn in MPI.
func (w *World) openTrace() (err error) {
	if w.trace == nil {
		return nil
	}
	if w.Rank() == 0 && w.cfg.Trace != "" {
		if w.traced, err = trace.Create(w.cfg.Trace); err != nil {
			err = fmt.Errorf("--trace: %w", err)
		}
	}
	failure, err := w.firstFailure(err)
	if err == nil && failure != nil {
		w.agreed = true
		return Usage(errors.New(failure.Text))
	}
	if err == nil {
		err = w.clocks.Start(w.control.st.host, w.node)
	}
	return err
}

// summarizeAfter is how long a run has to take for --summary auto.
const summarizeAfter = 10 * time.Second

// tell says where the time went, and writes the file of --trace. What cannot be written is said, and does not fail the job,
// which has done its work.
//
// Collective over all ranks, blocking.
func (w *World) tell() error {
	if w.trace == nil {
		return nil
	}
	var all []*trace.Summary
	var logs []*trace.Log
	err := w.channel.Exchange(control.End, func(c control.Comm) error {
		// Rank 0 decides: ranks take different times.
		show, err := control.Broadcast(c, []byte{byte(b2i(w.wantsSummary()))}, 0)
		if err != nil || show[0] == 0 && !w.trace.Keeps() {
			return err
		}
		h := w.control.st.host
		clocks, err := w.clocks.End(h, w.node)
		if err == nil && show[0] != 0 {
			var start []trace.Part
			w.startup.Each(func(name string, ms float64) { start = append(start, trace.Part{Name: name, Ms: ms}) })
			all, err = w.trace.Summary(w.Rank(), start, w.memoryPeaks()).Gather(c, clocks)
		}
		if err == nil && w.trace.Keeps() {
			logs, err = w.trace.Gather(h, clocks)
		}
		return err
	})
	if err != nil {
		return err
	}
	if all != nil {
		w.showSummary(trace.Compare(all))
	}
	if w.traced != nil {
		w.writeTrace(logs)
	}
	return nil
}

// wantsSummary says whether there is to be a summary: always where it is asked for, and after a while where the log is read.
func (w *World) wantsSummary() bool {
	return w.cfg.Summary == "on" ||
		w.cfg.Summary == "auto" && w.flags != nil && time.Since(w.startup.Started) > summarizeAfter && w.log.GetLevel() <= zerolog.InfoLevel
}

// memoryPeaks is the most memory of each kind that was in use.
func (w *World) memoryPeaks() (list []trace.Memory) {
	pools := w.dev.Pools()
	seen := []*exec.Pool{pools.Device, pools.Pinned, pools.Managed}
	if w.symmetric != nil {
		seen = append(seen, &w.symmetric.pool)
	}
	for i, p := range seen {
		peak := p.Peak()
		if slices.Contains(seen[:i], p) || peak == 0 {
			continue
		}
		kind := p.What
		if !p.Host {
			kind += " of " + w.Device()
		}
		list = append(list, trace.Memory{Kind: kind, Peak: peak})
	}
	if peak := procfs.Peak("/"); peak > 0 {
		list = append(list, trace.Memory{Kind: "process", Peak: peak})
	}
	return list
}

// showSummary writes the summary, to where the log goes.
func (w *World) showSummary(t *trace.Table) {
	facts := w.trace.Facts()
	if w.cfg.LogFormat == "json" {
		w.log.WithLevel(zerolog.InfoLevel).Interface("summary", t).Interface("added", facts).Msg("summary")
		return
	}
	fmt.Fprint(os.Stderr, plain.Text(t.Text(facts)))
}

// writeTrace writes the file of --trace.
func (w *World) writeTrace(logs []*trace.Log) {
	f := w.traced
	w.traced = nil
	if err := f.Write(logs); err != nil {
		w.log.Error().Err(err).Msg("the trace is not written")
		return
	}
	line := w.log.Info().Str("file", w.cfg.Trace)
	if dropped := trace.Dropped(logs); dropped > 0 {
		line = line.Uint64("dropped", dropped)
	}
	line.Msg("trace: open it at ui.perfetto.dev, or type launch trace " + w.cfg.Trace)
}

// Summarize adds a line to the summary at the end of the run (--summary), such as a rate that the program knows: its name
// and its value. What rank 0 adds is shown. A name that was added before gets another value. It does not block.
func (w *World) Summarize(name, value string) { w.trace.Add(name, value) }
