package commtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// Group is a group of messages, such as cudampi.P2P.
type Group[C any] interface {
	Send(c C, src unsafe.Pointer, n int, t elem.Type, to int) error
	Recv(c C, dst unsafe.Pointer, n int, t elem.Type, from int) error
	Wait() error
}

// Classes are errors of package cudampi, which these tests cannot import.
type Classes struct{ Buffer, Count, Truncate error }

// EveryMessage is Messages of every type.
func EveryMessage[C Communicator](t *testing.T, c C, g Group[C], n int) {
	eachType(c.Size(),
		func() { Messages[int8](t, c, g, n) },
		func() { Messages[uint8](t, c, g, n) },
		func() { Messages[int32](t, c, g, n) },
		func() { Messages[uint32](t, c, g, n) },
		func() { Messages[int64](t, c, g, n) },
		func() { Messages[uint64](t, c, g, n) },
		func() { Messages[elem.F16](t, c, g, n) },
		func() { Messages[elem.BF16](t, c, g, n) },
		func() { Messages[float32](t, c, g, n) },
		func() { Messages[float64](t, c, g, n) },
		func() { Messages[complex64](t, c, g, n) },
		func() { Messages[complex128](t, c, g, n) },
	)
}

// Messages sends n elements round a ring, from everyone to everyone, and twice in order.
func Messages[T elem.Elem, C Communicator](t *testing.T, c C, g Group[C], n int) {
	ty := elem.Of[T]()
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()

	// Round the ring, a different number of elements from each rank; alone, to oneself.
	src, dst := Filled[T](c.Rank(), n+c.Rank()), Alloc[T](n+prev)
	Must(t, c.SendRecv(dst.Ptr(), n+prev, prev, src.Ptr(), n+c.Rank(), next, ty))
	dst.Same(t, c, Input[T](prev, n+prev), "SendRecv")
	src.Same(t, c, Input[T](c.Rank(), n+c.Rank()), "src of SendRecv")

	if c.Size() > 1 { // two messages between each pair arrive in order
		one, two := Filled[T](c.Rank(), n), Filled[T](c.Rank()+9, n)
		a, b := Alloc[T](n), Alloc[T](n)
		if c.Rank()%2 == 0 && c.Rank()+1 < c.Size() {
			Must(t, c.Send(one.Ptr(), n, ty, c.Rank()+1))
			Must(t, c.Send(two.Ptr(), n, ty, c.Rank()+1))
		} else if c.Rank()%2 == 1 {
			Must(t, c.Recv(a.Ptr(), n, ty, prev))
			Must(t, c.Recv(b.Ptr(), n, ty, prev))
			a.Same(t, c, Input[T](prev, n), "Recv")
			b.Same(t, c, Input[T](prev+9, n), "Recv")
		}
	}

	// Everyone to everyone, itself included, twice, in an order that would deadlock one by one.
	for range 2 {
		var in []Memory[T]
		for range 2 {
			for r := range c.Size() {
				m := Alloc[T](n)
				in = append(in, m)
				Must(t, g.Send(c, src.Ptr(), n, ty, r))
				Must(t, g.Recv(c, m.Ptr(), n, ty, r))
			}
		}
		Must(t, g.Wait())
		for i, m := range in {
			m.Same(t, c, Input[T](i%c.Size(), n), "P2P")
		}
	}
	Must(t, g.Wait())
}

// GroupOverComms has messages of two communicators in one group. Messages of one do not match those
// of the other.
func GroupOverComms[C Communicator](t *testing.T, c, d C, g Group[C]) {
	x, y, a, b := []int32{1}, []int32{2}, []int32{0}, []int32{0}
	Must(t, g.Send(d, Ptr(y), 1, elem.Int32, 1-c.Rank()))
	Must(t, g.Send(c, Ptr(x), 1, elem.Int32, 1-c.Rank()))
	Must(t, g.Recv(c, Ptr(a), 1, elem.Int32, 1-c.Rank()))
	Must(t, g.Recv(d, Ptr(b), 1, elem.Int32, 1-c.Rank()))
	Must(t, g.Wait())
	if a[0] != 1 || b[0] != 2 {
		t.Fatalf("received %d and %d", a[0], b[0])
	}
}

