package shm

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
)

// TestRingOrder sends messages of all lengths, which go through the ring and beside it, so many
// that the ring ends and is full many times: in groups of any order, by SendRecv, and singly.
func TestRingOrder(t *testing.T) {
	const messages, most = 3000, 3 << 10 // of float32: beyond what fits a ring of 2 and 3 ranks
	onRanks(t, []int{2, 3}, func(t *testing.T, c *NodeComm) {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		length := func(i int) int { // mostly short
			r := rand.New(rand.NewPCG(7, uint64(i)))
			return r.IntN(1 + most>>r.IntN(12))
		}
		value := func(rank, i, k int) float32 { return float32(rank + 3*i + 5*k) }
		fill := func(i int) commtest.Memory[float32] {
			m := commtest.Alloc[float32](length(i))
			for k := range m.Data() {
				m.Data()[k] = value(c.Rank(), i, k)
			}
			return m
		}
		check := func(i int, m commtest.Memory[float32]) {
			for k, v := range m.Data() {
				if v != value(prev, i, k) {
					t.Fatalf("message %d of %d: [%d] is %v, want %v", i, length(i), k, v, value(prev, i, k))
				}
			}
		}
		const f = elem.Float32
		portion, order := rand.New(rand.NewPCG(9, 0)), rand.New(rand.NewPCG(9, uint64(c.Rank())))
		for first := 0; first < messages; {
			var g P2P
			var in []commtest.Memory[float32]
			n := 1 + portion.IntN(80)
			for out := 0; out+len(in) < 2*n; { // as many out as in, in any order
				if len(in) == n || out < n && order.IntN(2) == 0 {
					m := fill(first + out)
					commtest.Must(t, g.Send(c, m.Ptr(), length(first+out), f, next))
					out++
					continue
				}
				m := commtest.Alloc[float32](length(first + len(in)))
				commtest.Must(t, g.Recv(c, m.Ptr(), length(first+len(in)), f, prev))
				in = append(in, m)
			}
			commtest.Must(t, g.Wait())
			for i, m := range in {
				check(first+i, m)
			}
			first += n
		}
		for i := range 300 {
			out, in := fill(i), commtest.Alloc[float32](length(i))
			commtest.Must(t, c.SendRecv(in.Ptr(), length(i), prev, out.Ptr(), length(i), next, f))
			check(i, in)
		}
		for i := range 2 * messages { // there and back, one by one
			if c.Rank() > 1 {
				break
			}
			out, in := fill(i), commtest.Alloc[float32](length(i))
			prev = 1 - c.Rank()
			if c.Rank() == i%2 {
				commtest.Must(t, c.Send(out.Ptr(), length(i), f, prev))
				continue
			}
			commtest.Must(t, c.Recv(in.Ptr(), length(i), f, prev))
			check(i, in)
		}
	})
}

// TestRingHoldsNothingUp has a group whose short messages wait for room that there is only
// when its long one has arrived.
func TestRingHoldsNothingUp(t *testing.T) {
	const short, long, f = 5000, 1 << 20, elem.Float32 // 5000 do not fit a ring
	onRanks(t, []int{3}, func(t *testing.T, c *NodeComm) {
		x, one := commtest.Filled[float32](0, long), commtest.Filled[float32](0, 1)
		switch c.Rank() {
		case 0:
			for range short {
				commtest.Must(t, c.Send(one.Ptr(), 1, f, 1))
			}
			for range short {
				commtest.Must(t, c.Recv(one.Ptr(), 1, f, 2))
			}
		case 1:
			commtest.Must(t, c.Recv(x.Ptr(), long, f, 2))
			for range short {
				commtest.Must(t, c.Recv(one.Ptr(), 1, f, 0))
			}
		case 2:
			var g P2P
			for range short {
				commtest.Must(t, g.Send(c, one.Ptr(), 1, f, 0))
			}
			commtest.Must(t, g.Send(c, x.Ptr(), long, f, 1))
			commtest.Must(t, g.Wait())
		}
		x.Same(t, c, commtest.Input[float32](0, long), "the long message")
		one.Same(t, c, commtest.Input[float32](0, 1), "the short ones")
	})
}

