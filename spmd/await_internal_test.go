package spmd

import "testing"

// fakeWritten is a double of a queue of a GPU.
type fakeWritten struct{ tail, passed uint64 }

func (q *fakeWritten) Tail() uint64    { return q.tail }
func (q *fakeWritten) Pass(seq uint64) { q.passed = seq }

// Who awaits numbers again and again, and never synchronizes, still has the queue know that the work before is over.
func TestAwaitTellsWhatIsOver(t *testing.T) {
	q := &fakeWritten{}
	a := awaiter{q: q, words: make([]uint32, 2)}
	for i := range 100 {
		a.mark()
		q.tail++
		a.words[0], a.words[1] = 1, 2
		if err := a.wait(); err != nil {
			t.Fatal(err)
		}
		if q.passed != uint64(i) {
			t.Fatalf("after work %d, of which the end is not known, %d are known to be over", i+1, q.passed)
		}
	}
}
