package peer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/commtest"
	"lockstep/internal/devkernel"
	"lockstep/internal/devtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/internal/shm"
)

// exchanger is the peers of a Comm, and a stream.
type exchanger struct {
	*Comm
	devtest.Way
}

func openExchanger(t *testing.T, c *shm.Comm, d *cuda.Device) exchanger {
	t.Helper()
	if !devtest.OnGPU() {
		exchangeBlocks = 4 + c.Rank() // threads in the double, where each rank may have other ones
	}
	p := devtest.Must1(Open(c, d, 4096))(t)
	p.apart = true // slow, and right, where ranks share a GPU
	return exchanger{p, devtest.Way{Name: "exchange", C: c, Dev: d, S: devtest.Must1(d.NewStream(0))(t)}}
}

func (x exchanger) close(t *testing.T) {
	t.Helper()
	commtest.Must(t, x.S.Synchronize())
	commtest.Must(t, x.Failure())
	commtest.Must(t, x.S.Close())
	commtest.Must(t, x.Comm.Close())
}

// do exchanges, with the memory for a list where it is long.
func (x exchanger) do(t *testing.T, messages ...cudampi.Message) {
	t.Helper()
	var list unsafe.Pointer
	if n := ListBytes(len(messages)); n > 0 {
		list = devtest.Must1(x.Dev.Malloc(n))(t)
		defer func() { commtest.Must(t, x.Dev.Free(list)) }() // waits
	}
	commtest.Must(t, x.Comm.Exchange(x.S, list, messages))
}

func sends[T elem.Elem](b *devtest.Buffer[T], at, n, to int) cudampi.Message {
	return devtest.Sends(b.At(at), n, elem.Of[T](), to)
}

func receives[T elem.Elem](b *devtest.Buffer[T], at, n, from int) cudampi.Message {
	return devtest.Receives(b.At(at), n, elem.Of[T](), from)
}

// TestExchange: round rings, in lengths around packs and chunks, which take turns; everyone with everyone, several times at
// once, in lists that go by parameters, and in those that go by one kernel and by several.
func TestExchange(t *testing.T) {
	devtest.CountsLeft(t)
	devtest.OnDevices(t, devtest.Counts, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		most := x.MessageMost()
		for round, n := range []int{most, 1, 0, 15, 16, 17, 2047, 2048, 2049, most - 1, 3, 5000, 5000, 2 * messageQueues * smallBlock / 3, most} {
			shift := round % 3 // where nothing is aligned
			src, dst := devtest.Filled(t, x.Way, commtest.Input[int8](c.Rank()+round, n+shift)), devtest.Alloc[int8](t, x.Way, n+shift)
			x.do(t, receives(dst, shift, n, prev), sends(src, shift, n, next))
			want := commtest.Input[int8](prev+round, n+shift)
			copy(want, commtest.Alloc[int8](shift).Data())
			dst.Same(t, want, fmt.Sprintf("round a ring, %d bytes", n))
			src.Same(t, commtest.Input[int8](c.Rank()+round, n+shift), "what was sent")
		}
		for _, times := range []int{1, 5, 40} {
			const n = 700 // elements, more than a chunk
			var list []cudampi.Message
			out, in := devtest.Filled(t, x.Way, commtest.Input[float32](c.Rank(), c.Size()*times*n)), devtest.Alloc[float32](t, x.Way, c.Size()*times*n)
			for r := range c.Size() {
				for k := range times {
					list = append(list, sends(out, (r*times+k)*n, n-k, r), receives(in, (r*times+k)*n, n-k, r))
				}
			}
			x.do(t, list...)
			want := slices.Clone(in.Host.Data())
			for r := range c.Size() {
				theirs := commtest.Input[float32](r, c.Size()*times*n)
				for k := range times {
					copy(want[(r*times+k)*n:][:n-k], theirs[(c.Rank()*times+k)*n:])
				}
			}
			in.Same(t, want, fmt.Sprintf("everyone with everyone, %d times", times))
			out.Free(t)
		}
		x.close(t)
	})
}

// TestExchangeOrder: two messages are sent when nobody asks for them; messages match in their order, whatever calls they
// are in; and a call does all that is in it at once, or the third message would wait for one that comes later.
func TestExchangeOrder(t *testing.T) {
	devtest.OnDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		const n, each = 3000, 5
		if c.Rank() == 2 { // between them, and in nobody's way
			for range each {
				x.do(t, sends(devtest.Filled(t, x.Way, commtest.Input[int32](2, 3)), 0, 3, 2), receives(devtest.Alloc[int32](t, x.Way, 3), 0, 3, 2))
			}
			commtest.Must(t, c.Barrier())
			x.close(t)
			return
		}
		peer := 1 - c.Rank()
		out, in := devtest.Filled(t, x.Way, commtest.Input[int32](c.Rank(), (each+2)*n)), devtest.Alloc[int32](t, x.Way, (each+2)*n)
		put := func(k int) cudampi.Message { return sends(out, k*n, n-k, peer) }
		take := func(k int) cudampi.Message { return receives(in, k*n, n-k, peer) }
		x.do(t, put(0))
		x.do(t, put(1))
		commtest.Must(t, x.S.Synchronize())
		commtest.Must(t, c.Barrier())
		x.do(t, take(0))
		x.do(t, take(1))
		if c.Rank() == 0 {
			var all []cudampi.Message
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
		want := slices.Clone(in.Host.Data())
		for k := range each + 2 {
			copy(want[k*n:][:n-k], commtest.Input[int32](peer, (each+2)*n)[k*n:])
		}
		in.Same(t, want, "in the order in which they were sent")
		out.Free(t)
		x.close(t)
	})
}

