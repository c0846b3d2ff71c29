// Package calls decides and checks: it refuses a program's calls of communicators, queues and
// memory, or gives them a transport. Package spmd adds element types, and package exec runs
// enqueued commands.
//
// Every collective comes by Comm.Do, which routes it. Request.Run makes a collective on host
// memory. Request.Issue hands a collective on device memory to its transport.
package calls

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/cudaexec"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// Rank is shared by all calls of one rank in one world. Whoever starts the world sets its fields,
// and changes none later.
type Rank struct {
	Owner   any              // the World whose calls they are
	Order   *control.Tickets // of this rank's calls, in all of its worlds
	Log     *zerolog.Logger
	Dev     exec.Device
	GPU     *cudaexec.CUDA // Dev; nil where that is the host
	Env     route.Env      // of routers on a GPU
	Compare bool           // --check is not off: communicators have a Checker
	Check   verify.Mode    // Off during the start, which is one turn in MPI
	Trace   *trace.Tracer  // nil without --summary and --trace
	Calls   *trace.Thread  // what the program calls, among the events of Trace
	Where   func() string  // where the program's goroutine is; "" where that cannot be told

	All     *Comm            // of all ranks
	Node    *Comm            // of the ranks on this node
	Control *Comm            // of all ranks, for the framework's own traffic
	Channel *control.Channel // over it

	symmetric *symmetric // nil where there is none
	blocking  exec.Queue // of collectives that block, on a GPU
	parts     parts
	capturing atomic.Int32
	events    atomic.Int64 // that are open
	pause     sync.Mutex   // guards yielder
	yielder   host.Yielder

	mu       sync.Mutex
	comms    []*Comm
	captures []*exec.Capture // that are not closed
	closed   bool
	slowSaid bool // that communicators have no memory of their own
}

// OnHost says whether the device is the host.
func (r *Rank) OnHost() bool { return r.GPU == nil }

// Capturing says whether a stream is being captured.
func (r *Rank) Capturing() bool { return r.capturing.Load() != 0 }

// SizeOf returns the bytes of n elements. It refuses numbers of elements that no memory holds.
func SizeOf(t elem.Type, n int) (bytes int, err error) {
	bytes, ok := elem.Product(n, t.Size())
	if !ok {
		err = fmt.Errorf("%s: Alloc: %d elements of %v", ccall.At(), n, t)
	}
	return bytes, err
}

// Alloc returns memory of a pool for n elements; a block without memory for none.
func (r *Rank) Alloc(p *exec.Pool, t elem.Type, n int) (*exec.Block, error) {
	bytes, err := SizeOf(t, n)
	if err != nil {
		return nil, err
	}
	b := &exec.Block{Owner: r}
	if n == 0 {
		return b, nil
	}
	if err = exec.RefuseInHostFunc("Alloc"); err == nil {
		err = p.Alloc(b, bytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: Alloc of %d %v: %w", ccall.At(), n, t, err)
	}
	return b, nil
}

func Of(b *exec.Block) *Rank { return b.Owner.(*Rank) }

// CheckBlock refuses a freed block, and one of another world.
func (r *Rank) CheckBlock(b *exec.Block) error {
	if b != nil && !r.has(b) {
		return r.blockError(b)
	}
	return nil
}

// has says whether a block is this world's, and not freed.
func (r *Rank) has(b *exec.Block) bool { return b.Owner == r && !b.Freed.Load() }

func (r *Rank) blockError(b *exec.Block) error {
	if b.Owner != r {
		return fmt.Errorf("%s: the buffer of %d bytes belongs to another world", ccall.At(), b.Bytes)
	}
	return fmt.Errorf("%s: the buffer of %d bytes was freed at %s", ccall.At(), b.Bytes, &b.At)
}

// Gone returns why the memory of a block is not there any more, or nil. op is the caller's name.
func Gone(b *exec.Block, op string) error {
	switch {
	case b == nil:
		return nil
	case b.Freed.Load():
		return freedError(b, op)
	case Of(b).Dev.Pools().Device.Closed():
		return fmt.Errorf("%s: %s: the world that the buffer belongs to is closed", ccall.At(), op)
	}
	return nil
}

// Settle orders a call that blocks behind what the streams of its rank were given that uses a
// block: behind, a queue, waits for that, or if it is nil the caller. op is the caller's name.
func Settle(b *exec.Block, op string, behind exec.Queue) error {
	if !b.Busy() {
		return nil
	}
	switch err := Of(b).Dev.Settle(b, behind); {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrCaptured):
		return fmt.Errorf("%s: %s: a stream that uses the buffer is being captured", ccall.At(), op)
	default:
		return fmt.Errorf("%s: %s: %w", ccall.At(), op, err)
	}
}

