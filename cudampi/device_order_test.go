package cudampi

import (
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
)

// TestDeviceOrder has streams run late: what a call reads was enqueued just before it, and what it reads and writes is
// overwritten and read just after it, without the host waiting anywhere.
func TestDeviceOrder(t *testing.T) {
	onDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "300"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		if c.rank == 0 {
			t.Setenv("FAKECUDA_DELAY", "1500") // the others must wait for its copies
		}
		everyWay(t, c, d, func(t *testing.T, w way) {
			for _, held := range []bool{false, true} {
				if held && w.Path() == AwareMPI {
					continue
				}
				for _, n := range []int{3, 2500} {
					deviceOrder(t, w, n, held)
				}
			}
		})
	})
}

func deviceOrder(t *testing.T, w way, n int, held bool) {
	t.Helper()
	c, d := w.c, w.dev
	malloc := func(bytes int) unsafe.Pointer {
		p, err := d.Malloc(bytes)
		commtest.Must(t, err)
		return p
	}
	bytes := 4 * n
	src, dst, got := malloc(bytes*c.size), malloc(bytes*c.size), malloc(4*bytes*c.size)
	const rounds = 3
	pinned, in := must1(d.MallocHost(4*bytes*c.size))(t), must1(d.MallocHost(rounds*bytes*c.size))(t)
	value := func(rank, round, i int) int { return 100*i + 10*round + rank }
	for i, all := 0, unsafe.Slice((*int32)(in), rounds*n*c.size); i < len(all); i++ {
		all[i] = int32(value(c.rank, i/(n*c.size), i%(n*c.size)))
	}
	place := func() Point {
		if !held {
			return At(w.s)
		}
		p, err := w.Hold(w.s)
		commtest.Must(t, err)
		return p
	}
	next, prev := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
	for round := range rounds {
		commtest.Must(t, w.s.Copy(src, unsafe.Add(in, round*bytes*c.size), bytes*c.size))
		calls := []func(p Point) error{
			func(p Point) error { return w.AllReduce(p, dst, src, n, elem.Int32, elem.Sum) },
			func(p Point) error { return w.AllGather(p, dst, src, n, elem.Int32) },
			func(p Point) error {
				return w.SendRecv(p, dst, n, prev, src, n, next, elem.Int32)
			},
			func(p Point) error { return w.ReduceScatter(p, dst, src, n, elem.Int32, elem.Max) },
		}
		done := make(chan error, 1)
		for i, call := range calls {
			p := place()
			// With a held point the stream is given more work before the call is made.
			if held {
				go func() { done <- call(p) }()
			} else {
				commtest.Must(t, call(p))
			}
			commtest.Must(t, w.s.Copy(unsafe.Add(got, i*bytes*c.size), dst, bytes*c.size))
			if held {
				commtest.Must(t, <-done)
			}
		}
		commtest.Must(t, w.s.Fill(src, 4, 77, n*c.size)) // the input may change
		commtest.Must(t, w.s.Copy(pinned, got, 4*bytes*c.size))
		commtest.Must(t, w.s.Synchronize())
		all := unsafe.Slice((*int32)(pinned), 4*n*c.size)
		for i, want := range []func(j int) int{
			func(j int) int { return c.size*value(0, round, j) + c.size*(c.size-1)/2 },
			func(j int) int { return value(j/n, round, j%n) },
			func(j int) int { return value(prev, round, j) },
			func(j int) int { return value(c.size-1, round, c.rank*n+j) },
		} {
			m := n
			if i == 1 {
				m *= c.size
			}
			for j := range m {
				if g := int(all[i*n*c.size+j]); g != want(j) {
					t.Fatalf("%s, rank %d, held %v, round %d, call %d of %d: [%d] is %d, want %d", w.name, c.rank, held, round, i, n, j, g, want(j))
				}
			}
		}
	}
	for _, p := range []unsafe.Pointer{src, dst, got} {
		commtest.Must(t, d.Free(p))
	}
	commtest.Must(t, errors.Join(d.FreeHost(pinned), d.FreeHost(in)))
}