// WrongLength sends messages of another length than is expected, between two ranks. Both numbers
// are in the error, and the next message arrives well.
func WrongLength[C Communicator](t *testing.T, c C, g Group[C], errs Classes) {
	x, y := make([]float32, 4096), make([]float32, 4096)
	px, py := Ptr(x), Ptr(y)
	const f = elem.Float32
	for _, tc := range []struct {
		sent, want int
		class      error
		text       string
	}{
		{5, 8, errs.Count, "message from rank 0 has 5 float32 elements, 8 expected"},
		{0, 8, errs.Count, "has 0 float32 elements, 8 expected"},
		{40, 41, errs.Count, "has 40 float32 elements, 41 expected"},
		{8, 5, errs.Truncate, "8 float32 elements, 5 expected"},
		{1, 0, errs.Truncate, "1 float32 elements, 0 expected"},
		{41, 40, errs.Truncate, "41 float32 elements, 40 expected"},
		// If there are rings, one goes through a ring and the other does not.
		{40, 4096, errs.Count, "has 40 float32 elements, 4096 expected"},
		{4096, 40, errs.Truncate, "40 expected"},
	} {
		if c.Rank() == 0 {
			Must(t, c.Send(px, tc.sent, f, 1))
			Must(t, c.Send(px, tc.sent, f, 1))
			Must(t, c.Send(px, tc.sent, f, 1))
			Must(t, c.Send(px, 3, f, 1))
			continue
		}
		Refused(t, c, c.Recv(py, tc.want, f, 0), "MPI_Recv", tc.class, tc.text)
		Refused(t, c, c.SendRecv(py, tc.want, 0, px, 1, 1, elem.Float32), "MPI_Sendrecv", tc.class, tc.text)
		Must(t, g.Recv(c, py, tc.want, f, 0))
		Refused(t, c, g.Wait(), "MPI_Irecv", tc.class, tc.text)
		Must(t, c.Recv(py, 3, f, 0))
		Must(t, c.Recv(py, 1, f, 1)) // what SendRecv sent to this rank itself
	}
	// The V form is made of messages.
	recv, send := []int{0, 2}, []int{0, 3}
	if c.Rank() == 1 {
		recv, send = []int{2, 0}, []int{2, 0}
	}
	err := c.AllToAllV(px, recv, py, send, f)
	if c.Rank() == 0 {
		Must(t, err)
	} else {
		Refused(t, c, err, "MPI_Irecv", errs.Truncate, "rank 0", "3 float32 elements, 2 expected")
	}
}

// WrongType has each rank expect a message of another type than its neighbour sends, for every pair
// of types, in every way and in lengths that go different ways. The error names both, and the next
// message arrives well.
func WrongType[C Communicator](t *testing.T, c C, g Group[C]) {
	size, rank := c.Size(), c.Rank()
	next, prev := (rank+1)%size, (rank+size-1)%size
	src, dst := Ptr(make([]complex128, 5000)), Ptr(make([]complex128, 5000))
	for i := range elem.Types * elem.Types * 5 {
		typeOf := func(r int) elem.Type { return elem.Type((i + i/elem.Types*r) % elem.Types) }
		mine, its := typeOf(rank), typeOf(prev)
		bytes := mine.Size() // of an element, or of all
		n := [...]int{0, 48 / bytes, 48000 / bytes, 7, 5000}[i/elem.Types/elem.Types]
		check := func(way string, err error) {
			t.Helper()
			want := fmt.Sprintf("message from rank %d has %v elements, %d %v elements expected", prev, its, n, mine)
			if (err == nil) != (mine == its) || err != nil && !strings.Contains(err.Error(), want) {
				t.Fatalf("rank %d: %s: %v, want %s", rank, way, err, want)
			}
		}
		if rank > 0 {
			Must(t, c.Send(src, n, mine, next))
		}
		check("Recv", c.Recv(dst, n, mine, prev))
		if rank == 0 {
			Must(t, c.Send(src, n, mine, next))
		}
		check("SendRecv", c.SendRecv(dst, n, prev, src, n, next, mine))
		Must(t, g.Send(c, src, n, mine, next))
		Must(t, g.Recv(c, dst, n, mine, prev))
		check("Group", g.Wait())
	}
}

