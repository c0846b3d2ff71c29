package job_test

import (
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/verify"
	"lockstep/spmd/internal/watch"
)

// talk is a rank's news of its calls: those of a job that has made as many since the heartbeat
// before as a page shows.
type talk struct {
	rank    int
	world   *verify.Recorder
	reports verify.Reporter
	carrier verify.Carrier
}

func newTalk(rank, size int) *talk {
	t := &talk{rank: rank, world: verify.NewRecorder("world", rank, size)}
	t.reports = verify.Reporter{Recorders: func() []*verify.Recorder { return []*verify.Recorder{t.world} },
		Ended: func() bool { return false }}
	return t
}

func (t *talk) heartbeat() []byte {
	c := &coll.Call{Kind: coll.AllReduce, Type: elem.Float32, Op: elem.Sum, N: 124475904}
	for range 16 {
		t.world.Note(t.world.Begin(c, nil), c, nil, 0, nil)
		t.world.Leave()
	}
	return t.reports.Heartbeat()
}

// carry returns the news that a carrier of its node's heartbeats passes on.
func (t *talk) carry(beats []watch.Beat) (on []watch.Beat) {
	for _, b := range beats {
		if said := t.carrier.Hear(b.Rank, b.State); said != nil {
			on = append(on, watch.Beat{Rank: b.Rank, State: said})
		}
	}
	if pages := t.carrier.Pages(); pages != nil {
		on = append(on, watch.Beat{Rank: t.rank, State: pages})
	}
	return on
}
