package cudampi

import (
	"testing"
	"unsafe"

	"lockstep/internal/elem"
)

// withAndWithoutMail runs fn on a communicator whose ranks share memory, which short messages go through, and on c.
func withAndWithoutMail(t *testing.T, c *Comm, fn func(c *Comm)) {
	d, err := c.Dup()
	must(t, err)
	must(t, d.ShareMemory())
	if has := d.board != nil; has != (d.size > 1) {
		t.Fatalf("%d ranks share memory: %v", d.size, has)
	}
	fn(d)
	must(t, d.Free())
	fn(c)
}

func TestMessages(t *testing.T) {
	onRanks(t, counts, func(t *testing.T, c *Comm) {
		for _, inParts := range []bool{false, true} {
			if inParts {
				lower(t)
			}
			withAndWithoutMail(t, c, func(c *Comm) {
				for _, n := range append(lengths, 7, 49, 1022, 1023, 20000) { // 1022 of 8 bytes are the most by mail, 20000 no eager message
					messages[int8](t, c, n)
					messages[uint8](t, c, n)
					messages[int32](t, c, n)
					messages[uint32](t, c, n)
					messages[int64](t, c, n)
					messages[uint64](t, c, n)
					messages[elem.F16](t, c, n)
					messages[elem.BF16](t, c, n)
					messages[float32](t, c, n)
					messages[float64](t, c, n)
				}
			})
		}
	})
}

func messages[T elem.Elem](t *testing.T, c *Comm, n int) {
	ty := elem.Of[T]()
	next, prev := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size

	// Round the ring, a different number of elements from each rank; alone, to oneself.
	src, dst := filled[T](c.rank, n+c.rank), alloc[T](n+prev)
	must(t, c.SendRecv(dst.ptr(), n+prev, prev, src.ptr(), n+c.rank, next, ty))
	dst.same(t, c, input[T](prev, n+prev), "SendRecv")
	src.same(t, c, input[T](c.rank, n+c.rank), "src of SendRecv")

	if c.size > 1 { // two messages between each pair arrive in order
		one, two := filled[T](c.rank, n), filled[T](c.rank+9, n)
		a, b := alloc[T](n), alloc[T](n)
		if c.rank%2 == 0 && c.rank+1 < c.size {
			must(t, c.Send(one.ptr(), n, ty, c.rank+1))
			must(t, c.Send(two.ptr(), n, ty, c.rank+1))
		} else if c.rank%2 == 1 {
			must(t, c.Recv(a.ptr(), n, ty, prev))
			must(t, c.Recv(b.ptr(), n, ty, prev))
			a.same(t, c, input[T](prev, n), "Recv")
			b.same(t, c, input[T](prev+9, n), "Recv")
		}
	}

	// Everyone to everyone, itself included, twice, in an order that would deadlock one by one.
	var g P2P
	for range 2 {
		var in []memory[T]
		for range 2 {
			for r := range c.size {
				m := alloc[T](n)
				in = append(in, m)
				must(t, g.Send(c, src.ptr(), n, ty, r))
				must(t, g.Recv(c, m.ptr(), n, ty, r))
			}
		}
		must(t, g.Wait())
		for i, m := range in {
			m.same(t, c, input[T](i%c.size, n), "P2P")
		}
	}
	must(t, g.Wait())
}

// TestGroupOverComms has messages of two communicators in one group; those of one do not match those of the other.
func TestGroupOverComms(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *Comm) { withAndWithoutMail(t, c, func(c *Comm) { groupOverComms(t, c) }) })
}

