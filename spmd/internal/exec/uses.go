package exec

import (
	"errors"
	"math/bits"
	"sync/atomic"
)

// A block knows which queues of its device use it, and up to which command. A host that reads or
// writes the memory waits for those, and for nothing else. What it knows of a queue is changed
// under the lock of that queue.

// seats is how many queues a block tells apart. Those beyond share the last seat, and are waited
// for to their ends.
const seats = 8

// shared is the seat of queues that got none of their own.
const shared = seats - 1

// Seat is the place of a queue among the queues of its device; queues embed it.
type Seat struct {
	n      uint8
	strand *strand // nil without --check
}

func (s *Seat) Place() *Seat { return s }

// bit returns the seat's of those that a block may have.
func (s *Seat) bit() uint32 { return 1 << (s.n % seats) }

// uses has what a block knows of queues.
type uses struct {
	by       atomic.Uint32 // a bit for each seat whose queue may still use the block
	captures atomic.Int32  // under way, that use it
	last     [seats]uint64 // for each seat the number of the last command
}

// Busy reports whether queues may still use the block, which may be nil, or captures do. It costs
// two loads.
func (b *Block) Busy() bool {
	return b != nil && (b.uses.by.Load() != 0 || b.uses.captures.Load() != 0)
}

// UsedBy notes that command seq of the queue uses the block, which may be nil. The caller holds the
// lock of the queue.
func (b *Block) UsedBy(s *Seat, seq uint64) {
	if b == nil {
		return
	}
	if bit := s.bit(); b.uses.by.Load()&bit == 0 {
		b.uses.by.Or(bit)
	}
	if s.n != shared {
		b.uses.last[s.n%seats] = seq
	}
}

// LastUse is up to where the queue of a seat uses the block. The caller holds the lock of the
// queue.
func (b *Block) LastUse(s *Seat) uint64 { return b.uses.last[s.n%seats] }

// Unused notes that the queue of a seat no longer uses the block. The caller holds the lock of the
// queue.
func (b *Block) Unused(s *Seat) {
	if s.n != shared {
		b.uses.by.And(^s.bit())
	}
}

// Capture notes that so many captures more, or fewer, are under way that use the block.
func (b *Block) Capture(n int32) { b.uses.captures.Add(n) }

// ErrCaptured is why a host does not wait for a block.
var ErrCaptured = errors.New("captured")

// Settle implements Device.
func (s *Queues) Settle(b *Block, behind Queue) error {
	if InHostFunc() {
		return nil // whose place in its queue says what it may use
	}
	if b.uses.captures.Load() != 0 {
		return ErrCaptured
	}
	for by := b.uses.by.Load(); by != 0; by &= by - 1 {
		i := bits.TrailingZeros32(by)
		if i == shared {
			if err := s.settleOthers(behind); err != nil {
				return err
			}
			continue
		}
		at := s.seats[i].Load()
		if at == nil {
			continue // the queue has ended
		}
		for p, pending := (*at).Using(b); pending; p, pending = (*at).Using(b) {
			if err := settled(*at, p, behind); err != nil {
				return err
			}
			if behind != nil {
				break
			}
		}
	}
	return nil
}

// settleOthers is Settle for the queues without a seat of their own.
func (s *Queues) settleOthers(behind Queue) error {
	for _, p := range s.marks(func(q Queue) bool { return q.Place().n == shared }) {
		if err := settled(p.Q.(Queue), p, behind); err != nil {
			return err
		}
	}
	return nil
}

func settled(q Queue, p Point, behind Queue) error {
	switch {
	case q == behind:
		return nil
	case q.Lane() != nil && !q.Reached(p.Seq):
		return ErrCaptured
	case behind == nil:
		return p.Wait()
	case q.Reached(p.Seq):
		return p.Failure()
	}
	return behind.After(p, nil)
}
