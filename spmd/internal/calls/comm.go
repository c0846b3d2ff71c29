package calls

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// Comm is shared by all handles of a communicator. The zero handle has a nil Comm.
type Comm struct {
	r        *Rank
	id       string // the same on all its ranks
	splits   int    // made of it so far
	recorder *verify.Recorder
	checker  *verify.Checker // for --check; else nil
	trace    *trace.Ledger   // for --summary and --trace; else nil
	rank     int             // in it; -1 if this process is not
	size     int
	host     transport.Host
	byHost   transport.Transport // host, converted once
	whole    coll.Set            // calls that host makes as they are; none on a GPU
	routes   route.Router
	open     *group // between the start and the end of Group
	freed    bool
	mu       sync.Mutex
	spare    []*group // for reuse
	work     []uint64 // see hostWork
}

// Rank returns this process's number in the communicator; -1 if it is not in it.
func (c *Comm) Rank() int {
	if c == nil {
		return -1
	}
	return c.rank
}

// Size returns the number of ranks; 0 if this process is not one.
func (c *Comm) Size() int {
	if c == nil {
		return 0
	}
	return c.size
}

// Of returns the rank whose communicator it is.
func (c *Comm) Of() *Rank { return c.r }

// Rename gives it another name.
func (c *Comm) Rename(id string) {
	c.id, c.recorder.ID = id, id
	c.trace.Rename(id)
}

// Recorder returns the recorder, which keeps how far this rank has got on it.
func (c *Comm) Recorder() *verify.Recorder { return c.recorder }

// Host returns the communicator in host memory.
func (c *Comm) Host() transport.Host { return c.host }

// Routes has its transports.
func (c *Comm) Routes() *route.Router { return &c.routes }

// Usable refuses a communicator that this rank cannot use for op.
func (c *Comm) Usable(op string) error {
	if c == nil || c.freed || c.size == 0 {
		return c.Refuse(op, "rank", 0)
	}
	return nil
}

// Refuse says why op cannot be called on the communicator with a rank; what is the rank's name in
// the error.
func (c *Comm) Refuse(op, what string, rank int) error {
	switch {
	case c == nil:
		return fmt.Errorf("%s: %s: the zero Comm", ccall.At(), op)
	case c.freed:
		return fmt.Errorf("%s: %s: the communicator is closed", ccall.At(), op)
	case c.size == 0:
		return fmt.Errorf("%s: %s: this rank is not in the communicator (it gave Split a negative color)",
			ccall.At(), op)
	}
	return fmt.Errorf("%s: %s: %s %d is not in the communicator of %d ranks", ccall.At(), op, what, rank, c.size)
}

// Refused notes that this rank was refused a call of the communicator, and returns why.
func (c *Comm) Refused(kind coll.Kind, err error) error {
	if c != nil && c.recorder != nil && c.open == nil && !kind.Traits().Message {
		c.recorder.Refused(kind, c.r.Order.Idle(), err)
	}
	return err
}

// Refusef is Refused with the program's place, the kind and a text.
func (c *Comm) Refusef(kind coll.Kind, format string, args ...any) error {
	return c.Refused(kind, fmt.Errorf("%s: %v: "+format, append([]any{ccall.At(), kind}, args...)...))
}

// outOfCapture refuses a call that blocks in the middle of a capture.
func (c *Comm) outOfCapture(kind coll.Kind, op string) error {
	if !c.r.Capturing() {
		return nil
	}
	return c.Refused(kind, fmt.Errorf("%s: %s blocks, and stands in the middle of a capture", ccall.At(), op))
}

// CheckParts checks counts against the buffer that holds all parts, and the one that holds this
// rank's. whole and part are their names, n and own their lengths.
func (c *Comm) CheckParts(op coll.Kind, counts []int, whole string, n int, part string, own int) error {
	if err := c.CheckCounts(op, whole, n, counts); err != nil {
		return err
	}
	if counts[c.rank] != own {
		return c.Refusef(op, "%s has %d elements, counts[%d] is %d", part, own, c.rank, counts[c.rank])
	}
	return nil
}

// CheckCounts checks the counts of all ranks against a buffer of n elements, which is called name.
// A negative n stands for no buffer.
func (c *Comm) CheckCounts(op coll.Kind, name string, n int, counts []int) error {
	if err := c.Usable(op.String()); err != nil {
		return err
	}
	sum, ok := elem.Total(counts...)
	if len(counts) == c.size && ok && (sum == n || n < 0) {
		return nil
	}
	r := slices.IndexFunc(counts, func(k int) bool { return k < 0 })
	switch {
	case len(counts) != c.size:
		return c.Refusef(op, "%d counts for %d ranks", len(counts), c.size)
	case r >= 0:
		return c.Refusef(op, "counts[%d] is %d", r, counts[r])
	case !ok:
		return c.Refusef(op, "the counts add up to more than any memory holds")
	}
	return c.Refusef(op, "%s has %d elements, the counts add up to %d", name, n, sum)
}

