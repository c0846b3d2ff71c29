package cudampi

import (
	"math/rand/v2"
	"testing"

	"lockstep/internal/elem"
)

// TestMailOrder sends messages of all lengths, which go through the ring and beside it, so many that the ring ends and is
// full many times: in groups of any order, by SendRecv, and singly.
func TestMailOrder(t *testing.T) {
	const messages, most = 3000, 3 << 10 // of float32: beyond what goes by mail on 2 and 3 ranks
	onRanks(t, []int{2, 3}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		next, prev := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
		length := func(i int) int { // mostly short
			r := rand.New(rand.NewPCG(7, uint64(i)))
			return r.IntN(1 + most>>r.IntN(12))
		}
		value := func(rank, i, k int) float32 { return float32(rank + 3*i + 5*k) }
		fill := func(i int) memory[float32] {
			m := alloc[float32](length(i))
			for k := range m.data() {
				m.data()[k] = value(c.rank, i, k)
			}
			return m
		}
		check := func(i int, m memory[float32]) {
			for k, v := range m.data() {
				if v != value(prev, i, k) {
					t.Fatalf("message %d of %d: [%d] is %v, want %v", i, length(i), k, v, value(prev, i, k))
				}
			}
		}
		const f = elem.Float32
		portion, order := rand.New(rand.NewPCG(9, 0)), rand.New(rand.NewPCG(9, uint64(c.rank)))
		for first := 0; first < messages; {
			var g P2P
			var in []memory[float32]
			n := 1 + portion.IntN(80)
			for out := 0; out+len(in) < 2*n; { // as many out as in, in any order
				if len(in) == n || out < n && order.IntN(2) == 0 {
					m := fill(first + out)
					must(t, g.Send(c, m.ptr(), length(first+out), f, next))
					out++
					continue
				}
				m := alloc[float32](length(first + len(in)))
				must(t, g.Recv(c, m.ptr(), length(first+len(in)), f, prev))
				in = append(in, m)
			}
			must(t, g.Wait())
			for i, m := range in {
				check(first+i, m)
			}
			first += n
		}
		for i := range 300 {
			out, in := fill(i), alloc[float32](length(i))
			must(t, c.SendRecv(in.ptr(), length(i), prev, out.ptr(), length(i), next, f))
			check(i, in)
		}
		for i := range 2 * messages { // there and back, one by one
			if c.rank > 1 {
				break
			}
			out, in := fill(i), alloc[float32](length(i))
			prev = 1 - c.rank
			if c.rank == i%2 {
				must(t, c.Send(out.ptr(), length(i), f, prev))
				continue
			}
			must(t, c.Recv(in.ptr(), length(i), f, prev))
			check(i, in)
		}
	})
}

// TestMailHoldsNothingUp has a group whose short messages wait for room that there is only when its long one has arrived.
func TestMailHoldsNothingUp(t *testing.T) {
	const short, long, f = 5000, 1 << 20, elem.Float32 // 5000 do not fit a ring
	onRanks(t, []int{3}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		x, one := filled[float32](0, long), filled[float32](0, 1)
		switch c.rank {
		case 0:
			for range short {
				must(t, c.Send(one.ptr(), 1, f, 1))
			}
			for range short {
				must(t, c.Recv(one.ptr(), 1, f, 2))
			}
		case 1:
			must(t, c.Recv(x.ptr(), long, f, 2))
			for range short {
				must(t, c.Recv(one.ptr(), 1, f, 0))
			}
		case 2:
			var g P2P
			for range short {
				must(t, g.Send(c, one.ptr(), 1, f, 0))
			}
			must(t, g.Send(c, x.ptr(), long, f, 1))
			must(t, g.Wait())
		}
		x.same(t, c, input[float32](0, long), "the long message")
		one.same(t, c, input[float32](0, 1), "the short ones")
	})
}
