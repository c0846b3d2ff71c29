// Package hostdata reduces, broadcasts and gathers a program's own values on the host: counts,
// decisions, settings. Its calls take no Buffer. With a GPU they go through the host too: they wait
// neither for the GPU nor for work that is enqueued there.
//
//	total, err := hostdata.AllReduce(w.Comm(), len(mine), spmd.Sum)
//
// All of them are collective over the ranks of a communicator, and block. A stream of the
// communicator has no part in them.
package hostdata

import (
	"context"
	"encoding"
	"encoding/gob"
	"reflect"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/world"
)

// Number is the set of types that are reduced, such as time.Duration.
type Number interface {
	Ordered | ~complex64 | ~complex128
}

// Ordered is the set of types of Number that have an order.
type Ordered interface {
	~int8 | ~uint8 | ~int32 | ~uint32 | ~int64 | ~uint64 | spmd.F16 | spmd.BF16 | ~float32 | ~float64 | ~int | ~uint
}

// The operations on the bits of integers, beside those of package spmd. NCCL has none of them, so
// that buffers have none.
const (
	And = elem.And
	Or  = elem.Or
	Xor = elem.Xor
)

// AllReduce returns op over all ranks of x, the same bits on every rank.
// Source: mpi.h, MPI_Allreduce.
func AllReduce[T Number](c spmd.Comm, x T, op spmd.Op) (T, error) {
	in := inside(c)
	p, err := in.EnterHost("hostdata.AllReduce", coll.AllReduce, 0, elem.Of[T](), op, 16)
	if err != nil {
		return x, err
	}
	*(*T)(p) = x
	err = in.MakeHost(coll.Call{Kind: coll.AllReduce, Type: elem.Of[T](), Op: op, N: 1, Dst: p, Src: p})
	x = *(*T)(p)
	in.LeaveHost()
	return x, err
}

// Any returns whether have is true on any rank, the same on every rank. It is for communication
// that is needed at times only:
//
//	if any, err := hostdata.Any(w.Comm(), len(moved) > 0); err != nil || !any {
//		return err // on every rank: nobody has anything to say
//	}
//
// It waits for no stream, and costs no time of the device. For a few numbers AllReduceIf asks and
// reduces in one go.
func Any(c spmd.Comm, have bool) (bool, error) {
	in := inside(c)
	p, err := in.EnterHost("hostdata.Any", coll.AllReduce, 0, elem.Uint8, elem.Sum, 8)
	if err != nil {
		return have, err
	}
	*(*bool)(p) = have
	err = in.MakeHost(coll.Call{Kind: coll.AllReduce, Type: elem.Uint8, Op: elem.Max, N: 1, Dst: p, Src: p})
	have = *(*bool)(p)
	in.LeaveHost()
	return have, err
}

// AnyPreempted reports whether any rank of c has been asked to end, by a signal that spmd.Preempted
// listens to or by the end of ctx. All ranks get the same answer, so they stop after the same step:
//
//	for step := range steps {
//		if stop, err := hostdata.AnyPreempted(ctx, w.Comm()); err != nil || stop {
//			return errors.Join(err, save(step))
//		}
//
// The first call listens to signals, as spmd.Preempted does.
func AnyPreempted(ctx context.Context, c spmd.Comm) (bool, error) {
	asked := ctx.Err() != nil
	select {
	case <-spmd.Preempted(ctx):
		asked = true
	default:
	}
	return Any(c, asked)
}

// MinLoc returns the least x of all ranks, and the first rank that has it, the same on every rank.
// A NaN wins, and -0 is less than 0, as in spmd.Min.
// Source: mpi.h, MPI_MINLOC.
func MinLoc[T Ordered](c spmd.Comm, x T) (least T, rank int, err error) {
	return locate(c, "hostdata.MinLoc", x, elem.Min)
}

// MaxLoc is MinLoc of the greatest x.
// Source: mpi.h, MPI_MAXLOC.
func MaxLoc[T Ordered](c spmd.Comm, x T) (greatest T, rank int, err error) {
	return locate(c, "hostdata.MaxLoc", x, elem.Max)
}

func locate[T Ordered](c spmd.Comm, op string, x T, o elem.Op) (T, int, error) {
	in := inside(c)
	size := int(unsafe.Sizeof(x))
	p, err := in.EnterHost(op, coll.AllGather, 0, elem.Of[T](), o, (c.Size()+1)*size)
	if err != nil {
		return x, 0, err
	}
	all := unsafe.Slice((*T)(p), c.Size()+1)
	mine := &all[c.Size()]
	*mine = x
	err = in.MakeHost(coll.Call{Kind: coll.AllGather, Type: elem.Of[T](), N: 1, Dst: p, Src: unsafe.Pointer(mine)})
	at := 0
	for r, v := range all[:c.Size()] {
		if o == elem.Min && before(v, all[at]) || o == elem.Max && before(all[at], v) && !isNaN(all[at]) ||
			isNaN(v) && !isNaN(all[at]) {
			at = r
		}
	}
	best := all[at]
	in.LeaveHost()
	return best, at, err
}

// before reports whether a is less than b, which -0 is than 0.
func before[T Ordered](a, b T) bool {
	switch p := any(&a).(type) {
	case *spmd.F16:
		return before(p.Float32(), any(b).(spmd.F16).Float32())
	case *spmd.BF16:
		return before(p.Float32(), any(b).(spmd.BF16).Float32())
	}
	return a < b || a == b && a == 0 && 1/float64(a) < 1/float64(b)
}

func isNaN[T Ordered](a T) bool {
	switch p := any(&a).(type) {
	case *spmd.F16:
		return isNaN(p.Float32())
	case *spmd.BF16:
		return isNaN(p.Float32())
	}
	return a != a
}

// inside returns what lies behind a communicator.
func inside(c spmd.Comm) *calls.Comm { return world.Comm(c).Comm() }

// number returns the type of V, if it is one of Number that does not encode itself.
func number[V any]() (elem.Type, bool) {
	switch any((*V)(nil)).(type) {
	case *spmd.F16:
		return elem.Float16, true
	case *spmd.BF16:
		return elem.BFloat16, true
	case gob.GobEncoder, encoding.BinaryMarshaler, encoding.TextMarshaler:
		return 0, false
	}
	switch reflect.TypeFor[V]().Kind() {
	case reflect.Int8:
		return elem.Int8, true
	case reflect.Uint8:
		return elem.Uint8, true
	case reflect.Int32:
		return elem.Int32, true
	case reflect.Uint32:
		return elem.Uint32, true
	case reflect.Int, reflect.Int64:
		return elem.Int64, true
	case reflect.Uint, reflect.Uint64:
		return elem.Uint64, true
	case reflect.Float32:
		return elem.Float32, true
	case reflect.Float64:
		return elem.Float64, true
	case reflect.Complex64:
		return elem.Complex64, true
	case reflect.Complex128:
		return elem.Complex128, true
	}
	return 0, false
}
