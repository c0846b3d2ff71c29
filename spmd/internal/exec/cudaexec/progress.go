package cudaexec

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// progress says how far a stream on a GPU has got. It is a word in host memory that the stream
// itself writes, if KeepSigning has enqueued that. The watch reads it without a call to the driver,
// which may hang with the stream.
type progress struct {
	reading sync.Mutex // of word, by who watches, while the queue closes
	// word is the low half of a number of commands, which have run. It is nil if there was none
	// left, or when the queue has given it back.
	word  *uint32
	wrote atomic.Uint64 // the last number whose writing was enqueued
	// Since when, in Unix ns, the host hands over a collective, and waits for the
	// stream; 0 when it does not, or not for long.
	issuing, waiting atomic.Int64
}

const signBytes = 4096 // of all words of a GPU

// splitWords makes words of pinned memory. Each stream takes one.
func splitWords(base unsafe.Pointer) []*uint32 {
	var words []*uint32
	for i := 0; i < signBytes; i += 4 {
		words = append(words, (*uint32)(unsafe.Add(base, i)))
	}
	return words
}

// takeWord returns a word that is 0; nil if so many streams have none left.
func (g *GPU) takeWord() *uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.words)
	if n == 0 {
		return nil
	}
	w := g.words[n-1]
	g.words = g.words[:n-1]
	atomic.StoreUint32(w, 0)
	return w
}

// giveWord gives back the word of a stream that has ended.
func (q *Queue) giveWord() {
	q.reading.Lock()
	w := q.word
	q.word = nil
	q.reading.Unlock()
	if w != nil {
		q.g.mu.Lock()
		q.g.words = append(q.g.words, w)
		q.g.mu.Unlock()
	}
}

// sign has the stream write its word behind all issued commands, if there are collectives since the
// last word.
func (q *Queue) sign() {
	q.mu.Lock()
	defer q.mu.Unlock()
	seq := q.tail.Load()
	if q.word == nil || q.closed || q.lane.Load() != nil || q.fail.Load() != nil ||
		q.coll.Load() <= max(q.wrote.Load(), q.known.Load()) {
		return
	}
	q.broken(q.write(seq))
}

// write has the stream write its word behind all issued commands. The caller holds q.mu.
func (q *Queue) write(seq uint64) error {
	q.wrote.Store(seq)
	return q.h.WriteValue(unsafe.Pointer(q.word), uint32(seq))
}

// signFor has the stream write its word behind seq commands or more, for a host that waits. Looking
// at memory takes less, and notices the end sooner, than asking the driver for an event. It returns
// how many commands that is. It is not ok if the stream has no word, is being captured, or has an
// event for them already, before its end. The caller holds q.mu.
func (q *Queue) signFor(seq uint64) (end uint64, ok bool) {
	if q.word == nil || q.lane.Load() != nil || q.behind(seq) != nil {
		return 0, false
	}
	if wrote := q.wrote.Load(); wrote >= seq {
		return wrote, true
	}
	end = q.tail.Load()
	if err := q.write(end); err != nil {
		q.broken(err)
		return 0, false
	}
	return end, true
}

// watch looks at the word for a moment. Then it asks the driver once, which knows of failures.
func (q *Queue) watch(seq uint64, slice time.Duration) (bool, error) {
	if q.Passed() >= seq {
		return true, nil
	}
	for start := time.Now(); time.Since(start) < slice; {
		for range 32 {
			if q.Passed() >= seq {
				return true, nil
			}
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true, nil
	}
	return q.h.Query()
}

// KeepSigning implements exec.Device: it signs all streams now and then, until stop. It runs apart
// from the watch, since the driver may hold it up.
func (d *CUDA) KeepSigning(every time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, q := range d.All() {
			if d.capturing.Load() == 0 {
				q.(*Queue).sign()
			}
			q.(*Queue).catchUp()
		}
	}
}

// Passed implements exec.Queue: how many commands are known to have run. It only reads memory.
func (q *Queue) Passed() uint64 {
	q.reading.Lock()
	defer q.reading.Unlock()
	known := q.known.Load()
	if q.word == nil {
		return known
	}
	wrote := q.wrote.Load()
	return max(known, wrote-uint64(uint32(wrote)-atomic.LoadUint32(q.word)))
}

// Position says how many commands have run, and whether more are on their way.
func (q *Queue) Position() (at uint64, busy bool) {
	passed := q.Passed()
	return passed, passed < q.wrote.Load()
}

// Stuck reports whether the host has waited for collectives of the stream, or has been handing one
// over, for longer than limit.
func (q *Queue) Stuck(now time.Time, limit time.Duration) bool {
	long := func(since int64) bool { return since != 0 && now.Sub(time.Unix(0, since)) > limit }
	return long(q.issuing.Load()) || long(q.waiting.Load()) && q.coll.Load() > q.Passed()
}

// String returns what reports call the work of the queue.
func (q *Queue) String() string {
	return fmt.Sprintf("what was enqueued on stream %q, collectives among it,", q.name)
}
