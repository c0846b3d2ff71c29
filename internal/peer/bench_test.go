package peer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
)

// BenchmarkDevice needs a GPU for each rank and is started by hand:
//
//	mpirun -np 4 peer.test -test.run '^$' -test.bench Device -test.benchtime 20x
//
// A call is timed until its result is there for the host, and the median is reported beside the mean. "Graph" is a call of
// a graph of 20. NVRTC is needed for all ways but the staged one.
func BenchmarkDevice(b *testing.B) {
	base, err := cudampi.Start()
	if err != nil {
		b.Fatal(err)
	}
	c, err := shm.Share(base)
	if err != nil {
		b.Fatal(err)
	}
	n, err := cuda.Count()
	if err != nil {
		b.Skip(err)
	}
	node, err := c.SplitShared()
	if err != nil {
		b.Fatal(err)
	}
	d, err := cuda.Open(node.Rank() % n)
	if err != nil {
		b.Fatal(err)
	}
	aware, err := cudampi.CUDAAware()
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []cudampi.Path{cudampi.Staged, cudampi.AwareMPI, cudampi.Peer} {
		if path == cudampi.AwareMPI && !aware.Yes {
			continue // it would crash
		}
		k, _, err := OnDevice(c, d, cudampi.DeviceConfig{Path: path})
		if err != nil {
			b.Log(path, err)
			continue
		}
		s, _ := d.NewStream(0)
		const most = 64 << 20
		dst, _ := d.Malloc(most)
		src, err := d.Malloc(most)
		if err != nil {
			b.Fatal(err)
		}
		for _, bytes := range []int{8, 16 << 10, 1 << 20, most} {
			for _, call := range []struct {
				name string
				fn   func() error
			}{
				{"AllReduce", func() error { return k.AllReduce(cudampi.At(s), dst, src, bytes/4, elem.Float32, elem.Sum) }},
				{"SendRecv", func() error {
					return k.SendRecv(cudampi.At(s), dst, bytes/4, (c.Rank()+1)%c.Size(), src, bytes/4, (c.Rank()+c.Size()-1)%c.Size(), elem.Float32)
				}},
			} {
				b.Run(fmt.Sprintf("%v/%s/%d", path, call.name, bytes), func(b *testing.B) {
					b.SetBytes(int64(bytes))
					inMedian(b, c, 1, func() error {
						if err := call.fn(); err != nil {
							return err
						}
						return c.WaitStream(s)
					})
				})
			}
			if path == cudampi.Peer {
				b.Run(fmt.Sprintf("%v/Graph/%d", path, bytes), func(b *testing.B) { inGraph(b, c, k, s, dst, src, bytes) })
			}
		}
		b.Log(path, k.Path(), k.Reason())
		if err := k.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// inMedian times calls of fn, each of which is calls calls, after a few that warm up: all ranks begin together, and
// the slowest rank's median counts.
func inMedian(b *testing.B, c *shm.Comm, calls int, fn func() error) {
	b.Helper()
	for range 5 {
		if err := fn(); err != nil {
			b.Fatal(err)
		}
	}
	took := make([]float64, b.N)
	b.ResetTimer()
	for i := range took {
		if err := c.Barrier(); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if err := fn(); err != nil {
			b.Fatal(err)
		}
		took[i] = float64(time.Since(start).Nanoseconds()) / 1000 / float64(calls)
	}
	b.StopTimer()
	slices.Sort(took)
	median := took[len(took)/2]
	if err := c.AllReduce(unsafe.Pointer(&median), unsafe.Pointer(&median), 1, elem.Float64, elem.Max); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(median, "us/median")
}

// inGraph is what all-reduces cost without the host.
func inGraph(b *testing.B, c *shm.Comm, k *cudampi.DeviceComm, s *cuda.Stream, dst, src unsafe.Pointer, bytes int) {
	b.Helper()
	if err := s.BeginCapture(cuda.ThreadLocal); err != nil {
		b.Fatal(err)
	}
	const calls = 20
	for range calls {
		if err := k.AllReduce(cudampi.At(s), dst, src, bytes/4, elem.Float32, elem.Sum); err != nil {
			b.Fatal(err)
		}
	}
	g, err := s.EndCapture()
	if err != nil {
		b.Fatal(err)
	}
	exec, err := g.Instantiate()
	if err != nil {
		b.Fatal(err)
	}
	inMedian(b, c, calls, func() error {
		if err := exec.Launch(s); err != nil {
			return err
		}
		return c.WaitStream(s)
	})
	if err := errors.Join(exec.Close(), g.Close()); err != nil {
		b.Fatal(err)
	}
}
