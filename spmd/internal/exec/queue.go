package exec

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Queue is a stream of a device. Its methods are safe for use by several goroutines.
type Queue interface {
	Order
	Name() string
	// End returns the present end.
	End() Point
	// Idle reports whether everything is known to have run. It never blocks.
	Idle() bool
	// Begin locks the queue and returns its slot for the next command, for Enqueue. The caller
	// fills the fields that commands of this kind have.
	Begin(k CommandKind) (*Command, error)
	// Enqueue enqueues the command that Begin returned, and unlocks the queue. In a capture the
	// command is recorded.
	Enqueue(c *Command) error
	// Uses notes, between Begin and Enqueue, that the command uses two blocks, which may be nil.
	Uses(a, b *Block)
	// UsesArgs is Uses for the arguments of the command that Begin returned.
	UsesArgs(c *Command)
	// Using returns up to where the queue uses a block, and whether it has not got there.
	Using(b *Block) (p Point, pending bool)
	// After makes what is enqueued from now on wait for a point of another queue of the device.
	// e was recorded there, or is nil. The queue is not being captured.
	After(p Point, e Timer) error
	// Passed returns how many commands are known to have run. It only reads memory.
	Passed() uint64
	// Lane returns the part of a capture that the queue is; nil if it is not being captured.
	Lane() *Lane
	// Scratch returns memory of at least n bytes for the next command. Later commands of the queue
	// may use it again. A capture has its own, since a graph may be replayed on another queue.
	Scratch(n int) (*Block, error)
	// Running returns where the command was enqueued that the host runs at present, if is says that
	// it is meant.
	Running(is func(*Command) bool) (site string, ok bool)
	// State says what the queue holds, and whether that is anything.
	State() (State, bool)
	// Close ends the queue, whose work is over.
	Close() error
	// Place returns the queue's place among the queues of its device, for Block.
	Place() *Seat
}

// State describes a queue for a report.
type State struct {
	Waiting uint64 // commands that are not known to have run
	Command string // the first of them, on the host
	At      string // where that was enqueued: "from FILE:LINE"
	Device  bool   // the queue is one of a GPU
}

// HostJob is work of the host for a queue of a device.
type HostJob struct {
	By      string       // who needs the host, for errors
	Hold    func() error // makes the queue wait
	Run     func() error // does the work, and lets the queue go on
	Release func() error // lets it go on, instead of Run
}

// Timer tells when a queue got to a point. An event has one of its device.
type Timer interface {
	// Record moves the timer to the present end of q, which is not being captured.
	Record(q Queue) (Point, error)
	// Wait blocks until the point of the last Record, p, is reached. It returns the failure of a
	// queue that failed before.
	Wait(p Point) error
	// Passed reports whether p is reached.
	Passed(p Point) (bool, error)
	// Since returns the time from another timer of the device. Both have been reached.
	Since(o Timer) (time.Duration, error)
	// Close gives up what the timer has of the device. A second Close does nothing.
	Close() error
}

// Replay is a device's form of a capture. A command of its queues runs it.
type Replay interface {
	// Close gives up what the replay has of the device, once it has run. It last ran up to last.
	Close(last Point) error
}

// Order is a queue, as those see it who wait for points in it.
type Order interface {
	// Reached reports whether the first seq commands have run. It never blocks; false may mean that
	// this cannot be told at present.
	Reached(seq uint64) bool
	// Wait blocks until the first seq commands have run, or never will.
	Wait(seq uint64)
	// Failure returns the error of a queue that failed within the first seq commands.
	Failure(seq uint64) error
}

// Point is a place in a queue: behind its first Seq commands. The zero Point is reached.
type Point struct {
	Q   Order
	Seq uint64
}

// Passed reports whether the queue has got there, or never will, and then why.
func (p Point) Passed() (bool, error) {
	if p.Q == nil || p.Q.Reached(p.Seq) {
		return true, p.Failure()
	}
	err := p.Failure() // what is behind the failed command counts as skipped before the queue has got to it
	return err != nil, err
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

// ErrImpatient is the error of waiting beyond Patience.
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

// Yield lets other threads run on this core. It takes less than a microsecond if none wants to.
// Source: sched_yield(2).
func Yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