// TestDeviceStreams: calls on streams that run beside each other do not meet in the memory that all calls use.
func TestDeviceStreams(t *testing.T) {
	onDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "300"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		everyWay(t, c, d, func(t *testing.T, w way) {
			other := w
			other.s = must1(d.NewStream(0))(t)
			const n = 900
			values := func(i, rank, ranks int) []int32 {
				v := make([]int32, n)
				for j := range v {
					v[j] = int32(ranks*(1000*i+j) + rank)
				}
				return v
			}
			var results []*onDevice[int32]
			for i := range 8 {
				w := [...]way{w, other}[i%2]
				x := deviceFilled(t, w, values(i, c.rank, 1))
				results = append(results, x)
			}
			for i, x := range results {
				commtest.Must(t, w.AllReduce(At([...]*cuda.Stream{w.s, other.s}[i%2]), x.at(0), x.at(0), n, elem.Int32, elem.Sum))
			}
			for i, x := range results {
				x.Same(t, values(i, c.size*(c.size-1)/2, c.size), "AllReduce on two streams")
			}
			commtest.Must(t, other.s.Close())
		})
	})
}

// TestDeviceRelease: a held stream goes on without a call, and after calls that were refused. None is held for an MPI that
// takes device memory.
func TestDeviceRelease(t *testing.T) {
	onDevices(t, []int{1, 2}, map[string]string{"FAKECUDA_DELAY": "0"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		everyWay(t, c, d, func(t *testing.T, w way) {
			if w.Path() == AwareMPI {
				if _, err := w.Hold(w.s); !errors.Is(err, ErrOther) {
					t.Fatalf("a stream is held: %v", err)
				}
				commtest.Must(t, w.s.Synchronize())
				return
			}
			for _, call := range []func(p Point) error{
				func(p Point) error { commtest.Must(t, w.Release(p)); return errors.New("none") },
				func(p Point) error { return w.AllReduce(p, nil, nil, 3, elem.Int8, elem.Sum) },
				func(p Point) error { return w.Exchange(p, Message{Peer: c.size}) },
				func(p Point) error {
					commtest.Must(t, w.AllReduce(p, nil, nil, 0, elem.Int8, elem.Sum))
					return errors.New("none")
				},
			} {
				p, err := w.Hold(w.s)
				commtest.Must(t, err)
				if done, err := w.s.Query(); done || err != nil {
					t.Fatalf("a held stream is done: %v, %v", done, err)
				}
				if call(p) == nil {
					t.Fatal("no error")
				}
				commtest.Must(t, w.s.Synchronize())
			}
		})
	})
}

// TestWaitEventLetsMessagesThrough has rank 0 wait for a stream that rank 1 sets free, after it has taken more messages
// of rank 0 than MPI can have delivered when it said that they may be forgotten.
func TestWaitEventLetsMessagesThrough(t *testing.T) {
	onDevices(t, []int{2}, map[string]string{"FAKECUDA_DELAY": "0"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		var mem []byte
		commtest.Must(t, c.shareFile(4096, &mem))
		word := unsafe.Pointer(&mem[0])
		commtest.Must(t, d.RegisterHost(word, 4096))
		const n, messages = 100, 20_000
		x := commtest.Filled[float64](c.rank, n)
		for range messages {
			if c.rank == 0 {
				commtest.Must(t, c.Send(x.Ptr(), n, elem.Float64, 1))
			} else {
				commtest.Must(t, c.Recv(x.Ptr(), n, elem.Float64, 0))
			}
		}
		if c.rank == 1 {
			(*atomic.Uint32)(word).Store(1)
		} else {
			s, e := must1(d.NewStream(0))(t), must1(d.NewEvent(false))(t)
			commtest.Must(t, s.WaitValue(word, 1))
			commtest.Must(t, e.Record(s))
			commtest.Must(t, c.WaitEvent(e))
			commtest.Must(t, c.WaitStream(s))
			commtest.Must(t, errors.Join(e.Close(), s.Close()))
		}
		commtest.Must(t, d.UnregisterHost(word))
	})
}
