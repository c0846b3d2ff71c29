package cudampi_test

import (
	"testing"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
)

func TestMessages(t *testing.T) {
	commtest.TypesLeft(t, len(counts), "messages by MPI")
	onRanks(t, counts, func(t *testing.T, c *cudampi.Comm) {
		var g cudampi.P2P
		for _, inParts := range []bool{false, true} {
			if inParts {
				cudampi.Lower(t)
			}
			for _, n := range append(commtest.Lengths, 7, 49, 1022, 20000) { // 20000 is no eager message
				commtest.EveryMessage(t, c, &g, n)
			}
		}
	})
}

func TestGroupOverComms(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		d, err := c.Dup()
		commtest.Must(t, err)
		commtest.GroupOverComms(t, c, d, &cudampi.P2P{})
		commtest.Must(t, d.Close())
	})
}

var classes = commtest.Classes{Buffer: cudampi.ErrBuffer, Count: cudampi.ErrCount, Truncate: cudampi.ErrTruncate}

func TestWrongLength(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		commtest.WrongLength(t, c, &cudampi.P2P{}, classes)
		cudampi.Lower(t)
		commtest.WrongLength(t, c, &cudampi.P2P{}, classes)
	})
}

func TestWrongType(t *testing.T) {
	onRanks(t, []int{2, 3}, func(t *testing.T, c *cudampi.Comm) {
		commtest.WrongType(t, c, &cudampi.P2P{})
		cudampi.Lower(t)
		commtest.WrongType(t, c, &cudampi.P2P{})
	})
}

func TestGroupIsReusable(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		commtest.GroupIsReusable(t, c, &cudampi.P2P{}, classes)
	})
}

func TestNoAllocation(t *testing.T) {
	onRanks(t, []int{1, 2}, func(t *testing.T, c *cudampi.Comm) { commtest.NoAllocation(t, c, &cudampi.P2P{}) })
}

// The benchmarks measure one rank's overhead, or with more ranks the latency of 8 bytes:
//
//	go test -c ./cudampi
//	mpirun -np 2 ./cudampi.test -test.run '^$' -test.bench . -test.benchtime 50000x
//
// The number of iterations must be given, so that all ranks make as many calls.
func benchmark(b *testing.B, call func(c *cudampi.Comm, dst, src unsafe.Pointer) error) {
	c, err := cudampi.Start()
	if err != nil {
		b.Fatal(err)
	}
	src, dst := make([]float64, c.Size()), make([]float64, c.Size())
	ps, pd := commtest.Ptr(src), commtest.Ptr(dst)
	b.ReportAllocs()
	for b.Loop() {
		if err := call(c, pd, ps); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllReduce8(b *testing.B) {
	benchmark(b, func(c *cudampi.Comm, dst, src unsafe.Pointer) error {
		return c.AllReduce(dst, src, 1, elem.Float64, elem.Sum)
	})
}

// BenchmarkPingPong8 is there and back for ranks 0 and 1; the latency is half of it.
func BenchmarkPingPong8(b *testing.B) {
	benchmark(b, func(c *cudampi.Comm, dst, src unsafe.Pointer) error {
		if c.Size() < 2 || c.Rank() > 1 {
			return nil
		}
		peer := 1 - c.Rank()
		if c.Rank() == 0 {
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
	benchmark(b, func(c *cudampi.Comm, dst, src unsafe.Pointer) error { return c.AllGather(dst, src, 1, elem.Float64) })
}

func BenchmarkP2P8(b *testing.B) {
	var g cudampi.P2P
	benchmark(b, func(c *cudampi.Comm, dst, src unsafe.Pointer) error {
		peer := c.Size() - 1 - c.Rank()
		if err := g.Send(c, src, 1, elem.Float64, peer); err != nil {
			return err
		}
		if err := g.Recv(c, dst, 1, elem.Float64, peer); err != nil {
			return err
		}
		return g.Wait()
	})
}
