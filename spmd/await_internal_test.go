package spmd

import (
	"testing"

	"lockstep/spmd/internal/exec"
)

// Who awaits numbers again and again, and never synchronizes, still has spmd know that the work before is over.
func TestAwaitTellsWhatIsOver(t *testing.T) {
	q := &gpuQueue{}
	g := &Graph{}
	a := awaiter{s: &Stream{q: q, dev: q}, words: make([]uint32, 2)}
	for i := range 100 {
		a.mark()
		g.launched(exec.Point{Q: q, Seq: q.tail.Load() + 1})
		q.tail.Add(1)
		a.words[0], a.words[1] = 1, 2
		if err := a.wait(); err != nil {
			t.Fatal(err)
		}
		if known := q.known.Load(); known != uint64(i) {
			t.Fatalf("after work %d, of which the end is not known, %d are known to be over", i+1, known)
		}
	}
	if n := len(g.replaying()); n > 2 {
		t.Errorf("%d replays may be running", n)
	}
}