// GroupIsReusable uses a group again after refused messages, and after a failed one.
func GroupIsReusable[C Communicator](t *testing.T, c C, g Group[C], errs Classes) {
	x, y := []int64{int64(c.Rank())}, []int64{-1, -1}
	peer := 1 - c.Rank()
	Must(t, g.Send(c, Ptr(x), 1, elem.Int64, peer))
	Must(t, g.Recv(c, Ptr(y), 2, elem.Int64, peer))
	Refused(t, c, g.Send(c, nil, 1, elem.Int64, peer), "MPI_Isend", errs.Buffer)
	Refused(t, c, g.Wait(), "MPI_Irecv", errs.Count)
	for range 3 {
		Must(t, g.Recv(c, Ptr(y), 1, elem.Int64, peer))
		Must(t, g.Send(c, Ptr(x), 1, elem.Int64, peer))
		Must(t, g.Wait())
		if y[0] != int64(peer) {
			t.Fatalf("received %d, want %d", y[0], peer)
		}
		y[0] = -1
	}
}

// NoAllocation makes every call that moves data, on Go memory and with warm groups,
// without allocating.
func NoAllocation[C Communicator](t *testing.T, c C, g Group[C]) {
	n, peer := 8, c.Size()-1-c.Rank()
	x, y := make([]float32, n*c.Size()), make([]float32, n*c.Size())
	h := make([]elem.BF16, n)
	px, py, ph := Ptr(x), Ptr(y), Ptr(h)
	even := make([]int, c.Size())
	for i := range even {
		even[i] = n
	}
	const f, sum = elem.Float32, elem.Sum
	for _, tc := range []struct {
		name string
		call func() error
	}{
		{"Barrier", c.Barrier},
		{"AllReduce", func() error { return c.AllReduce(py, px, n, f, sum) }},
		{"AllReduce bfloat16", func() error { return c.AllReduce(ph, ph, n, elem.BFloat16, elem.Avg) }},
		{"Reduce", func() error { return c.Reduce(py, px, n, f, sum, 0) }},
		{"Broadcast", func() error { return c.Broadcast(px, n, f, 0) }},
		{"AllGather", func() error { return c.AllGather(py, px, n, f) }},
		{"ReduceScatter", func() error { return c.ReduceScatter(py, px, n, f, sum) }},
		{"AllToAll", func() error { return c.AllToAll(py, px, n, f) }},
		{"Gather", func() error { return c.Gather(py, px, n, f, 0) }},
		{"Scatter", func() error { return c.Scatter(py, px, n, f, 0) }},
		{"AllGatherV", func() error { return c.AllGatherV(py, px, even, f) }},
		{"ReduceScatterV", func() error { return c.ReduceScatterV(py, px, even, f, sum) }},
		{"GatherV", func() error { return c.GatherV(py, px, even, f, 0) }},
		{"ScatterV", func() error { return c.ScatterV(py, px, even, f, 0) }},
		{"AllToAllV", func() error { return c.AllToAllV(py, even, px, even, f) }},
		{"SendRecv", func() error { return c.SendRecv(py, n, peer, px, n, peer, f) }},
		{"Send and Recv", func() error {
			if c.Size() == 1 {
				return nil
			}
			if c.Rank() == 0 {
				return c.Send(px, n, f, 1)
			}
			return c.Recv(py, n, f, 0)
		}},
		{"P2P", func() error {
			if err := g.Send(c, px, n, f, peer); err != nil {
				return err
			}
			if err := g.Recv(c, py, n, f, peer); err != nil {
				return err
			}
			return g.Wait()
		}},
	} {
		if a := testkit.Allocations(20, func() { Must(t, tc.call()) }); a != 0 {
			t.Errorf("%s allocates %v times a call", tc.name, a)
		}
	}
}

// Refused fails the test unless err is op's, of the class want, names this test's place, and has
// every text in it.
func Refused(t *testing.T, c Ranks, err error, op string, want error, texts ...string) {
	t.Helper()
	var e *ccall.Error
	switch {
	case err == nil:
		t.Fatalf("%s: no error, want %v", op, want)
	case !errors.Is(err, want):
		t.Fatalf("%v: want %v", err, want)
	case !errors.As(err, &e) || e.Op != op || e.Rank != c.Rank():
		t.Fatalf("%v: want operation %s, rank %d", err, op, c.Rank())
	case !strings.Contains(e.At, "_test.go:"):
		t.Fatalf("%v: want this test's file and line in front", err)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Fatalf("%v: want %q in it", err, s)
		}
	}
}
