package transport_test

import (
	"fmt"
	"testing"

	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/transport"
)

// BenchmarkAllReduce is an all-reduce of float32 between ranks that do nothing else.
func BenchmarkAllReduce(b *testing.B) {
	for _, ranks := range []int{2, 4} {
		for _, n := range []int{2, 200, 1 << 20} {
			b.Run(fmt.Sprintf("%d ranks, %d B", ranks, 4*n), func(b *testing.B) {
				b.SetBytes(int64(4 * n))
				err := transport.RunTeam(ranks, func(c *transport.Member) error {
					x := make([]float32, n)
					return commtest.Turns(b, c.Rank(), func() error {
						return c.AllReduce(commtest.Ptr(x), commtest.Ptr(x), n, elem.Float32, elem.Max)
					})
				})
				commtest.Must(b, err)
			})
		}
	}
}

// BenchmarkPingPong is a message from rank 0 to rank 1 and one back.
func BenchmarkPingPong(b *testing.B) {
	err := transport.RunTeam(2, func(c *transport.Member) error {
		x := make([]float32, 2)
		p, other := commtest.Ptr(x), 1-c.Rank()
		for range b.N {
			if c.Rank() == 0 {
				if err := c.Send(p, 2, elem.Float32, other); err != nil {
					return err
				}
			}
			if err := c.Recv(p, 2, elem.Float32, other); err != nil {
				return err
			}
			if c.Rank() == 1 {
				if err := c.Send(p, 2, elem.Float32, other); err != nil {
					return err
				}
			}
		}
		return nil
	})
	commtest.Must(b, err)
}