// AddComm takes a communicator into the world, in the caller's turn. Collective over it.
func (r *Rank) AddComm(h transport.Host, id string) (*Comm, error) {
	slow := h.Slow()
	c := &Comm{r: r, id: id, rank: h.Rank(), size: h.Size(), host: h, byHost: h, whole: h.Caps().Kinds,
		routes: route.New(&r.Env, h)}
	c.recorder = verify.NewRecorder(id, c.rank, c.size)
	c.recorder.Place = c.place
	c.trace = r.Trace.Comm(id, c.rank, c.size)
	if id != control.ID && c.size > 1 && r.Compare {
		own, err := h.Dup()
		if err != nil {
			return nil, err
		}
		c.checker = verify.NewChecker(own, c.recorder)
		slow = errors.Join(slow, own.Slow())
	}
	r.mu.Lock()
	first := slow != nil && !r.slowSaid
	r.slowSaid = r.slowSaid || first
	r.mu.Unlock()
	if first {
		r.Log.Warn().Err(slow).Msg("small collectives go through messages, not through shared memory")
	}
	if !r.OnHost() {
		c.onGPU()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.comms = append(r.comms, c)
	return c, nil
}

// onGPU has the communicator work on the GPU that its world has.
func (c *Comm) onGPU() {
	c.recorder.OnDevice()
	c.routes.UseDevice()
	c.whole = 0
}

// Split makes the communicator of the ranks that gave the same color. A negative color makes one
// without ranks.
//
// Collective, blocking.
func (c *Comm) Split(color, key int) (part *Comm, err error) {
	if err := c.Usable("Split"); err != nil {
		return nil, err
	}
	if err := c.outOfCapture(control.Split, "Split"); err != nil {
		return nil, err
	}
	err = c.Pass(control.Split, func() error {
		part, err = c.split(color, key)
		return err
	})
	return part, err
}

// split is Split in its turn. MPI and NCCL have numbers of 32 bits: they get the first rank of the
// color, and this rank's place in it.
func (c *Comm) split(color, key int) (*Comm, error) {
	all, name := make([][2]int, c.size), color
	mine := &[2]int{color, key}
	if err := c.host.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), 2, elem.Int64); err != nil {
		return nil, err
	}
	before := 0
	for r, a := range all {
		if a[0] == name && (a[1] < key || a[1] == key && r < c.rank) {
			before++
		}
	}
	if key = before; color >= 0 {
		color = slices.IndexFunc(all, func(a [2]int) bool { return a[0] == name })
	} else {
		color = -1
	}
	m, err := c.host.Split(color, key)
	if err != nil {
		return nil, err
	}
	c.splits++
	part := &Comm{r: c.r, rank: -1}
	if m != nil {
		if part, err = c.r.AddComm(m, fmt.Sprintf("%s/%d:%d", c.id, c.splits, name)); err != nil {
			return nil, err
		}
	}
	if err := part.routes.Split(&c.routes, color, key); err != nil {
		return nil, err
	}
	return part, c.r.knowSymmetric(part)
}

// Close gives up a communicator that Split made. A second Close does nothing.
//
// Collective, blocking.
func (c *Comm) Close() error {
	if c == nil || c.host == nil || c.freed {
		return nil
	}
	r := c.r
	if c == r.All || c == r.Node {
		return fmt.Errorf("%s: Close: the communicator belongs to the world", ccall.At())
	}
	if err := c.outOfCapture(control.CloseComm, control.CloseComm.String()); err != nil {
		return err
	}
	return c.Pass(control.CloseComm, func() error {
		c.freed = true
		err := errors.Join(r.dropCaptures(c), c.free())
		r.mu.Lock()
		defer r.mu.Unlock()
		r.comms = slices.DeleteFunc(r.comms, func(o *Comm) bool { return o == c })
		return err
	})
}

// free gives back the communicator's resources. Collective, in the caller's turn.
func (c *Comm) free() error {
	err := c.routes.Close()
	if c.checker != nil {
		err = errors.Join(err, c.checker.Close())
	}
	return errors.Join(err, c.host.Close())
}

// In Pass a rank waits for others of a communicator, outside of the calls of the program. The watch
// sees which function the program called, and compares it with the other ranks' calls. The
// framework's own traffic between all ranks goes over a control.Channel. Its guard is the
// communicator control.ID.

// Pass implements control.Guard. It runs fn in its turn in MPI. The watchdog and --check see the
// call.
//
// Collective over c, blocking.
func (c *Comm) Pass(on control.Kind, fn func() error) error { return c.pass(on, 0, fn) }

// pass is Pass of a call that has a root.
func (c *Comm) pass(on control.Kind, root int, fn func() error) (err error) {
	if err := exec.RefuseInHostFunc(on.String()); err != nil {
		return c.Refused(on, err)
	}
	order := c.r.Order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	defer order.Leave()
	if on == control.End { // which is no call of the program: the watch knows without
		return fn()
	}
	call := Request{Call: coll.Call{Kind: on, Root: int32(root)}, comm: c}
	p := c.recorder.Begin(&call.Call, nil)
	defer c.recorder.Leave()
	if on != control.Start { // no call of the program either, and before what a summary calls the run
		c.trace.Begin(c.r.Calls, &call.Call, nil)
		defer func() { c.trace.End(err) }()
	}
	if err := call.verify(); err != nil {
		return err
	}
	c.recorder.Note(p, &call.Call, nil, 0, nil)
	return fn()
}

var _ control.Guard = (*Comm)(nil)

func (c *Comm) Strangers(on control.Kind) error { return verify.Strangers(c.host, on) }

// Exchange runs fn in its turn in MPI. fn talks to all ranks in host memory. op is the caller's
// name.
//
// Collective, blocking.
func (c *Comm) Exchange(op string, kind coll.Kind, root int, fn func() error) error {
	if c == nil || c.freed || root < 0 || root >= c.size {
		return c.Refused(kind, c.Refuse(op, "rank", root))
	}
	if err := c.outOfCapture(kind, op); err != nil {
		return err
	}
	if err := c.pass(kind, root, fn); err != nil {
		return fmt.Errorf("%s: %s: %w", ccall.At(), op, err)
	}
	return nil
}
