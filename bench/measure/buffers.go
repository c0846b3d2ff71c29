package measure

import (
	"fmt"
	"sync/atomic"

	"lockstep/host"
	"lockstep/spmd"
)

// period is the length after which the inputs repeat. It is a prime, so that a part in a wrong
// place differs.
const period = 1021

// pattern is the ranks' inputs and their sum: whole numbers, so small that every sum is exact in T.
type pattern[T real] struct {
	values [][]T // of each rank, for one period
	sums   []T
}

// real is the set of measured types.
type real interface {
	int8 | uint8 | int32 | uint32 | int64 | uint64 | spmd.F16 | spmd.BF16 | float32 | float64
}

func newPattern[T real](ranks, exact int) pattern[T] {
	p := pattern[T]{values: make([][]T, ranks), sums: make([]T, period)}
	below := min(8, exact/ranks+1) // at least 2: parseCase refuses more ranks
	sums := make([]int, period)
	for r := range p.values {
		p.values[r] = make([]T, period)
		for i := range period {
			x := uint32(i+1)*2654435761 + uint32(r+1)*2246822519 // Knuth's multiplicative hash, and a large odd number
			x ^= x >> 15
			v := int(x % uint32(below))
			p.values[r][i] = number[T](v)
			sums[i] += v
		}
	}
	for i, s := range sums {
		p.sums[i] = number[T](s)
	}
	return p
}

// number returns v as a T. -1 is the largest number of an unsigned type.
func number[T real](v int) T {
	var x T
	switch p := any(&x).(type) {
	case *spmd.F16:
		*p = spmd.ToF16(float32(v))
	case *spmd.BF16:
		*p = spmd.ToBF16(float32(v))
	default:
		x = T(v)
	}
	return x
}

// buffers are the buffers of one case on this rank.
type buffers[T real] struct {
	w        *spmd.World
	s        *spmd.Stream // of the copies that fill src
	c        Case
	part     int // elements
	pattern  pattern[T]
	dst, src spmd.Buffer[T]
	owned    []spmd.Buffer[T] // what dst and src are parts of
}

// root is the rank that reduces, broadcasts, gathers and scatters.
const root = 0

// newBuffers allocates the buffers. It is collective if they are symmetric.
func newBuffers[T real](w *spmd.World, s *spmd.Stream, c Case, v variant) (*buffers[T], error) {
	o := &buffers[T]{w: w, s: s, c: c, part: c.Elements / w.Size(), pattern: newPattern[T](w.Size(), c.DType.exact)}
	alloc := spmd.Alloc[T]
	if v.symmetric {
		alloc = spmd.AllocSymmetric[T]
	}
	buffer := func(n int) (spmd.Buffer[T], error) {
		b, err := alloc(w, n)
		if err == nil {
			o.owned = append(o.owned, b)
		}
		return b, err
	}
	var err error
	dst, src := c.Op.dst(c.Elements, o.part), c.Op.src(c.Elements, o.part)
	if !v.inPlace {
		if o.dst, err = buffer(dst); err == nil {
			o.src, err = buffer(src)
		}
	} else if both, e := buffer(max(dst, src)); e != nil {
		err = e
	} else {
		own := func(n int) spmd.Buffer[T] {
			if n == both.Len() {
				return both
			}
			return both.Slice(w.Rank()*n, (w.Rank()+1)*n)
		}
		o.dst, o.src = own(dst), own(src)
	}
	if err != nil {
		o.free()
		return nil, err
	}
	return o, nil
}

func (o *buffers[T]) free() {
	for _, b := range o.owned {
		_ = b.Free() // as after an error elsewhere
	}
}

// tile is how many elements pass between the host and the device at a time: whole periods.
const tile = 1024 * period

