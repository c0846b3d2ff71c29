package devtest

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/transfer"
)

// Buffer is n elements in device memory between guards, and host memory to set and see them.
type Buffer[T elem.Elem] struct {
	Host commtest.Memory[T]
	mem  unsafe.Pointer
	way  Way
}

// spare is device memory of buffers that were freed, by size, and pinned memory through which all of them move: a driver
// whose GPU several processes share takes longer to allocate and to free than to do what most tests ask for.
var spare struct {
	device map[int][]unsafe.Pointer
	pinned unsafe.Pointer
	bytes  int // pinned
}

// freeSpare gives back what is spare, all of which is of one device.
func freeSpare(d *cuda.Device) error {
	var err error
	for _, list := range spare.device {
		for _, p := range list {
			err = errors.Join(err, d.Free(p))
		}
	}
	if spare.pinned != nil {
		err = errors.Join(err, d.FreeHost(spare.pinned))
	}
	spare.device, spare.pinned, spare.bytes = nil, nil, 0
	return err
}

// bytes is the size of the device memory.
func (b *Buffer[T]) bytes() int { return len(b.Host.All) * elem.Of[T]().Size() }

// Alloc returns n elements between guards.
func Alloc[T elem.Elem](t *testing.T, w Way, n int) *Buffer[T] {
	t.Helper()
	b := allocate[T](t, w, n)
	b.Move(t, true)
	return b
}

// allocate leaves the device memory as it is.
func allocate[T elem.Elem](t *testing.T, w Way, n int) *Buffer[T] {
	t.Helper()
	b := &Buffer[T]{Host: commtest.Alloc[T](n), way: w}
	if list := spare.device[b.bytes()]; len(list) > 0 {
		b.mem, spare.device[b.bytes()] = list[len(list)-1], list[:len(list)-1]
		return b
	}
	var err error
	b.mem, err = w.Dev.Malloc(b.bytes())
	commtest.Must(t, err)
	return b
}

// Filled returns the values between guards.
func Filled[T elem.Elem](t *testing.T, w Way, values []T) *Buffer[T] {
	t.Helper()
	b := allocate[T](t, w, len(values))
	copy(b.Host.Data(), values)
	b.Move(t, true)
	return b
}

// Move goes through pinned memory, in stream order, and waits.
func (b *Buffer[T]) Move(t *testing.T, in bool) {
	t.Helper()
	bytes := b.bytes()
	if spare.bytes < bytes {
		if spare.pinned != nil {
			commtest.Must(t, b.way.Dev.FreeHost(spare.pinned))
		}
		var err error
		spare.pinned, err = b.way.Dev.MallocHost(bytes)
		commtest.Must(t, err)
		spare.bytes = bytes
	}
	all := unsafe.Slice((*T)(spare.pinned), len(b.Host.All))
	if in {
		copy(all, b.Host.All)
		commtest.Must(t, b.way.S.Copy(b.mem, spare.pinned, bytes))
	} else {
		commtest.Must(t, b.way.S.Copy(spare.pinned, b.mem, bytes))
	}
	commtest.Must(t, b.way.S.Synchronize())
	if !in {
		copy(b.Host.All, all)
	}
}

// At is the address of element i.
func (b *Buffer[T]) At(i int) unsafe.Pointer {
	return unsafe.Add(b.mem, (commtest.Guards+i)*elem.Of[T]().Size())
}

// Same checks the memory and frees it.
func (b *Buffer[T]) Same(t *testing.T, want []T, what string) {
	t.Helper()
	b.Move(t, false)
	b.Host.Same(t, b.way.C, want, "%s, %s", b.way.Name, what)
	b.Free(t)
}

// Free waits for the stream and lets other buffers have the memory, until the test ends.
func (b *Buffer[T]) Free(t *testing.T) {
	t.Helper()
	commtest.Must(t, b.way.S.Synchronize())
	if spare.device == nil {
		spare.device = map[int][]unsafe.Pointer{}
	}
	spare.device[b.bytes()] = append(spare.device[b.bytes()], b.mem)
}

// Reductions does all reductions of n elements on each rank, out of place and in place.
func Reductions[T elem.Elem](t *testing.T, w Way, n int, ops ...elem.Op) {
	t.Helper()
	for _, op := range ops {
		if !op.On(elem.Of[T]()) {
			continue
		}
		reductions(t, w, n, op, commtest.Input[T])
		if commtest.HasExtremes[T](op) {
			reductions(t, w, n, op, commtest.Extremes[T](w.C.Size()))
		}
	}
	if n == 0 {
		return
	}
	ty, c, p := elem.Of[T](), w.C, cudampi.At(w.S)
	counts, total := Ragged(c.Size(), n)
	whole := commtest.Reduced[T](c.Size(), total, elem.Sum)
	off := transfer.Parts{Counts: counts}.Offset(c.Rank())
	src, dst := Filled(t, w, commtest.Input[T](c.Rank(), total)), Alloc[T](t, w, counts[c.Rank()])
	commtest.Must(t, w.ReduceScatterV(p, dst.At(0), src.At(0), counts, ty, elem.Sum))
	dst.Same(t, whole[off:off+counts[c.Rank()]], fmt.Sprintf("ReduceScatterV of %v", counts))
	src.Free(t)
}

