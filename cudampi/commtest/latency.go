package commtest

import (
	"testing"
	"unsafe"

	"lockstep/internal/elem"
)

// Latencies has the benchmarks of 8 bytes: a rank's overhead, or with more ranks the latency. They
// run in a test program that mpirun starts:
//
//	go test -c PACKAGE
//	mpirun -np 2 ./NAME.test -test.run '^$' -test.bench . -test.benchtime 50000x
//
// The number of iterations must be given, so that all ranks make as many calls. PingPong8 is there
// and back for ranks 0 and 1; the latency is half of it.
func Latencies[C Communicator](b *testing.B, c C, g Group[C]) {
	src, dst := make([]float64, c.Size()), make([]float64, c.Size())
	s, d, f, other := Ptr(src), Ptr(dst), elem.Float64, c.Size()-1-c.Rank()
	type message = func(p unsafe.Pointer, n int, t elem.Type, rank int) error
	both := func(first, second message, one, two unsafe.Pointer) error {
		if err := first(one, 1, f, 1-c.Rank()); err != nil {
			return err
		}
		return second(two, 1, f, 1-c.Rank())
	}
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"AllReduce8", func() error { return c.AllReduce(d, s, 1, f, elem.Sum) }},
		{"AllGather8", func() error { return c.AllGather(d, s, 1, f) }},
		{"Broadcast8", func() error { return c.Broadcast(d, 1, f, 0) }},
		{"PingPong8", func() error {
			switch {
			case c.Size() < 2 || c.Rank() > 1:
				return nil
			case c.Rank() == 0:
				return both(c.Send, c.Recv, s, d)
			}
			return both(c.Recv, c.Send, d, s)
		}},
		{"P2P8", func() error {
			if err := g.Send(c, s, 1, f, other); err != nil {
				return err
			}
			if err := g.Recv(c, d, 1, f, other); err != nil {
				return err
			}
			return g.Wait()
		}},
	} {
		b.Run(call.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := call.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
