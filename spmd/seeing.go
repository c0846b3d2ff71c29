package spmd

import (
	"errors"
	"fmt"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
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
	if w.cfg.Trace == "" {
		return nil
	}
	if w.Rank() == 0 {
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

// tell writes the file of --trace. What cannot be written is said, and does not fail the job, which has done its work.
//
// Collective over all ranks, blocking.
func (w *World) tell() error {
	if !w.trace.Keeps() {
		return nil
	}
	var logs []*trace.Log
	err := w.channel.Exchange(control.End, func(control.Comm) (err error) {
		logs, err = w.trace.Gather(w.control.st.host, w.node, &w.clocks)
		return err
	})
	if err != nil || w.traced == nil {
		return err
	}
	f := w.traced
	w.traced = nil
	if err := f.Write(logs); err != nil {
		w.log.Error().Err(err).Msg("the trace is not written")
		return nil
	}
	line := w.log.Info().Str("file", w.cfg.Trace)
	if dropped := trace.Dropped(logs); dropped > 0 {
		line = line.Uint64("dropped", dropped)
	}
	line.Msg("trace: open it at ui.perfetto.dev, or type launch trace " + w.cfg.Trace)
	return nil
}
