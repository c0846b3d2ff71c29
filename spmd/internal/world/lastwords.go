package world

import (
	"time"

	"lockstep/spmd/internal/trace"
)

// account is this rank's account of its time after the job has failed, or when a signal ends it. It
// enters neither MPI nor CUDA.
func (w *World) account() []byte {
	if w.rank.Trace == nil {
		return nil
	}
	b, err := w.rank.Trace.Account(w.summary(), w.rank.All.Size()).Pack()
	if err != nil { // it holds nothing that JSON has not
		return nil
	}
	return b
}

// tellLast says where the time went, of the ranks whose accounts ask returns, and writes their
// trace. tell does the same of all ranks. It enters neither MPI nor CUDA.
func (w *World) tellLast(failed bool, until time.Time, ask func() [][]byte) {
	if w.rank.Trace == nil {
		return
	}
	shows := w.wantsSummary() && (!failed || w.start.Config.Summary == "on")
	if !shows && !w.rank.Trace.Keeps() || !w.told.CompareAndSwap(false, true) {
		return
	}
	clocks := w.clocks.Since()
	var all []*trace.Summary
	var logs []*trace.Log
	for r, b := range ask() {
		a, err := trace.Unpack(b)
		if err != nil || r >= len(clocks) { // it has not come
			continue
		}
		a.Align(clocks[r])
		all = append(all, a.Summary)
		if a.Log != nil {
			logs = append(logs, a.Log)
		}
	}
	if shows && len(all) > 0 {
		w.showSummary(trace.Compare(all, w.rank.All.Size()))
	}
	if len(logs) == 0 {
		return
	}
	if w.traced.Load() == nil { // rank 0 has it, which is dead
		if err := w.createTrace(); err != nil {
			w.rank.Log.Warn().Msg(err.Error())
			return
		}
	}
	if err := trace.WriteLast(w.traced.Swap(nil), w.start.Config.Trace, logs, w.rank.All.Size(), until); err != nil {
		w.rank.Log.Warn().Err(err).Msg("--trace: the trace is not written")
		return
	}
	w.showTrace(logs)
}
