package exec

import (
	"sync/atomic"
	"time"
)

// Written is a queue whose results the host sees before it knows how far the queue is.
type Written interface {
	// Tail returns how many commands were enqueued.
	Tail() uint64
	// Pass notes that the first seq commands have run.
	Pass(seq uint64)
	// Written notes that the command that used a block has written it.
	Written(b *Block)
}

// Await looks at memory that a device writes, again and again.
type Await struct {
	Q     Written
	Words []uint32 // of the memory; none if there is nothing to see
	Block *Block   // that they lie in
	seen  int
	// The commands before the work, which are over when the work has written.
	before uint64
}

const (
	// unwritten marks words. If the work writes just that, the end of the queue tells.
	unwritten = 0x7ff7a55a
	// awaitFor is how long to look. After that, waiting for the end costs hardly more.
	awaitFor = time.Millisecond
)

// Mark comes before the work is enqueued.
func (a *Await) Mark() {
	if len(a.Words) > 0 {
		a.before = a.Q.Tail()
	}
	for i := range a.Words {
		atomic.StoreUint32(&a.Words[i], unwritten)
	}
	a.seen = 0
}

// Wait returns when all words have been written, or what end returns. end waits for the end of the
// queue.
func (a *Await) Wait(end func() error) error {
	for start := time.Now(); len(a.Words) > 0 && time.Since(start) < awaitFor; {
		for range 32 {
			for a.seen < len(a.Words) && atomic.LoadUint32(&a.Words[a.seen]) != unwritten {
				a.seen++
			}
			if a.seen == len(a.Words) {
				a.Q.Pass(a.before) // or what was issued would pile up if nobody synchronizes
				a.Q.Written(a.Block)
				a.Block.Seen()
				return nil
			}
		}
	}
	return end()
}
