package cudampi

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
)

// exchanger is the peers of a Comm, and a stream.
type exchanger struct {
	*Peers
	way
}

func openExchanger(t *testing.T, c *Comm, d *cuda.Device) exchanger {
	t.Helper()
	if !onGPU() {
		exchangeBlocks = 4 + c.rank // threads in the double, where each rank may have other ones
	}
	p := must1(c.OpenPeers(d, 4096))(t)
	p.apart = true // slow, and right, where ranks share a GPU
	return exchanger{p, way{"exchange", &DeviceComm{c: c, dev: d}, must1(d.NewStream(0))(t)}}
}

func (x exchanger) close(t *testing.T) {
	t.Helper()
	commtest.Must(t, x.s.Synchronize())
	commtest.Must(t, x.Failure())
	commtest.Must(t, x.s.Close())
	commtest.Must(t, x.Peers.Close())
}

// do exchanges, with the memory for a list where it is long.
func (x exchanger) do(t *testing.T, messages ...Message) {
	t.Helper()
	var list unsafe.Pointer
	if n := ListBytes(len(messages)); n > 0 {
		list = must1(x.Peers.dev.Malloc(n))(t)
		defer func() { commtest.Must(t, x.Peers.dev.Free(list)) }() // waits
	}
	commtest.Must(t, x.Peers.Exchange(x.s, list, messages))
}

func sends[T elem.Elem](b *onDevice[T], at, n, to int) Message {
	return Message{b.at(at), n, elem.Of[T](), to, false}
}

func receives[T elem.Elem](b *onDevice[T], at, n, from int) Message {
	return Message{b.at(at), n, elem.Of[T](), from, true}
}

// TestExchange: round rings, in commtest.Lengths around packs and chunks, which take turns; everyone with everyone, several times at
// once, in lists that go by parameters, and in those that go by one kernel and by several.
func TestExchange(t *testing.T) {
	onDevices(t, counts, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		next, prev := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
		most := x.MessageMost()
		for round, n := range []int{most, 1, 0, 15, 16, 17, 2047, 2048, 2049, most - 1, 3, 5000, 5000, 2 * messageQueues * smallBlock / 3, most} {
			shift := round % 3 // where nothing is aligned
			src, dst := deviceFilled(t, x.way, commtest.Input[int8](c.rank+round, n+shift)), device[int8](t, x.way, n+shift)
			x.do(t, receives(dst, shift, n, prev), sends(src, shift, n, next))
			want := commtest.Input[int8](prev+round, n+shift)
			copy(want, commtest.Alloc[int8](shift).Data())
			dst.Same(t, want, fmt.Sprintf("round a ring, %d bytes", n))
			src.Same(t, commtest.Input[int8](c.rank+round, n+shift), "what was sent")
		}
		for _, times := range []int{1, 5, 40} {
			const n = 700 // elements, more than a chunk
			var list []Message
			out, in := deviceFilled(t, x.way, commtest.Input[float32](c.rank, c.size*times*n)), device[float32](t, x.way, c.size*times*n)
			for r := range c.size {
				for k := range times {
					list = append(list, sends(out, (r*times+k)*n, n-k, r), receives(in, (r*times+k)*n, n-k, r))
				}
			}
			x.do(t, list...)
			want := slices.Clone(in.host.Data())
			for r := range c.size {
				theirs := commtest.Input[float32](r, c.size*times*n)
				for k := range times {
					copy(want[(r*times+k)*n:][:n-k], theirs[(c.rank*times+k)*n:])
				}
			}
			in.Same(t, want, fmt.Sprintf("everyone with everyone, %d times", times))
			out.free(t)
		}
		x.close(t)
	})
}

// TestExchangeOrder: two messages are sent when nobody asks for them; messages match in their order, whatever calls they
// are in; and a call does all that is in it at once, or the third message would wait for one that comes later.
func TestExchangeOrder(t *testing.T) {
	onDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		const n, each = 3000, 5
		if c.rank == 2 { // between them, and in nobody's way
			for range each {
				x.do(t, sends(deviceFilled(t, x.way, commtest.Input[int32](2, 3)), 0, 3, 2), receives(device[int32](t, x.way, 3), 0, 3, 2))
			}
			commtest.Must(t, c.Barrier())
			x.close(t)
			return
		}
		peer := 1 - c.rank
		out, in := deviceFilled(t, x.way, commtest.Input[int32](c.rank, (each+2)*n)), device[int32](t, x.way, (each+2)*n)
		put := func(k int) Message { return sends(out, k*n, n-k, peer) }
		take := func(k int) Message { return receives(in, k*n, n-k, peer) }
		x.do(t, put(0))
		x.do(t, put(1))
		commtest.Must(t, x.s.Synchronize())
		commtest.Must(t, c.Barrier())
		x.do(t, take(0))
		x.do(t, take(1))
		if c.rank == 0 {
			var all []Message
			for k := range each {
				all = append(all, put(2+k))
			}
			for k := range each {
				all = append(all, take(2+k))
			}
			x.do(t, all...)
		} else {
			for k := range each {
				x.do(t, take(2+k))
			}
			x.do(t, put(2), put(3))
			for k := range each - 2 {
				x.do(t, put(4+k))
			}
		}
		want := slices.Clone(in.host.Data())
		for k := range each + 2 {
			copy(want[k*n:][:n-k], commtest.Input[int32](peer, (each+2)*n)[k*n:])
		}
		in.Same(t, want, "in the order in which they were sent")
		out.free(t)
		x.close(t)
	})
}

