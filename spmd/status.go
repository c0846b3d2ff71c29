package spmd

import (
	"encoding/json"
	"os"
	"path/filepath"

	"lockstep/internal/live"
)

// serveLive answers `launch status`: on a socket without a file, on which this user's
// and root's processes on this node get an answer. Where it cannot be had the job goes on
// without.
func (w *World) serveLive(o *overseer) (stop func()) {
	ln, err := live.Listen()
	if err != nil {
		w.Log.Warn().Err(err).Msg("launch status will not find this rank")
		return func() {}
	}
	me := live.Rank{Program: filepath.Base(os.Args[0]), Rank: w.Rank(), Size: w.Size(), Node: w.node, PID: os.Getpid(), Started: w.startup.started}
	if o != nil {
		me.Job = o.job
	}
	go live.Serve(ln, func(request string) string { return w.answer(o, me, request) })
	return func() { ln.Close() }
}

// answer serves one request. Whoever asks for a report gets that of the whole job.
func (w *World) answer(o *overseer, me live.Rank, request string) string {
	switch request {
	case live.Who:
		me.Phase = w.phase.Load().(string)
		b, err := json.Marshal(me)
		if err != nil {
			return ""
		}
		return string(b)
	case live.Text:
		return o.show(w, false)
	case live.JSON:
		return o.show(w, true)
	}
	return ""
}