func groupOverComms(t *testing.T, c *Comm) {
	for _, shared := range []bool{false, true} {
		d, err := c.Dup()
		must(t, err)
		if shared {
			must(t, d.ShareMemory())
		}
		x, y, a, b := []int32{1}, []int32{2}, []int32{0}, []int32{0}
		var g P2P
		must(t, g.Send(d, ptr(y), 1, elem.Int32, 1-c.rank))
		must(t, g.Send(c, ptr(x), 1, elem.Int32, 1-c.rank))
		must(t, g.Recv(c, ptr(a), 1, elem.Int32, 1-c.rank))
		must(t, g.Recv(d, ptr(b), 1, elem.Int32, 1-c.rank))
		must(t, g.Wait())
		if a[0] != 1 || b[0] != 2 {
			t.Fatalf("received %d and %d", a[0], b[0])
		}
		must(t, d.Free())
	}
}

// TestWrongLength sends messages of another length than is expected; both numbers are in the error, and the next message
// is received well.
func TestWrongLength(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *Comm) { withAndWithoutMail(t, c, func(c *Comm) { wrongLength(t, c) }) })
}

func wrongLength(t *testing.T, c *Comm) {
	x, y := make([]float32, 4096), make([]float32, 4096)
	px, py := ptr(x), ptr(y)
	const f = elem.Float32
	for _, inParts := range []bool{false, true} {
		if inParts {
			lower(t)
		}
		for _, tc := range []struct {
			sent, want int
			class      Result
			text       string
		}{
			{5, 8, ErrCount, "message from rank 0 has 5 float32 elements, 8 expected"},
			{0, 8, ErrCount, "has 0 float32 elements, 8 expected"},
			{40, 41, ErrCount, "has 40 float32 elements, 41 expected"},
			{8, 5, ErrTruncate, "8 float32 elements, 5 expected"},
			{1, 0, ErrTruncate, "1 float32 elements, 0 expected"},
			{41, 40, ErrTruncate, "41 float32 elements, 40 expected"},
			{40, 4096, ErrCount, "has 40 float32 elements, 4096 expected"}, // one by mail, the other not
			{4096, 40, ErrTruncate, "40 expected"},
		} {
			if c.rank == 0 {
				must(t, c.Send(px, tc.sent, f, 1))
				must(t, c.Send(px, tc.sent, f, 1))
				must(t, c.Send(px, tc.sent, f, 1))
				must(t, c.Send(px, 3, f, 1))
				continue
			}
			refused(t, c, c.Recv(py, tc.want, f, 0), "MPI_Recv", tc.class, tc.text)
			refused(t, c, c.SendRecv(py, tc.want, 0, px, 1, 1, elem.Float32), "MPI_Sendrecv", tc.class, tc.text)
			var g P2P
			must(t, g.Recv(c, py, tc.want, f, 0))
			refused(t, c, g.Wait(), "MPI_Irecv", tc.class, tc.text)
			must(t, c.Recv(py, 3, f, 0))
			must(t, c.Recv(py, 1, f, 1)) // what SendRecv sent to this rank itself
		}
		// Bytes that are no whole number of elements.
		if c.rank == 0 {
			must(t, c.Send(px, 5, elem.Uint8, 1))
		} else {
			refused(t, c, c.Recv(py, 2, f, 0), "MPI_Recv", ErrCount, "has 5 bytes, 8 (2 float32 elements) expected")
		}
		// The V form that is made of messages.
		recv, send := []int{0, 2}, []int{0, 3}
		if c.rank == 1 {
			recv, send = []int{2, 0}, []int{2, 0}
		}
		err := c.AllToAllV(px, recv, py, send, f)
		if c.rank == 0 {
			must(t, err)
		} else {
			refused(t, c, err, "MPI_Irecv", ErrTruncate, "rank 0", "3 float32 elements, 2 expected")
		}
	}
}

// TestGroupIsReusable keeps a group after messages that were refused, and after one that failed.
func TestGroupIsReusable(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *Comm) { withAndWithoutMail(t, c, func(c *Comm) { groupIsReusable(t, c) }) })
}

