package calls

import (
	"fmt"
	"runtime"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/hostexec"
)

// These calls on data of the host take more than the call itself. Package spmd says what they do.

// Any returns whether have is true on any rank.
func Any(c *Comm, have bool) (bool, error) {
	p, err := c.EnterHost("Any", 0, elem.Uint8, elem.Sum, 8)
	if err != nil {
		return have, err
	}
	*(*bool)(p) = have
	err = c.MakeHost(coll.Call{Kind: coll.AllReduce, Type: elem.Uint8, Op: elem.Max, N: 1, Dst: p, Src: p})
	have = *(*bool)(p)
	c.LeaveHost()
	return have, err
}

// ReduceSlice makes a reduction of slices.
func ReduceSlice[T elem.Number](c *Comm, name string, kind coll.Kind, dst, src []T, op elem.Op, root int) error {
	t := elem.TypeOf[T]()
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	switch {
	case (kind == coll.AllReduce || c.Rank() == root) && len(dst) != len(src):
		return fmt.Errorf("%s: %s: dst has %d elements, src %d", ccall.At(), name, len(dst), len(src))
	case to != from && exec.Overlap(to, len(dst)*t.Size(), from, len(src)*t.Size()):
		return fmt.Errorf("%s: %s: dst of %d elements and src of %d overlap", ccall.At(), name, len(dst), len(src))
	}
	if _, err := c.EnterHost(name, root, t, op, 0); err != nil {
		return err
	}
	err := c.MakeHost(coll.Call{Kind: kind, Type: t, Op: op, Root: int32(root), N: len(src), Dst: to, Src: from})
	c.LeaveHost()
	return err
}

// AllReduceIf is a reduction over the ranks that have something. It says whether any has.
func AllReduceIf[T elem.Number](c *Comm, have bool, dst, src []T, op elem.Op) (any bool, err error) {
	t := elem.TypeOf[T]()
	size := t.Size()
	n := len(dst)
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	switch {
	case have && len(src) != n:
		return false, fmt.Errorf("%s: AllReduceIf: dst has %d elements, src %d", ccall.At(), n, len(src))
	case have && to != from && exec.Overlap(to, n*size, from, n*size):
		return false, fmt.Errorf("%s: AllReduceIf: dst of %d elements and src of %d overlap", ccall.At(), n, n)
	case op == elem.Avg:
		return false, fmt.Errorf("%s: AllReduceIf: %v is no operation of it: not every rank has values", ccall.At(), op)
	}
	const inOne = 4096
	if size == 1 || op == elem.Xor || (n+1)*size > inOne { // in a byte, votes would not add up; of two Xor makes none
		if any, err = Any(c, have); err != nil || !any {
			return any, err
		}
		if !have {
			hostexec.FillAs(t, to, n, coll.Identity(op, t))
			src = dst
		}
		return true, ReduceSlice(c, "AllReduceIf", coll.AllReduce, dst, src, op, 0)
	}
	p, err := c.EnterHost("AllReduceIf", 0, t, op, (n+1)*size)
	if err != nil {
		return false, err
	}
	packed := unsafe.Slice((*T)(p), n+1) // the vote, and then the numbers
	if have {
		copy(packed[1:], src)
	} else {
		hostexec.FillAs(t, unsafe.Add(p, size), n, coll.Identity(op, t))
	}
	packed[0] = vote[T](op, have)
	err = c.MakeHost(coll.Call{Kind: coll.AllReduce, Type: t, Op: op, N: n + 1, Dst: p, Src: p})
	if any = err == nil && packed[0] != vote[T](op, false); any {
		copy(dst, packed[1:])
	}
	c.LeaveHost()
	return any, err
}

