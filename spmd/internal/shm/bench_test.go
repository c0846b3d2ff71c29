package shm

import (
	"os"
	"testing"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
)

// The benchmarks measure the latency of 8 bytes on two or more ranks:
//
//	go test -c ./spmd/internal/shm && mpirun -np 2 ./shm.test -test.run '^$' -test.bench . -test.benchtime 50000x
//
// The number of iterations must be given, so that all ranks make as many calls.
func benchmark(b *testing.B, call func(c *NodeComm, dst, src unsafe.Pointer) error) {
	if bench == nil {
		c, err := cudampi.Start()
		if err != nil {
			b.Fatal(err)
		}
		if bench, err = Share(c); err != nil {
			b.Fatal(err)
		}
	}
	src, dst := make([]float64, bench.Size()), make([]float64, bench.Size())
	ps, pd := commtest.Ptr(src), commtest.Ptr(dst)
	b.ReportAllocs()
	for b.Loop() {
		if err := call(bench, pd, ps); err != nil {
			b.Fatal(err)
		}
	}
}

var bench *NodeComm // of the benchmarks

func TestMain(m *testing.M) {
	code := mpirun.Main(m)
	if bench != nil && code == 0 {
		if bench.Close() != nil || cudampi.Stop() != nil {
			code = 1
		}
	}
	os.Exit(code)
}

func BenchmarkAllReduce8(b *testing.B) {
	benchmark(b, func(c *NodeComm, dst,
		src unsafe.Pointer) error {
		return c.AllReduce(dst, src, 1, elem.Float64, elem.Sum)
	})
}

func BenchmarkAllGather8(b *testing.B) {
	benchmark(b, func(c *NodeComm, dst, src unsafe.Pointer) error { return c.AllGather(dst, src, 1, elem.Float64) })
}

func BenchmarkBroadcast8(b *testing.B) {
	benchmark(b, func(c *NodeComm, dst, _ unsafe.Pointer) error { return c.Broadcast(dst, 1, elem.Float64, 0) })
}

// BenchmarkPingPong8 is there and back for ranks 0 and 1; the latency is half of it.
func BenchmarkPingPong8(b *testing.B) {
	benchmark(b, func(c *NodeComm, dst, src unsafe.Pointer) error {
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

func BenchmarkP2P8(b *testing.B) {
	var g P2P
	benchmark(b, func(c *NodeComm, dst, src unsafe.Pointer) error {
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