func groupIsReusable(t *testing.T, c *Comm) {
	x, y := []int64{int64(c.rank)}, []int64{-1, -1}
	peer := 1 - c.rank
	var g P2P
	must(t, g.Send(c, ptr(x), 1, elem.Int64, peer))
	must(t, g.Recv(c, ptr(y), 2, elem.Int64, peer))
	refused(t, c, g.Send(c, nil, 1, elem.Int64, peer), "MPI_Isend", ErrBuffer)
	refused(t, c, g.Wait(), "MPI_Irecv", ErrCount)
	for range 3 {
		must(t, g.Recv(c, ptr(y), 1, elem.Int64, peer))
		must(t, g.Send(c, ptr(x), 1, elem.Int64, peer))
		must(t, g.Wait())
		if y[0] != int64(peer) {
			t.Fatalf("received %d, want %d", y[0], peer)
		}
		y[0] = -1
	}
}

// TestNoAllocation makes every call that moves data, on Go memory and with warm groups, without allocating.
func TestNoAllocation(t *testing.T) {
	onRanks(t, []int{1, 2}, func(t *testing.T, c *Comm) { withAndWithoutMail(t, c, func(c *Comm) { noAllocation(t, c) }) })
}

func noAllocation(t *testing.T, c *Comm) {
	n, peer := 8, c.size-1-c.rank
	x, y := make([]float32, n*c.size), make([]float32, n*c.size)
	h := make([]elem.BF16, n)
	px, py, ph := ptr(x), ptr(y), ptr(h)
	even := make([]int, c.size)
	for i := range even {
		even[i] = n
	}
	const f, sum = elem.Float32, elem.Sum
	var g P2P
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
			if c.size == 1 {
				return nil
			}
			if c.rank == 0 {
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
		var err error
		a := testing.AllocsPerRun(20, func() {
			if e := tc.call(); e != nil {
				err = e
			}
		})
		must(t, err)
		if a != 0 {
			t.Errorf("%s allocates %v times a call", tc.name, a)
		}
	}
}

// The benchmarks measure one rank's overhead, or with more ranks the latency of 8 bytes:
//
//	go test -c ./cudampi && mpirun -np 2 ./cudampi.test -test.run '^$' -test.bench . -test.benchtime 50000x
//
// The number of iterations must be given, so that all ranks make as many calls.
func benchmark(b *testing.B, call func(c *Comm, dst, src unsafe.Pointer) error) {
	c, err := Start()
	if err != nil {
		b.Fatal(err)
	}
	src, dst := make([]float64, c.size), make([]float64, c.size)
	ps, pd := ptr(src), ptr(dst)
	b.ReportAllocs()
	for b.Loop() {
		if err := call(c, pd, ps); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllReduce8(b *testing.B) {
	benchmark(b, func(c *Comm, dst, src unsafe.Pointer) error { return c.AllReduce(dst, src, 1, elem.Float64, elem.Sum) })
}

// BenchmarkPingPong8 is there and back for ranks 0 and 1; the latency is half of it.
func BenchmarkPingPong8(b *testing.B) {
	benchmark(b, func(c *Comm, dst, src unsafe.Pointer) error {
		if c.size < 2 || c.rank > 1 {
			return nil
		}
		peer := 1 - c.rank
		if c.rank == 0 {
			if err := c.Send(src, 1, elem.Float64, peer); err != nil {
				return err
			}
			return c.Recv(dst, 1, elem.Float64, peer)
		}
		if err := c.Recv(dst, 1, elem.Float64, peer); err != nil {
			return err
		}
		return c.Send(src, 1, elem.Float64, peer)
	})
}

func BenchmarkAllGather8(b *testing.B) {
	benchmark(b, func(c *Comm, dst, src unsafe.Pointer) error { return c.AllGather(dst, src, 1, elem.Float64) })
}

func BenchmarkP2P8(b *testing.B) {
	var g P2P
	benchmark(b, func(c *Comm, dst, src unsafe.Pointer) error {
		peer := c.size - 1 - c.rank
		if err := g.Send(c, src, 1, elem.Float64, peer); err != nil {
			return err
		}
		if err := g.Recv(c, dst, 1, elem.Float64, peer); err != nil {
			return err
		}
		return g.Wait()
	})
}