func reductions[T elem.Elem](t *testing.T, w Way, n int, op elem.Op, values commtest.Values[T]) {
	t.Helper()
	ty, c, p := elem.Of[T](), w.C, cudampi.At(w.S)
	root := c.Size() - 1
	what := fmt.Sprintf("%v of %d", op, n)
	want, whole := values.Reduced(c.Size(), n, op), values.Reduced(c.Size(), n*c.Size(), op)
	in, all := values(c.Rank(), n), values(c.Rank(), n*c.Size())
	own := whole[c.Rank()*n : (c.Rank()+1)*n]

	src, dst := Filled(t, w, in), Alloc[T](t, w, n)
	commtest.Must(t, w.AllReduce(p, dst.At(0), src.At(0), n, ty, op))
	dst.Same(t, want, "AllReduce "+what)
	src.Same(t, in, "src of AllReduce "+what)
	same := Filled(t, w, in)
	commtest.Must(t, w.AllReduce(p, same.At(0), same.At(0), n, ty, op))
	same.Same(t, want, "AllReduce in place "+what)

	src, dst = Filled(t, w, in), Alloc[T](t, w, n)
	commtest.Must(t, w.Reduce(p, dst.At(0), src.At(0), n, ty, op, root))
	if c.Rank() == root {
		dst.Same(t, want, "Reduce "+what)
	} else {
		dst.Same(t, commtest.Alloc[T](n).Data(), "dst of Reduce elsewhere "+what)
	}
	src.Same(t, in, "src of Reduce "+what)

	src, dst = Filled(t, w, all), Alloc[T](t, w, n)
	commtest.Must(t, w.ReduceScatter(p, dst.At(0), src.At(0), n, ty, op))
	dst.Same(t, own, "ReduceScatter "+what)
	commtest.Must(t, w.ReduceScatter(p, src.At(c.Rank()*n), src.At(0), n, ty, op))
	copy(all[c.Rank()*n:], own)
	src.Same(t, all, "ReduceScatter in place "+what)
}

// Ragged are counts around n, one of them none.
func Ragged(size, n int) (counts []int, total int) {
	counts = make([]int, size)
	for r := range counts {
		counts[r] = n + r
		if r == 1 {
			counts[r] = 0
		}
		total += counts[r]
	}
	return counts, total
}

// Joined is the input of all ranks, one after the other.
func Joined[T elem.Elem](counts []int) []T {
	var all []T
	for r, n := range counts {
		all = append(all, commtest.Input[T](r, n)...)
	}
	return all
}

// Moves does all collectives that compute nothing, for each number of elements on each rank.
func Moves[T elem.Elem](t *testing.T, w Way, n int) {
	t.Helper()
	ty, c, p := elem.Of[T](), w.C, cudampi.At(w.S)
	root := c.Size() - 1
	what := func(name string) string { return fmt.Sprintf("%s of %d", name, n) }
	even := make([]int, c.Size())
	for r := range even {
		even[r] = n
	}
	for _, counts := range [][]int{nil, func() []int { u, _ := Ragged(c.Size(), n); return u }()} {
		v, lens := "", even
		if counts != nil {
			v, lens = "V", counts
		}
		ps := transfer.Parts{Counts: lens}
		own, total, off := lens[c.Rank()], ps.Offset(c.Size()), ps.Offset(c.Rank())
		everything, mine := Joined[T](lens), commtest.Input[T](c.Rank(), own)
		untouched := commtest.Alloc[T](total).Data()

		src, dst := Filled(t, w, mine), Alloc[T](t, w, total)
		inPlace := Alloc[T](t, w, total)
		copy(inPlace.Host.Data()[off:], mine)
		inPlace.Move(t, true)
		gathered, gatherDst := Alloc[T](t, w, total), untouched
		if c.Rank() == root {
			gatherDst = everything
		}
		if counts == nil {
			commtest.Must(t, w.AllGather(p, dst.At(0), src.At(0), n, ty))
			commtest.Must(t, w.AllGather(p, inPlace.At(0), inPlace.At(off), n, ty))
			commtest.Must(t, w.Gather(p, gathered.At(0), src.At(0), n, ty, root))
		} else {
			commtest.Must(t, w.AllGatherV(p, dst.At(0), src.At(0), counts, ty))
			commtest.Must(t, w.AllGatherV(p, inPlace.At(0), inPlace.At(off), counts, ty))
			commtest.Must(t, w.GatherV(p, gathered.At(0), src.At(0), counts, ty, root))
		}
		dst.Same(t, everything, what("AllGather"+v))
		inPlace.Same(t, everything, what("AllGather in place"+v))
		gathered.Same(t, gatherDst, what("Gather"+v))
		src.Same(t, mine, what("src of Gather"+v))

		src, dst = Filled(t, w, commtest.Input[T](c.Rank(), total)), Alloc[T](t, w, own)
		if counts == nil {
			commtest.Must(t, w.Scatter(p, dst.At(0), src.At(0), n, ty, root))
		} else {
			commtest.Must(t, w.ScatterV(p, dst.At(0), src.At(0), counts, ty, root))
		}
		dst.Same(t, commtest.Input[T](root, total)[off:off+own], what("Scatter"+v))
		src.Same(t, commtest.Input[T](c.Rank(), total), what("src of Scatter"+v))
	}

	buf := Filled(t, w, commtest.Input[T](c.Rank(), n))
	commtest.Must(t, w.Broadcast(p, buf.At(0), n, ty, root))
	buf.Same(t, commtest.Input[T](root, n), what("Broadcast"))

	var across []T
	for r := range c.Size() {
		across = append(across, commtest.Input[T](r, n*c.Size())[c.Rank()*n:(c.Rank()+1)*n]...)
	}
	src, dst := Filled(t, w, commtest.Input[T](c.Rank(), n*c.Size())), Alloc[T](t, w, n*c.Size())
	commtest.Must(t, w.AllToAll(p, dst.At(0), src.At(0), n, ty))
	dst.Same(t, across, what("AllToAll"))
	commtest.Must(t, w.AllToAll(p, src.At(0), src.At(0), n, ty))
	src.Same(t, across, what("AllToAll in place"))

	// Rank r sends n+r+q elements to rank q, and nothing to the one before it.
	count := func(from, to int) int {
		if c.Size() > 1 && (to+1)%c.Size() == from {
			return 0
		}
		return n + from + to
	}
	send, recv := make([]int, c.Size()), make([]int, c.Size())
	across = nil
	for r := range c.Size() {
		send[r], recv[r] = count(c.Rank(), r), count(r, c.Rank())
		theirs := make([]int, c.Size())
		for q := range theirs {
			theirs[q] = count(r, q)
		}
		ps := transfer.Parts{Counts: theirs}
		all := commtest.Input[T](r, ps.Offset(c.Size()))
		across = append(across, all[ps.Offset(c.Rank()):ps.Offset(c.Rank())+recv[r]]...)
	}
	src, dst = Filled(t, w, commtest.Input[T](c.Rank(), transfer.Parts{Counts: send}.Offset(c.Size()))), Alloc[T](t, w, len(across))
	commtest.Must(t, w.AllToAllV(p, dst.At(0), recv, src.At(0), send, ty))
	dst.Same(t, across, what("AllToAllV"))
	src.Free(t)
}