// fill sets dst to values that are no result, then src to this rank's numbers.
func (o *buffers[T]) fill() error {
	if err := o.dst.SetAll(number[T](-1)); err != nil {
		return err
	}
	if !o.c.Op.gives(o.w.Rank()) {
		return nil
	}
	h := make([]T, min(o.src.Len(), tile))
	mine := o.pattern.values[o.w.Rank()]
	for i := range h {
		h[i] = mine[i%period]
	}
	if err := o.src.Slice(0, len(h)).CopyFrom(h); err != nil {
		return err
	}
	for have, n := len(h), o.src.Len(); have < n; have *= 2 { // the device repeats what is there
		more := min(have, n-have)
		if err := spmd.Copy(o.s, o.src.Slice(have, have+more), o.src.Slice(0, more)); err != nil {
			return err
		}
	}
	return o.s.Synchronize()
}

// call returns the collective on comm.
func (o *buffers[T]) call(comm spmd.Comm) func() error {
	rank, size, dst, src := comm.Rank(), comm.Size(), o.dst, o.src
	switch o.c.Op.Name {
	case allReduce:
		return func() error { return spmd.AllReduce(comm, dst, src, spmd.Sum) }
	case reduce:
		return func() error { return spmd.Reduce(comm, dst, src, spmd.Sum, root) }
	case broadcast:
		return func() error { return spmd.Broadcast(comm, dst, root) }
	case allGather:
		return func() error { return spmd.AllGather(comm, dst, src) }
	case reduceScatter:
		return func() error { return spmd.ReduceScatter(comm, dst, src, spmd.Sum) }
	case allToAll:
		return func() error { return spmd.AllToAll(comm, dst, src) }
	case gather:
		return func() error { return spmd.Gather(comm, dst, src, root) }
	case scatter:
		return func() error { return spmd.Scatter(comm, dst, src, root) }
	case sendRecv:
		from, to := (rank+size-1)%size, (rank+1)%size
		return func() error { return spmd.SendRecv(comm, dst, from, src, to) }
	}
	return o.pingPong(comm)
}

// pingPong sends a message from rank 0 to rank 1 and back. Other ranks do nothing.
func (o *buffers[T]) pingPong(comm spmd.Comm) func() error {
	dst, src := o.dst, o.src
	switch comm.Rank() {
	case 0:
		return func() error {
			if err := spmd.Send(comm, src, 1); err != nil {
				return err
			}
			return spmd.Recv(comm, dst, 1)
		}
	case 1:
		return func() error {
			if err := spmd.Recv(comm, dst, 0); err != nil {
				return err
			}
			return spmd.Send(comm, dst, 0)
		}
	}
	return func() error { return nil }
}

// want returns element i of dst after the collective, or nil if this rank gets none.
func (o *buffers[T]) want() func(i int) T {
	p, rank, size, result := o.pattern, o.w.Rank(), o.w.Size(), o.c.Op.result
	if !o.c.Op.gets(rank) {
		return nil
	}
	return func(i int) T {
		giver, element := result(spot{rank, size, o.part, i})
		if giver == everyone {
			return p.sums[element%period]
		}
		return p.values[giver][element%period]
	}
}

// wrong counts the wrong elements of dst on all ranks. Collective, blocking.
func (o *buffers[T]) wrong() (int, error) {
	count, err := spmd.AllocPinned[int64](o.w, 1)
	if err != nil {
		return 0, err
	}
	defer count.Free()
	var n atomic.Int64
	if want := o.want(); want != nil {
		h := make([]T, min(o.dst.Len(), tile))
		for at := 0; at < o.dst.Len(); at += len(h) {
			h = h[:min(len(h), o.dst.Len()-at)]
			if err := o.dst.Slice(at, at+len(h)).CopyTo(h); err != nil {
				return 0, err
			}
			host.Parallel(len(h), 1<<15, func(lo, hi int) {
				bad := 0
				for i, got := range h[lo:hi] {
					if got != want(at+lo+i) {
						bad++
					}
				}
				n.Add(int64(bad))
			})
		}
	}
	count.Set(0, n.Load())
	if err := spmd.AllReduce(o.w.Comm(), count, count, spmd.Sum); err != nil {
		return 0, fmt.Errorf("counting wrong elements: %w", err)
	}
	return int(count.At(0)), nil
}
