package cudampi

import (
	"fmt"
	"testing"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// BenchmarkDevice needs a GPU for each rank and is started by hand:
//
//	mpirun -np 4 cudampi.test -test.run '^$' -test.bench Device -test.benchtime 20x
//
// A call is timed until its result is there for the host. NVRTC is needed for all ways but the staged one.
func BenchmarkDevice(b *testing.B) {
	c, err := Start()
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
	aware, err := CUDAAware()
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []Path{Staged, AwareMPI, Peer} {
		if path == AwareMPI && !aware.Yes {
			continue // it would crash
		}
		k, err := c.OnDevice(d, DeviceConfig{Path: path})
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
				{"AllReduce", func() error { return k.AllReduce(At(s), dst, src, bytes/4, elem.Float32, elem.Sum) }},
				{"SendRecv", func() error {
					return k.SendRecv(At(s), dst, bytes/4, (c.rank+1)%c.size, src, bytes/4, (c.rank+c.size-1)%c.size, elem.Float32)
				}},
			} {
				b.Run(fmt.Sprintf("%v/%s/%d", path, call.name, bytes), func(b *testing.B) {
					b.SetBytes(int64(bytes))
					for range b.N {
						if err := call.fn(); err != nil {
							b.Fatal(err)
						}
						if err := c.WaitStream(s); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
		if err := k.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