// TestExchangeGraph: a graph counts on the device, so it may be replayed, and calls come between.
func TestExchangeGraph(t *testing.T) {
	devtest.OnDevices(t, []int{1, 3}, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		const n, times = 2500, 20 // more messages than parameters hold
		src, dst := devtest.Filled(t, x.Way, commtest.Input[int32](c.Rank(), n)), devtest.Alloc[int32](t, x.Way, times*n)
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		var messages []cudampi.Message
		for k := range times {
			messages = append(messages, sends(src, 0, n, next), receives(dst, k*n, n, prev))
		}
		list := devtest.Must1(d.Malloc(ListBytes(len(messages))))(t)
		commtest.Must(t, x.S.BeginCapture(cuda.Relaxed))
		commtest.Must(t, x.Comm.Exchange(x.S, list, messages))
		g := devtest.Must1(x.S.EndCapture())(t)
		exec := devtest.Must1(g.Instantiate())(t)
		commtest.Must(t, g.Close())
		for round := range 3 {
			if round > 0 {
				copy(src.Host.Data(), commtest.Input[int32](c.Rank()+round, n))
				src.Move(t, true)
			}
			commtest.Must(t, exec.Launch(x.S))
			commtest.Must(t, exec.Launch(x.S))
			a, b := devtest.Filled(t, x.Way, commtest.Input[int32](c.Rank(), 9)), devtest.Alloc[int32](t, x.Way, 9)
			x.do(t, sends(a, 0, 9, prev), receives(b, 0, 9, next))
			b.Same(t, commtest.Input[int32](next, 9), "a call between")
			a.Free(t)
			dst.Move(t, false)
			var want []int32
			for range times {
				want = append(want, commtest.Input[int32](prev+round, n)...)
			}
			dst.Host.Same(t, c, want, "replay %d", round)
		}
		commtest.Must(t, x.S.Synchronize())
		commtest.Must(t, exec.Close())
		commtest.Must(t, d.Free(list))
		src.Free(t)
		dst.Free(t)
		x.close(t)
	})
}

// TestExchangeLengths: a message of another length than its Recv, shorter or longer, also by whole chunks, is found.
func TestExchangeLengths(t *testing.T) {
	devtest.OnDevices(t, []int{2}, map[string]string{"FAKECUDA_DELAY": "100"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		for _, tc := range []struct{ sent, taken int }{{5, 4}, {4, 5}, {0, 1}, {1, 0}, {2 * smallBlock, smallBlock}, {smallBlock, 3 * smallBlock}, {64 << 10, 64<<10 - 1}} {
			x := openExchanger(t, c, d)
			b := devtest.Alloc[int8](t, x.Way, 64<<10)
			commtest.Must(t, x.S.Synchronize())
			commtest.Must(t, x.Failure())
			if c.Rank() == 0 {
				x.do(t, sends(b, 0, tc.sent, 1))
			} else {
				x.do(t, receives(b, 0, tc.taken, 0))
				var err error
				for start := time.Now(); err == nil && time.Since(start) < mpirun.Limit(t); {
					err = x.Failure()
				}
				if want := fmt.Sprintf("a message from rank 0 has %d bytes, and Recv takes %d", tc.sent, tc.taken); err == nil || err.Error() != want {
					t.Fatalf("%v instead of %s", err, want)
				}
				x.complaints()[2] = 0
				atomic.StoreUint32(&x.complaints()[0], 0) // what ends the kernel but for the host
			}
			commtest.Must(t, c.Barrier())
			if c.Rank() == 0 && tc.taken > tc.sent { // the chunks that did not come, so that the kernel ends
				x.do(t, sends(b, 0, tc.taken, 1))
			}
			b.Free(t)
			x.close(t)
		}
	})
}

// TestExchangeRefusals: what no kernel between peers carries is refused with nothing enqueued.
func TestExchangeRefusals(t *testing.T) {
	devtest.OnDevices(t, []int{2}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		x := openExchanger(t, c, d)
		b := devtest.Alloc[int8](t, x.Way, 16)
		for _, m := range []cudampi.Message{sends(b, 0, x.MessageMost()+1, 0), receives(b, 0, -1, 0), sends(b, 0, 1, 2), receives(b, 0, 1, -1)} {
			if err := x.Comm.Exchange(x.S, nil, []cudampi.Message{sends(b, 0, 1, 1-c.Rank()), m}); err == nil {
				t.Errorf("%+v was taken", m)
			}
		}
		commtest.Must(t, x.Comm.Exchange(x.S, nil, nil))
		b.Free(t)
		x.close(t)
	})
}

// TestKernelsOfSeveral: what is opened on one device has its kernels in common, until the last of them is closed.
func TestKernelsOfSeveral(t *testing.T) {
	devtest.OnDevices(t, []int{2}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		first, second := openExchanger(t, c, d), openExchanger(t, c, d)
		if first.k.Module != second.k.Module || first.mem == second.mem {
			t.Errorf("kernels %p and %p, memory %p and %p", first.k, second.k, first.mem, second.mem)
		}
		first.close(t)
		a, b := devtest.Filled(t, second.Way, commtest.Input[int32](c.Rank(), 9)), devtest.Alloc[int32](t, second.Way, 9)
		second.do(t, sends(a, 0, 9, 1-c.Rank()), receives(b, 0, 9, 1-c.Rank()))
		b.Same(t, commtest.Input[int32](1-c.Rank(), 9), "after the others are closed")
		a.Free(t)
		second.close(t)
		if n := devkernel.InUse(d); n != 0 {
			t.Errorf("%d modules are left", n)
		}
	})
}
