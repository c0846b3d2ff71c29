package exec

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Queue is the order of a stream, as those see it who wait for points in it.
type Queue interface {
	// Reached says whether the first seq commands have run. It never blocks; false
	// may mean that this cannot be told at present.
	Reached(seq uint64) bool
	// Wait blocks until the first seq commands have run, or never will.
	Wait(seq uint64)
	// Failure returns the error of a queue that failed within the first seq commands.
	Failure(seq uint64) error
}

// Point is a place in a queue: behind its first Seq commands. The zero Point is reached.
type Point struct {
	Q   Queue
	Seq uint64
}

// Passed says whether the queue has got there, and the error where it never will.
func (p Point) Passed() (bool, error) {
	if p.Q == nil || p.Q.Reached(p.Seq) {
		return true, p.Failure()
	}
	return false, nil
}

// Wait blocks until the queue has got there, or never will.
func (p Point) Wait() error {
	if p.Q == nil {
		return nil
	}
	p.Q.Wait(p.Seq)
	return p.Failure()
}

// Failure returns the error of a queue that failed before the point.
func (p Point) Failure() error {
	if p.Q == nil {
		return nil
	}
	return p.Q.Failure(p.Seq)
}

// Patience bounds waits that hardly a program ever meets.
const Patience = 2 * time.Minute

// ErrImpatient is what waiting beyond Patience ends with.
var ErrImpatient = fmt.Errorf("what is in flight did not finish in %v", Patience)

// WaitFor looks, without blocking in a library, until all points are reached, one of
// their queues has failed, or Patience is at its end.
func WaitFor(points []Point) error {
	for start := time.Now(); !reached(points); Nap() {
		for _, p := range points {
			if err := p.Failure(); err != nil {
				return err
			}
		}
		if time.Since(start) > Patience {
			return ErrImpatient
		}
	}
	return nil
}

func reached(points []Point) bool {
	for _, p := range points {
		if !p.Q.Reached(p.Seq) {
			return false
		}
	}
	return true
}

var napTime = unix.NsecToTimespec(int64(50 * time.Microsecond))

// Nap sleeps between two looks, for 50 us. Go's timers may take over a millisecond, by
// which every longer wait would end too late.
func Nap() { _ = unix.Nanosleep(&napTime, nil) }
