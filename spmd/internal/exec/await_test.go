package exec

import (
	"testing"

	"lockstep/internal/testkit"
)

// fakeWritten is a double of a queue of a GPU.
type fakeWritten struct{ tail, passed uint64 }

func (q *fakeWritten) Tail() uint64    { return q.tail }
func (q *fakeWritten) Pass(seq uint64) { q.passed = seq }
func (q *fakeWritten) Written(*Block)  {}

// A host that awaits numbers again and again, and never synchronizes, still has the queue know that
// the work before is over.
func TestAwaitTellsWhatIsOver(t *testing.T) {
	q := &fakeWritten{}
	a := Await{Q: q, Words: make([]uint32, 2)}
	for i := range 100 {
		a.Mark()
		q.tail++
		a.Words[0], a.Words[1] = 1, 2
		testkit.Must(t, a.Wait(func() error { t.Fatal("it waits for the end of the queue"); return nil }))
		if q.passed != uint64(i) {
			t.Fatalf("after work %d, of which the end is not known, %d are known to be over", i+1, q.passed)
		}
	}
	ended := false
	a.Mark()
	a.Words[0] = 1
	if err := a.Wait(func() error { ended = true; return nil }); err != nil || !ended {
		t.Errorf("half of it was written, and the end of the queue was waited for: %v, %v", ended, err)
	}
}