// Messages does point to point: round a ring, and everyone with everyone, itself included, twice.
func Messages[T elem.Elem](t *testing.T, w Way, n int) {
	t.Helper()
	ty, c, p := elem.Of[T](), w.C, cudampi.At(w.S)
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	src, dst := Filled(t, w, commtest.Input[T](c.Rank(), n+c.Rank())), Alloc[T](t, w, n+prev)
	commtest.Must(t, w.SendRecv(p, dst.At(0), n+prev, prev, src.At(0), n+c.Rank(), next, ty))
	dst.Same(t, commtest.Input[T](prev, n+prev), "SendRecv")
	src.Same(t, commtest.Input[T](c.Rank(), n+c.Rank()), "src of SendRecv")

	if c.Size() > 1 && c.Rank() < 2 { // one sends and receives at once, the other one after the other
		a, b := Filled(t, w, commtest.Input[T](c.Rank(), n)), Alloc[T](t, w, n)
		if c.Rank() == 0 {
			commtest.Must(t, w.Exchange(p, Sends(a.At(0), n, ty, 1), Receives(b.At(0), n, ty, 1)))
		} else {
			commtest.Must(t, w.Recv(p, b.At(0), n, ty, 0))
			commtest.Must(t, w.Send(p, a.At(0), n, ty, 0))
		}
		a.Free(t)
		b.Same(t, commtest.Input[T](1-c.Rank(), n), "Recv")
	}

	var list []cudampi.Message
	var out, in []*Buffer[T]
	for k := range 2 {
		for r := range c.Size() {
			a, b := Filled(t, w, commtest.Input[T](10*k+c.Rank(), n+k)), Alloc[T](t, w, n+k)
			out, in = append(out, a), append(in, b)
			list = append(list, Sends(a.At(0), n+k, ty, r), Receives(b.At(0), n+k, ty, r))
		}
	}
	commtest.Must(t, w.Exchange(p, list...))
	for i := range in {
		out[i].Free(t)
		in[i].Same(t, commtest.Input[T](10*(i/c.Size())+i%c.Size(), n+i/c.Size()), "Exchange")
	}
}

// AllOps are all operations.
var AllOps = []elem.Op{elem.Sum, elem.Prod, elem.Min, elem.Max, elem.Avg}

// Sends is a message to a rank.
func Sends(buf unsafe.Pointer, n int, t elem.Type, to int) cudampi.Message {
	return cudampi.Message{Buf: buf, N: n, Type: t, Peer: to}
}

// Receives is a message from a rank.
func Receives(buf unsafe.Pointer, n int, t elem.Type, from int) cudampi.Message {
	return cudampi.Message{Buf: buf, N: n, Type: t, Peer: from, Recv: true}
}
