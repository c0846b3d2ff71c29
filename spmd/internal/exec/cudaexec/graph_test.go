package cudaexec

import (
	"testing"

	"lockstep/spmd/internal/exec"
)

// A graph keeps no more of its replays than may be running, if somebody tells the queue which are
// over.
func TestReplaysThatAreOver(t *testing.T) {
	q, g := &Queue{}, &graph{}
	for range 100 {
		before := q.Tail()
		g.launched(exec.Point{Q: q, Seq: before + 1})
		q.tail.Add(1)
		q.Pass(before)
	}
	if n := len(g.replaying()); n > 2 || n == 0 {
		t.Errorf("%d replays may be running", n)
	}
	for _, p := range g.replaying() {
		if p.Seq < 99 {
			t.Errorf("replay %d is over, %d commands have run", p.Seq, q.Passed())
		}
	}
}
