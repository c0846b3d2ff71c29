package job

import (
	"encoding/json"
	"os"
	"path/filepath"

	"lockstep/internal/process"
)

// serveLive answers `launch status` until stop, on a socket without a file. Processes of this user
// and of root on this node get an answer. If there can be no such socket the job goes on without.
func (j *Job) serveLive() (stop func()) {
	ln, err := process.Listen()
	if err != nil {
		j.Log.Warn().Err(err).Msg("launch status will not find this rank")
		return func() {}
	}
	me := process.Rank{Program: filepath.Base(os.Args[0]), Rank: j.Rank, Size: j.Size, Node: j.Node,
		PID: os.Getpid(), Started: j.Started}
	if j.watchdog != nil {
		me.Job = j.watchdog.name
	}
	go process.Serve(ln, func(request string) string { return j.answer(me, request) })
	return func() { ln.Close() }
}

// answer serves one request. A report is about the whole job.
func (j *Job) answer(me process.Rank, request string) string {
	switch request {
	case process.RequestWho:
		me.Phase = *j.phase.Load()
		b, err := json.Marshal(me)
		if err != nil {
			return ""
		}
		return string(b)
	case process.RequestText:
		return j.show(AsText)
	case process.RequestJSON:
		return j.show(AsJSON)
	}
	return ""
}
