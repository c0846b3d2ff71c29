package peer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi/commtest"
	"lockstep/internal/mpirun"
	"lockstep/spmd/internal/shm"
)

// exchanger is the peers of a Comm, and a stream.
type exchanger struct {
	*Clique
	site
}

func openExchanger(t *testing.T, c *shm.NodeComm, d *cuda.Device) exchanger {
	t.Helper()
	return openRoom(t, c, d, 4096)
}

// openRoom is openExchanger where there is room for bulk.
func openRoom(t *testing.T, c *shm.NodeComm, d *cuda.Device, room int) exchanger {
	t.Helper()
	if !commtest.OnGPU() {
		exchangeBlocks = 4 + c.Rank() // threads in the double, where each rank may have other ones
	}
	return exchanger{commtest.Must1(open(c, d, room))(t), newSite(t, c, d)} // slow, and right, where ranks share a GPU
}

func (x exchanger) close(t *testing.T) {
	t.Helper()
	commtest.Must(t, x.s.Synchronize())
	commtest.Must(t, x.Failure())
	commtest.Must(t, x.s.Close())
	commtest.Must(t, x.Clique.Close())
}

// do exchanges, with the memory for a list where it is long.
func (x exchanger) do(t *testing.T, messages ...Message) {
	t.Helper()
	var list unsafe.Pointer
	if n := ListBytes(len(messages)); n > 0 {
		list = commtest.Must1(x.site.dev.Malloc(n))(t)
		defer func() { commtest.Must(t, x.site.dev.Free(list)) }() // waits
	}
	commtest.Must(t, x.Clique.Exchange(x.s, list, messages))
}

// TestExchange: round rings, in lengths around packs and chunks, which take turns; everyone
// with everyone, several times at once, in lists that go by parameters, and in those that go
// by one kernel and by several.
func TestExchange(t *testing.T) {
	commtest.CountsLeft(t)
	onDevices(t, commtest.Counts, map[string]string{"FAKECUDA_DELAY": "100"},
		func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
			roundRings(t, c, openExchanger(t, c, d))
			messagesMost, peersAtOnce = 8000, smallBlock
			roundRings(t, c, openRoom(t, c, d, 2<<20))
			messagesMost, peersAtOnce = 2<<20, smallBlocks*smallBlock
		})
}

func roundRings(t *testing.T, c *shm.NodeComm, x exchanger) {
	t.Helper()
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	most := x.MessageMost()
	for round, n := range []int{
		most, 1, 0, 15, 16, 17, 2047, 2048, 2049, most - 1, 3, 5000, 5000, 2 * messageQueues * smallBlock / 3,
		3*messageQueues*smallBlock + 5, most,
	} {
		shift := round % 3 // where nothing is aligned
		src := filled(t, x.site, commtest.Input[int8](c.Rank()+round, n+shift))
		dst := alloc[int8](t, x.site, n+shift)
		x.do(t, receives(dst, shift, n, prev), sends(src, shift, n, next))
		want := commtest.Input[int8](prev+round, n+shift)
		copy(want, commtest.Alloc[int8](shift).Data())
		dst.same(t, want, fmt.Sprintf("round a ring, %d bytes", n))
		src.same(t, commtest.Input[int8](c.Rank()+round, n+shift), "what was sent")
	}
	for _, times := range []int{1, 5, 40} {
		const n = 1100 // elements, more than two chunks
		var list []Message
		out := filled(t, x.site, commtest.Input[float32](c.Rank(), c.Size()*times*n))
		in := alloc[float32](t, x.site, c.Size()*times*n)
		for r := range c.Size() {
			for k := range times {
				list = append(list, sends(out, (r*times+k)*n, n-k, r), receives(in, (r*times+k)*n, n-k, r))
			}
		}
		x.do(t, list...)
		want := slices.Clone(in.host.Data())
		for r := range c.Size() {
			theirs := commtest.Input[float32](r, c.Size()*times*n)
			for k := range times {
				copy(want[(r*times+k)*n:][:n-k], theirs[(c.Rank()*times+k)*n:])
			}
		}
		in.same(t, want, fmt.Sprintf("everyone with everyone, %d times", times))
		out.free(t)
	}
	x.close(t)
}

// TestExchangeOrder: two messages are sent when nobody asks for them; messages match in their
// order, whatever calls they are in; and a call does all that is in it at once, or the third
// message would wait for one that comes later.
func TestExchangeOrder(t *testing.T) {
	onDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "100"},
		func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
			x := openExchanger(t, c, d)
			const n, each = 3000, 5
			if c.Rank() == 2 { // between them, and in nobody's way
				for range each {
					x.do(t, sends(filled(t, x.site, commtest.Input[int32](2, 3)), 0, 3, 2),
						receives(alloc[int32](t, x.site, 3), 0, 3, 2))
				}
				commtest.Must(t, c.Barrier())
				x.close(t)
				return
			}
			peer := 1 - c.Rank()
			out, in := filled(t, x.site, commtest.Input[int32](c.Rank(), (each+2)*n)),
				alloc[int32](t, x.site, (each+2)*n)
			put := func(k int) Message { return sends(out, k*n, n-k, peer) }
			take := func(k int) Message { return receives(in, k*n, n-k, peer) }
			x.do(t, put(0))
			x.do(t, put(1))
			commtest.Must(t, x.s.Synchronize())
			commtest.Must(t, c.Barrier())
			x.do(t, take(0))
			x.do(t, take(1))
			if c.Rank() == 0 {
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
			in.same(t, want, "in the order in which they were sent")
			out.free(t)
			x.close(t)
		})
}