// vote returns a number that says whether a rank has something. op over several is vote(op, false)
// only if none has. Sums of ones of up to 2^32 ranks are not 0 in 32 bits, nor in the 16 of floats.
func vote[T elem.Number](op elem.Op, have bool) T {
	if op == elem.Prod || op == elem.Min || op == elem.And {
		have = !have // any 0 makes it 0
	}
	if !have {
		return *new(T)
	}
	switch one := any(new(T)).(type) {
	case *elem.F16:
		*one = elem.ToF16(1)
		return any(*one).(T)
	case *elem.BF16:
		*one = elem.ToBF16(1)
		return any(*one).(T)
	}
	return 1
}

// Locate returns the least or greatest x of all ranks, and the first rank that has it.
func Locate[T elem.Ordered](c *Comm, op string, x T, o elem.Op) (T, int, error) {
	size := int(unsafe.Sizeof(x))
	p, err := c.EnterHost(op, 0, elem.TypeOf[T](), o, (c.Size()+1)*size)
	if err != nil {
		return x, 0, err
	}
	all := unsafe.Slice((*T)(p), c.Size()+1)
	mine := &all[c.Size()]
	*mine = x
	err = c.MakeHost(coll.Call{Kind: coll.AllGather, Type: elem.TypeOf[T](), N: 1, Dst: p, Src: unsafe.Pointer(mine)})
	at := 0
	for r, v := range all[:c.Size()] {
		if o == elem.Min && before(v, all[at]) || o == elem.Max && before(all[at], v) && !isNaN(all[at]) ||
			isNaN(v) && !isNaN(all[at]) {
			at = r
		}
	}
	best := all[at]
	c.LeaveHost()
	return best, at, err
}

// before says whether a is less than b, which -0 is than 0.
func before[T elem.Ordered](a, b T) bool {
	switch p := any(&a).(type) {
	case *elem.F16:
		return before(p.Float32(), any(b).(elem.F16).Float32())
	case *elem.BF16:
		return before(p.Float32(), any(b).(elem.BF16).Float32())
	}
	return a < b || a == b && a == 0 && 1/float64(a) < 1/float64(b)
}

func isNaN[T elem.Ordered](a T) bool {
	switch p := any(&a).(type) {
	case *elem.F16:
		return isNaN(p.Float32())
	case *elem.BF16:
		return isNaN(p.Float32())
	}
	return a != a
}

// MoveSlice makes a call that moves n elements from or to each rank.
func MoveSlice[T elem.Number](c *Comm, name string, kind coll.Kind, n int, dst, src []T, root int) error {
	t := elem.TypeOf[T]()
	call := coll.Call{Kind: kind, Type: t, Root: int32(root), N: n,
		Dst: unsafe.Pointer(unsafe.SliceData(dst)), Src: unsafe.Pointer(unsafe.SliceData(src))}
	if exec.Overlap(call.Dst, len(dst)*t.Size(), call.Src, len(src)*t.Size()) && !call.InPlace(c.Rank()) {
		return fmt.Errorf("%s: %s: dst of %d elements and src of %d overlap", ccall.At(), name, len(dst), len(src))
	}
	if _, err := c.EnterHost(name, root, t, elem.Sum, 0); err != nil {
		return err
	}
	err := c.MakeHost(call)
	c.LeaveHost()
	return err
}

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

// EnterHost refuses what a call on host memory cannot be made with, and takes its turn in MPI. It
// returns memory of at least n bytes, which the caller has until LeaveHost. LeaveHost follows
// unless there is an error.
func (c *Comm) EnterHost(op string, root int, t elem.Type, o elem.Op, n int) (unsafe.Pointer, error) {
	switch {
	case c == nil || c.freed || root < 0 || root >= c.size:
		return nil, c.Refuse(op, "rank", root)
	case !o.Has(t):
		return nil, fmt.Errorf("%s: %s: no such operation: %v of %v", ccall.At(), op, o, t)
	case c.r.Capturing():
		return nil, fmt.Errorf("%s: %s blocks, and stands in the middle of a capture", ccall.At(), op)
	}
	if err := exec.RefuseInHostFunc(op); err != nil {
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
	cmd := Call{Call: made, comm: c}
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
