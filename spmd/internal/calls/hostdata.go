package calls

import (
	"fmt"
	"runtime"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
)

// hostWork returns memory of n bytes for a call on the host, in its turn in MPI.
func (c *Comm) hostWork(n int) unsafe.Pointer {
	if n == 0 {
		return nil
	}
	const keep = 16 << 20 // what is larger goes after the call
	if n > keep {
		return unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))
	}
	if len(c.work) < n/8 {
		c.work = make([]uint64, n/8)
	}
	return unsafe.Pointer(unsafe.SliceData(c.work))
}

// EnterHost refuses a communicator or length with which a call on host memory cannot be made, and
// takes its turn in MPI. It returns memory of at least n bytes, which the caller has until
// LeaveHost. LeaveHost follows unless there is an error.
func (c *Comm) EnterHost(
	op string, kind coll.Kind, root int, t elem.Type, o elem.Op, n int,
) (p unsafe.Pointer, err error) {
	switch {
	case c == nil || c.freed || root < 0 || root >= c.size:
		err = c.Refuse(op, "rank", root)
	case !o.Has(t):
		err = fmt.Errorf("%s: %s: no such operation: %v of %v", ccall.At(), op, o, t)
	default:
		err = exec.RefuseInHostFunc(op)
	}
	if err != nil {
		return nil, c.Refused(kind, err)
	}
	if err := c.outOfCapture(kind, op); err != nil {
		return nil, err
	}
	order := c.r.Order
	if err := order.Enter(order.Take(1)); err != nil {
		return nil, err
	}
	return c.hostWork((n + 7) / 8 * 8), nil
}

// MakeHost makes a call on host memory between EnterHost and LeaveHost. The watchdog, --check,
// --summary and --trace see it.
func (c *Comm) MakeHost(made coll.Call) error {
	cmd := Request{Call: made, comm: c}
	p := c.recorder.Begin(&cmd.Call, nil)
	c.trace.Begin(c.r.Calls, &cmd.Call, nil)
	err := cmd.verify()
	if err == nil {
		c.recorder.Note(p, &cmd.Call, nil, 0, nil)
		err = c.host.Make(cmd.Call.Hidden())
		runtime.KeepAlive(&cmd)
	}
	c.trace.End(err)
	c.recorder.Leave()
	return err
}

// LeaveHost ends the turn that EnterHost took.
func (c *Comm) LeaveHost() { c.r.Order.Leave() }