// TestExchangeGraph: a graph counts on the device, so it may be replayed, and calls come between.
func TestExchangeGraph(t *testing.T) {
	onDevices(t, []int{1, 3}, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		const n, times = 2500, 20 // more messages than parameters hold
		src, dst := deviceFilled(t, x.way, commtest.Input[int32](c.rank, n)), device[int32](t, x.way, times*n)
		next, prev := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
		var messages []Message
		for k := range times {
			messages = append(messages, sends(src, 0, n, next), receives(dst, k*n, n, prev))
		}
		list := must1(d.Malloc(ListBytes(len(messages))))(t)
		commtest.Must(t, x.s.BeginCapture(cuda.Relaxed))
		commtest.Must(t, x.Peers.Exchange(x.s, list, messages))
		g := must1(x.s.EndCapture())(t)
		exec := must1(g.Instantiate())(t)
		commtest.Must(t, g.Close())
		for round := range 3 {
			if round > 0 {
				copy(src.host.Data(), commtest.Input[int32](c.rank+round, n))
				src.move(t, true)
			}
			commtest.Must(t, exec.Launch(x.s))
			commtest.Must(t, exec.Launch(x.s))
			a, b := deviceFilled(t, x.way, commtest.Input[int32](c.rank, 9)), device[int32](t, x.way, 9)
			x.do(t, sends(a, 0, 9, prev), receives(b, 0, 9, next))
			b.Same(t, commtest.Input[int32](next, 9), "a call between")
			a.free(t)
			dst.move(t, false)
			var want []int32
			for range times {
				want = append(want, commtest.Input[int32](prev+round, n)...)
			}
			dst.host.Same(t, c, want, "replay %d", round)
		}
		commtest.Must(t, x.s.Synchronize())
		commtest.Must(t, exec.Close())
		commtest.Must(t, d.Free(list))
		src.free(t)
		dst.free(t)
		x.close(t)
	})
}

// TestExchangeLengths: a message of another length than its Recv, shorter or longer, also by whole chunks, is found.
func TestExchangeLengths(t *testing.T) {
	onDevices(t, []int{2}, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		for _, tc := range []struct{ sent, taken int }{{5, 4}, {4, 5}, {0, 1}, {1, 0}, {2 * smallBlock, smallBlock}, {smallBlock, 3 * smallBlock}, {64 << 10, 64<<10 - 1}} {
			x := openExchanger(t, c, d)
			b := device[int8](t, x.way, 64<<10)
			commtest.Must(t, x.s.Synchronize())
			commtest.Must(t, x.Failure())
			if c.rank == 0 {
				x.do(t, sends(b, 0, tc.sent, 1))
			} else {
				x.do(t, receives(b, 0, tc.taken, 0))
				var err error
				for start := time.Now(); err == nil && time.Since(start) < 20*time.Second; {
					err = x.Failure()
				}
				if want := fmt.Sprintf("a message from rank 0 has %d bytes, and Recv takes %d", tc.sent, tc.taken); err == nil || err.Error() != want {
					t.Fatalf("%v instead of %s", err, want)
				}
				x.complaints()[2] = 0
				atomic.StoreUint32(&x.complaints()[0], 0) // what ends the kernel but for the host
			}
			commtest.Must(t, c.Barrier())
			if c.rank == 0 && tc.taken > tc.sent { // the chunks that did not come, so that the kernel ends
				x.do(t, sends(b, 0, tc.taken, 1))
			}
			b.free(t)
			x.close(t)
		}
	})
}

// TestExchangeRefusals: what no kernel between peers carries is refused with nothing enqueued.
func TestExchangeRefusals(t *testing.T) {
	onDevices(t, []int{2}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		b := device[int8](t, x.way, 16)
		for _, m := range []Message{sends(b, 0, x.MessageMost()+1, 0), receives(b, 0, -1, 0), sends(b, 0, 1, 2), receives(b, 0, 1, -1)} {
			if err := x.Peers.Exchange(x.s, nil, []Message{sends(b, 0, 1, 1-c.rank), m}); err == nil {
				t.Errorf("%+v was taken", m)
			}
		}
		commtest.Must(t, x.Peers.Exchange(x.s, nil, nil))
		b.free(t)
		x.close(t)
	})
}

// TestKernelsOfSeveral: what is opened on one device has its kernels in common, until the last of them is closed.
func TestKernelsOfSeveral(t *testing.T) {
	onDevices(t, []int{2}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		first, second := openExchanger(t, c, d), openExchanger(t, c, d)
		if first.k != second.k || first.Peers.mem == second.Peers.mem {
			t.Errorf("kernels %p and %p, memory %p and %p", first.k, second.k, first.Peers.mem, second.Peers.mem)
		}
		first.close(t)
		a, b := deviceFilled(t, second.way, commtest.Input[int32](c.rank, 9)), device[int32](t, second.way, 9)
		second.do(t, sends(a, 0, 9, 1-c.rank), receives(b, 0, 9, 1-c.rank))
		b.Same(t, commtest.Input[int32](1-c.rank, 9), "after the others are closed")
		a.free(t)
		second.close(t)
		if len(loaded.on) != 0 {
			t.Errorf("%v is left", loaded.on)
		}
	})
}