func freedError(b *exec.Block, op string) error {
	return fmt.Errorf("%s: %s: the buffer was freed at %s", ccall.At(), op, &b.At)
}

// Free gives a block back, once. Queues may go on using it up to their present ends.
func Free(b *exec.Block) error {
	if err := exec.RefuseInHostFunc("Free"); err != nil {
		return err
	}
	if !b.Freed.CompareAndSwap(false, true) {
		return nil
	}
	b.At.Here(0)
	if b.Pool != nil {
		b.Pool.Release(b, Of(b).Dev.Marks())
	}
	return nil
}

// CountEvents notes that so many events more, or fewer, are open.
func (r *Rank) CountEvents(n int64) { r.events.Add(n) }

// Queues returns the queues of all streams; none before the device is chosen.
func (r *Rank) Queues() []exec.Queue {
	if r.Dev == nil {
		return nil
	}
	return r.Dev.All()
}

// Opened returns, by kind, how many objects are open that have to be closed, or freed.
func (r *Rank) Opened() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	pools := r.Dev.Pools()
	return map[string]int{"communicators": len(r.comms), "graphs": len(r.captures),
		"streams": len(r.Dev.All()), "events": int(r.events.Load()),
		"bytes": pools.Device.InUse() + pools.Pinned.InUse()}
}

func (r *Rank) Recorders() []*verify.Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*verify.Recorder, len(r.comms))
	for i, c := range r.comms {
		list[i] = c.recorder
	}
	return list
}

// Drain waits for all streams and returns the first error of each.
func (r *Rank) Drain() error {
	var err error
	for _, q := range r.Queues() {
		if q.Lane() != nil {
			err = errors.Join(err, fmt.Errorf("%s: Synchronize: stream %q is being captured", ccall.At(), q.Name()))
			continue
		}
		err = errors.Join(err, q.End().Wait())
	}
	return err
}

// UseDevice has the communicators that were made before the device was chosen carry its memory.
func (r *Rank) UseDevice() {
	for _, c := range r.comms {
		c.onGPU()
	}
}

// OpenBlocking opens the stream of the calls that block, on a GPU.
func (r *Rank) OpenBlocking() (err error) {
	if r.blocking, err = r.NewQueue("blocking calls", exec.High); err == nil {
		r.blocking.Place().Settles()
	}
	return err
}

// WarmUp runs the first collective on the GPU. A backend that joins the ranks connects them in it.
//
// Collective over all ranks, blocking.
func (r *Rank) WarmUp() error {
	var c Request
	c.Kind = coll.Barrier
	err := r.All.Do(r.blocking, &c, 0, 0, 0)
	return errors.Join(err, r.Synchronize(r.blocking))
}

// MarkClosed notes that the world closes, and says whether it had begun to before. From then on
// there are no new streams.
func (r *Rank) MarkClosed() (before bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.closed = r.closed, true
	return before
}

// CloseComms closes the communicators, the last that was made first. Collective over all ranks, in
// the caller's turn.
func (r *Rank) CloseComms() (err error) {
	for _, c := range slices.Backward(r.comms) {
		c.freed = true
		err = errors.Join(err, c.free())
	}
	return err
}