// TestExchangeGraph: a graph counts on the device, so it may be replayed, and calls come between.
func TestExchangeGraph(t *testing.T) {
	onDevices(t, []int{1, 3}, map[string]string{"FAKECUDA_DELAY": "100"},
		func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
			x := openExchanger(t, c, d)
			const n, times = 2500, 20 // more messages than parameters hold
			src, dst := filled(t, x.site, commtest.Input[int32](c.Rank(), n)), alloc[int32](t, x.site, times*n)
			next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
			var messages []Message
			for k := range times {
				messages = append(messages, sends(src, 0, n, next), receives(dst, k*n, n, prev))
			}
			list := commtest.Must1(d.Malloc(ListBytes(len(messages))))(t)
			commtest.Must(t, x.s.BeginCapture(cuda.Relaxed))
			commtest.Must(t, x.Clique.Exchange(x.s, list, messages))
			g := commtest.Must1(x.s.EndCapture())(t)
			exec := commtest.Must1(g.Instantiate())(t)
			commtest.Must(t, g.Close())
			for round := range 3 {
				if round > 0 {
					copy(src.host.Data(), commtest.Input[int32](c.Rank()+round, n))
					src.move(t, true)
				}
				commtest.Must(t, exec.Launch(x.s))
				commtest.Must(t, exec.Launch(x.s))
				a, b := filled(t, x.site, commtest.Input[int32](c.Rank(), 9)), alloc[int32](t, x.site, 9)
				x.do(t, sends(a, 0, 9, prev), receives(b, 0, 9, next))
				b.same(t, commtest.Input[int32](next, 9), "a call between")
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

// TestExchangeLengths: a message of another length than its Recv, shorter or longer,
// also by whole chunks, is found.
func TestExchangeLengths(t *testing.T) {
	onDevices(t, []int{2}, map[string]string{"FAKECUDA_DELAY": "100"},
		func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
			messagesMost, peersAtOnce = 32<<10, smallBlock // what is longer is bulk
			for _, tc := range []struct{ sent, taken int }{
				{40 << 10, 40<<10 - 1}, {5, 4}, {4, 5}, {0, 1}, {1, 0}, {2 * smallBlock, smallBlock},
				{smallBlock, 3 * smallBlock}, {30 << 10, 30<<10 - 1},
			} {
				x := openRoom(t, c, d, 1<<20)
				b := alloc[int8](t, x.site, 64<<10)
				commtest.Must(t, x.s.Synchronize())
				commtest.Must(t, x.Failure())
				if c.Rank() == 0 {
					x.do(t, sends(b, 0, tc.sent, 1))
				} else {
					x.do(t, receives(b, 0, tc.taken, 0))
					var err error
					for start := time.Now(); err == nil && time.Since(start) < mpirun.Limit(t); {
						err = x.Failure()
					}
					want := fmt.Sprintf("a message from rank 0 has %d bytes, and Recv takes %d", tc.sent, tc.taken)
					if err == nil || err.Error() != want {
						t.Fatalf("%v instead of %s", err, want)
					}
					x.complaints()[2] = 0
					atomic.StoreUint32(&x.complaints()[0], 0) // what ends the kernel but for the host
				}
				commtest.Must(t, c.Barrier())
				if c.Rank() == 0 && tc.taken > tc.sent { // the chunks that did not come, so that the kernel ends
					x.do(t, sends(b, 0, tc.taken, 1))
				}
				b.free(t)
				x.close(t)
			}
		})
}

// TestExchangeRefusals: what no kernel between peers carries is refused with nothing enqueued.
func TestExchangeRefusals(t *testing.T) {
	onDevices(t, []int{2}, nil, func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		b := alloc[int8](t, x.site, 16)
		for _, m := range []Message{
			sends(b, 0, 1<<messageBits, 0), receives(b, 0, -1, 0), sends(b, 0, 1, 2), receives(b, 0, 1, -1),
		} {
			if err := x.Clique.Exchange(x.s, nil, []Message{sends(b, 0, 1, 1-c.Rank()), m}); err == nil {
				t.Errorf("%+v was taken", m)
			}
		}
		commtest.Must(t, x.Clique.Exchange(x.s, nil, nil))
		b.free(t)
		x.close(t)
	})
}

// TestKernelsOfSeveral: what is opened on one device has its kernels in common, until
// the last of them is closed.
func TestKernelsOfSeveral(t *testing.T) {
	onDevices(t, []int{2}, nil, func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
		first, second := openExchanger(t, c, d), openExchanger(t, c, d)
		if first.k.Module != second.k.Module || first.mem == second.mem {
			t.Errorf("kernels %p and %p, memory %p and %p", first.k, second.k, first.mem, second.mem)
		}
		first.close(t)
		a, b := filled(t, second.site, commtest.Input[int32](c.Rank(), 9)), alloc[int32](t, second.site, 9)
		second.do(t, sends(a, 0, 9, 1-c.Rank()), receives(b, 0, 9, 1-c.Rank()))
		b.same(t, commtest.Input[int32](1-c.Rank(), 9), "after the others are closed")
		a.free(t)
		second.close(t)
		if n := inUse(d); n != 0 {
			t.Errorf("%d modules are left", n)
		}
	})
}

// inUse returns how many modules are loaded on a device.
func inUse(d *cuda.Device) (n int) {
	loaded.Lock()
	defer loaded.Unlock()
	for _, m := range loaded.all {
		if m.dev == d {
			n++
		}
	}
	return n
}