// ends returns what two ranks have of a memory that they share, in one process.
func ends(t *testing.T) (mem []byte, out, in *ringEnd) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, 2*sysSharedBytes(2), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	commtest.Must(t, err)
	from, to := sysOpenShared(nil, 0, 0, 2, true, mem), sysOpenShared(nil, 0, 1, 2, true, mem)
	t.Cleanup(func() {
		sysCloseShared(from)
		sysCloseShared(to)
		commtest.Must(t, unix.Munmap(mem))
	})
	return mem, &from.out[1], &to.in[0]
}

// TestRingInGoAndInC runs the two halves of the protocol one against the other: whichever sends and
// whichever receives, the messages arrive, and the memory that the ranks share is the same, byte by
// byte, after each step. The reference is the messages themselves.
func TestRingInGoAndInC(t *testing.T) {
	const u8 = elem.Uint8
	sendC := func(x *ringEnd, p []byte) { check(t, sysRingSend(x, commtest.Ptr(p), len(p), u8, 1)) }
	recvC := func(x *ringEnd, p []byte) {
		code, got := sysRingRecv(x, commtest.Ptr(p), len(p), u8, 0)
		if check(t, code); got != cudampi.Content(len(p), u8) {
			t.Fatalf("received %d, want %d bytes", got, len(p))
		}
	}
	skipped := 0
	sendGo := func(x *ringEnd, p []byte) {
		// at the end of the ring, or where it has not looked how far the receiver is
		if !put(x, commtest.Ptr(p), len(p), u8) {
			skipped++
			sendC(x, p)
		}
	}
	recvGo := func(x *ringEnd, p []byte) {
		if !take(x, commtest.Ptr(p), len(p), u8) {
			skipped++
			recvC(x, p)
		}
	}
	type half struct {
		mem     []byte
		out, in *ringEnd
		send    func(*ringEnd, []byte)
		recv    func(*ringEnd, []byte)
	}
	var halves []half
	for _, send := range []func(*ringEnd, []byte){sendC, sendGo} {
		for _, recv := range []func(*ringEnd, []byte){recvC, recvGo} {
			mem, out, in := ends(t)
			halves = append(halves, half{mem, out, in, send, recv})
		}
	}
	most := int(halves[0].out.most)
	r := rand.New(rand.NewPCG(3, 5))
	var queue [][]byte
	const steps = 20_000
	for step := range steps {
		if n := len(queue); n < 6 && r.IntN(2) == 0 || n == 0 { // eight of the longest fit
			p := make([]byte, r.IntN(1+most>>r.IntN(12)))
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			queue = append(queue, p)
			for _, h := range halves {
				h.send(h.out, p)
			}
		} else {
			want := queue[0]
			queue = queue[1:]
			for i, h := range halves {
				got := make([]byte, len(want))
				if h.recv(h.in, got); !bytes.Equal(got, want) {
					t.Fatalf("step %d, halves %d: another message of %d bytes", step, i, len(want))
				}
			}
		}
		if step%100 != 0 { // the memory is large
			continue
		}
		for i, h := range halves[1:] {
			if !bytes.Equal(h.mem, halves[0].mem) {
				t.Fatalf("step %d: the memory of halves %d is not that of C", step, i+1)
			}
		}
	}
	if most := steps; skipped > most {
		t.Errorf("Go left %d of %d messages to C", skipped, 2*steps)
	}
}

func check(t *testing.T, code int) {
	t.Helper()
	if code != success {
		t.Fatalf("code %d", code)
	}
}

// TestPauseLetsMessagesThrough has rank 0 wait for a word. Rank 1 writes it after it has taken more
// messages of rank 0 than MPI can have delivered when it said that they may be forgotten.
func TestPauseLetsMessagesThrough(t *testing.T) {
	commtest.OnRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		mem, err := Map(c, 4096)
		commtest.Must(t, err)
		word := (*atomic.Uint32)(unsafe.Pointer(&mem[0]))
		const n, messages = 100, 20_000
		x := commtest.Filled[float64](c.Rank(), n)
		for range messages {
			if c.Rank() == 0 {
				commtest.Must(t, c.Send(x.Ptr(), n, elem.Float64, 1))
			} else {
				commtest.Must(t, c.Recv(x.Ptr(), n, elem.Float64, 0))
			}
		}
		if c.Rank() == 1 {
			word.Store(1)
		}
		for looks := 0; word.Load() == 0; looks++ {
			commtest.Must(t, c.Pause(looks))
		}
	})
}
