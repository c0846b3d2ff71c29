package devtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/campaign"
	"lockstep/internal/ccall"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/internal/transfer"
)

// Collectives runs all calls with lengths around those of steps.
func Collectives(t *testing.T, ways ...Opener) {
	CountsLeft(t)
	campaign.More(t, len(Counts)*len(ways)*7, "types by ways and numbers of ranks whose devices reduce")
	OnDevices(t, Counts, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		Small(t)
		turn := c.Size()
		EveryWay(t, c, d, ways, func(t *testing.T, w Way) {
			for _, n := range []int{0, 1, 7} {
				Moves[int8](t, w, n)
				Messages[int64](t, w, n)
				Reductions[float32](t, w, n, AllOps...)
			}
			chunk := transfer.Sizes.Chunk / 4 // elements, also where parts get less
			for _, n := range []int{chunk / c.Size(), chunk - 1, chunk, chunk + 1, 3*chunk + 5} {
				Moves[float32](t, w, n)
				Messages[float32](t, w, n)
				Reductions[float32](t, w, n, elem.Sum)
			}
			const n = 300
			for k, reductions := range []func(t *testing.T, w Way, n int, ops ...elem.Op){
				Reductions[int8], Reductions[uint8], Reductions[int32], Reductions[uint32], Reductions[int64], Reductions[uint64],
				Reductions[elem.F16], Reductions[elem.BF16], Reductions[float64], Reductions[complex64], Reductions[complex128],
			} {
				if campaign.All() || (k+turn)%3 == 0 { // by turns of the ways
					reductions(t, w, n, AllOps...)
				}
			}
			turn++
		})
	})
}

// Mismatch: ranks that bring different things learn it, all of them, and the cudampi.DeviceComm works on.
func Mismatch(t *testing.T, ways ...Opener) {
	OnDevices(t, []int{3}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		Small(t)
		EveryWay(t, c, d, ways, func(t *testing.T, w Way) {
			if w.Path() == cudampi.Peer {
				return // as with NCCL, there is nobody who could compare
			}
			src, dst := Alloc[float32](t, w, 6000), Alloc[float32](t, w, 6000)
			odd := c.Rank() / 2 // 1 on the last rank
			send := []int{700, 700, 700}
			recv := []int{700, 700, 700}
			if c.Rank() == 1 {
				recv[2]++
			}
			for i, call := range []func() error{
				func() error {
					return w.AllReduce(cudampi.At(w.S), dst.At(0), src.At(0), 1000+odd, elem.Float32, elem.Sum)
				},
				func() error {
					return w.AllReduce(cudampi.At(w.S), dst.At(0), src.At(0), 1000, elem.Float32, elem.Op(odd))
				},
				func() error {
					return w.AllReduce(cudampi.At(w.S), dst.At(0), src.At(0), 3, elem.Float32-elem.Type(5*odd), elem.Sum)
				},
				func() error { // as far apart as what is staged and what is not
					return w.AllReduce(cudampi.At(w.S), dst.At(0), src.At(0), 3+3000*odd, elem.Float32, elem.Sum)
				},
				func() error { return w.Broadcast(cudampi.At(w.S), dst.At(0), 500, elem.Float32, odd) },
				func() error {
					return w.AllGatherV(cudampi.At(w.S), dst.At(0), src.At(0), []int{600 + odd, 601 - odd, 9}, elem.Float32)
				},
			} {
				err := call()
				var e *ccall.Error
				if !errors.As(err, &e) || e.Err != cudampi.ErrCount || !strings.Contains(err.Error(), "brought") {
					t.Fatalf("%s, rank %d, call %d: %v", w.Name, c.Rank(), i, err)
				}
			}
			err := w.AllToAllV(cudampi.At(w.S), dst.At(0), recv, src.At(0), send, elem.Float32)
			if !errors.Is(err, cudampi.ErrCount) || !strings.Contains(err.Error(), "rank 2 sends 700 float32 elements to rank 1, which expects 701") {
				t.Fatalf("%s, rank %d: AllToAllV: %v", w.Name, c.Rank(), err)
			}
			src.Free(t)
			dst.Free(t)
			Reductions[int32](t, w, 1000, elem.Sum)

			// A message of another length is told by its receiver.
			a := Alloc[int32](t, w, 2000)
			for _, m := range []struct {
				sent, want int
				err        error
			}{{1000, 1, cudampi.ErrTruncate}, {1000, 1999, cudampi.ErrCount}, {8, 5, cudampi.ErrTruncate}, {8, 12, cudampi.ErrCount}, {8, 1000, cudampi.ErrCount}} {
				switch c.Rank() {
				case 0:
					commtest.Must(t, w.Send(cudampi.At(w.S), a.At(0), m.sent, elem.Int32, 1))
				case 1:
					err := w.Recv(cudampi.At(w.S), a.At(0), m.want, elem.Int32, 0)
					if !errors.Is(err, m.err) || !strings.Contains(err.Error(), fmt.Sprint(m.want)) {
						t.Fatalf("%s: Recv of %d: %v", w.Name, m.want, err)
					}
				}
			}
			a.Free(t)
			Messages[float32](t, w, 300)
		})
	})
}

// Graph: an all-reduce between the devices is captured once and replayed; what goes through the host is refused.
func Graph(t *testing.T, ways ...Opener) {
	OnDevices(t, []int{2, 3}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		Small(t)
		EveryWay(t, c, d, ways, func(t *testing.T, w Way) {
			x := Alloc[int32](t, w, 600)
			y := x.At(500)
			commtest.Must(t, w.S.BeginCapture(cuda.ThreadLocal))
			big := w.AllReduce(cudampi.At(w.S), x.At(0), x.At(0), 500, elem.Int32, elem.Sum)
			if w.Path() != cudampi.Peer {
				if big == nil || !strings.Contains(big.Error(), "is being captured") {
					t.Fatalf("%s: captured: %v", w.Name, big)
				}
				commtest.Must(t, w.S.Abandon())
				x.Free(t)
				return
			}
			commtest.Must(t, big)
			commtest.Must(t, w.AllReduce(cudampi.At(w.S), y, y, 5, elem.Int32, elem.Sum)) // in one step
			if err := w.Broadcast(cudampi.At(w.S), x.At(0), 500, elem.Int32, 0); err == nil {
				t.Fatal("a Broadcast was captured")
			}
			g := Must1(w.S.EndCapture())(t)
			exec := Must1(g.Instantiate())(t)
			commtest.Must(t, w.S.Fill(x.At(0), 4, 1, 600))
			want := 1
			for range 5 {
				commtest.Must(t, exec.Launch(w.S))
				commtest.Must(t, w.AllReduce(cudampi.At(w.S), y, y, 1, elem.Int32, elem.Max)) // beside the graph
				want *= c.Size()
			}
			commtest.Must(t, w.S.Synchronize())
			all := make([]int32, 600)
			for i := range all {
				if all[i] = int32(want); i >= 505 {
					all[i] = 1
				}
			}
			x.Same(t, all, "graph")
			commtest.Must(t, errors.Join(exec.Close(), g.Close()))
		})
	})
}

// Order has streams run late: what a call reads was enqueued just before it, and what it reads and writes is
// overwritten and read just after it, without the host waiting anywhere.
func Order(t *testing.T, ways ...Opener) {
	campaign.More(t, 2*len(ways), "lengths of calls in the order of streams, by ways")
	OnDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "300"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		Small(t)
		if c.Rank() == 0 {
			t.Setenv("FAKECUDA_DELAY", "1500") // the others must wait for its copies
		}
		EveryWay(t, c, d, ways, func(t *testing.T, w Way) {
			for _, held := range []bool{false, true} {
				if held && w.Path() == cudampi.AwareMPI {
					continue
				}
				for _, n := range []int{3, 2500} {
					if campaign.All() || held == (n > 3) {
						order(t, w, n, held)
					}
				}
			}
		})
	})
}

func order(t *testing.T, w Way, n int, held bool) {
	t.Helper()
	c, d := w.C, w.Dev
	malloc := func(bytes int) unsafe.Pointer {
		p, err := d.Malloc(bytes)
		commtest.Must(t, err)
		return p
	}
	bytes := 4 * n
	src, dst, got := malloc(bytes*c.Size()), malloc(bytes*c.Size()), malloc(4*bytes*c.Size())
	const rounds = 3
	pinned, in := Must1(d.MallocHost(4*bytes*c.Size()))(t), Must1(d.MallocHost(rounds*bytes*c.Size()))(t)
	value := func(rank, round, i int) int { return 100*i + 10*round + rank }
	for i, all := 0, unsafe.Slice((*int32)(in), rounds*n*c.Size()); i < len(all); i++ {
		all[i] = int32(value(c.Rank(), i/(n*c.Size()), i%(n*c.Size())))
	}
	place := func() cudampi.Point {
		if !held {
			return cudampi.At(w.S)
		}
		p, err := w.Hold(w.S)
		commtest.Must(t, err)
		return p
	}
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	for round := range rounds {
		commtest.Must(t, w.S.Copy(src, unsafe.Add(in, round*bytes*c.Size()), bytes*c.Size()))
		calls := []func(p cudampi.Point) error{
			func(p cudampi.Point) error { return w.AllReduce(p, dst, src, n, elem.Int32, elem.Sum) },
			func(p cudampi.Point) error { return w.AllGather(p, dst, src, n, elem.Int32) },
			func(p cudampi.Point) error {
				return w.SendRecv(p, dst, n, prev, src, n, next, elem.Int32)
			},
			func(p cudampi.Point) error { return w.ReduceScatter(p, dst, src, n, elem.Int32, elem.Max) },
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
			commtest.Must(t, w.S.Copy(unsafe.Add(got, i*bytes*c.Size()), dst, bytes*c.Size()))
			if held {
				commtest.Must(t, <-done)
			}
		}
		commtest.Must(t, w.S.Fill(src, 4, 77, n*c.Size())) // the input may change
		commtest.Must(t, w.S.Copy(pinned, got, 4*bytes*c.Size()))
		commtest.Must(t, w.S.Synchronize())
		all := unsafe.Slice((*int32)(pinned), 4*n*c.Size())
		for i, want := range []func(j int) int{
			func(j int) int { return c.Size()*value(0, round, j) + c.Size()*(c.Size()-1)/2 },
			func(j int) int { return value(j/n, round, j%n) },
			func(j int) int { return value(prev, round, j) },
			func(j int) int { return value(c.Size()-1, round, c.Rank()*n+j) },
		} {
			m := n
			if i == 1 {
				m *= c.Size()
			}
			for j := range m {
				if g := int(all[i*n*c.Size()+j]); g != want(j) {
					t.Fatalf("%s, rank %d, held %v, round %d, call %d of %d: [%d] is %d, want %d", w.Name, c.Rank(), held, round, i, n, j, g, want(j))
				}
			}
		}
	}
	for _, p := range []unsafe.Pointer{src, dst, got} {
		commtest.Must(t, d.Free(p))
	}
	commtest.Must(t, errors.Join(d.FreeHost(pinned), d.FreeHost(in)))
}

// Streams: calls on streams that run beside each other do not meet in the memory that all calls use.
func Streams(t *testing.T, ways ...Opener) {
	OnDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "300"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		Small(t)
		EveryWay(t, c, d, ways, func(t *testing.T, w Way) {
			other := w
			other.S = Must1(d.NewStream(0))(t)
			const n = 900
			values := func(i, rank, ranks int) []int32 {
				v := make([]int32, n)
				for j := range v {
					v[j] = int32(ranks*(1000*i+j) + rank)
				}
				return v
			}
			var results []*Buffer[int32]
			for i := range 8 {
				w := [...]Way{w, other}[i%2]
				x := Filled(t, w, values(i, c.Rank(), 1))
				results = append(results, x)
			}
			for i, x := range results {
				commtest.Must(t, w.AllReduce(cudampi.At([...]*cuda.Stream{w.S, other.S}[i%2]), x.At(0), x.At(0), n, elem.Int32, elem.Sum))
			}
			for i, x := range results {
				x.Same(t, values(i, c.Size()*(c.Size()-1)/2, c.Size()), "AllReduce on two streams")
			}
			commtest.Must(t, other.S.Close())
		})
	})
}

// Release: a held stream goes on without a call, and after calls that were refused. None is held for an MPI that
// takes device memory.
func Release(t *testing.T, ways ...Opener) {
	OnDevices(t, []int{1, 2}, map[string]string{"FAKECUDA_DELAY": "0"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		EveryWay(t, c, d, ways, func(t *testing.T, w Way) {
			if w.Path() == cudampi.AwareMPI {
				if _, err := w.Hold(w.S); !errors.Is(err, cudampi.ErrOther) {
					t.Fatalf("a stream is held: %v", err)
				}
				commtest.Must(t, w.S.Synchronize())
				return
			}
			for _, call := range []func(p cudampi.Point) error{
				func(p cudampi.Point) error { commtest.Must(t, w.Release(p)); return errors.New("none") },
				func(p cudampi.Point) error { return w.AllReduce(p, nil, nil, 3, elem.Int8, elem.Sum) },
				func(p cudampi.Point) error { return w.Exchange(p, cudampi.Message{Peer: c.Size()}) },
				func(p cudampi.Point) error {
					commtest.Must(t, w.AllReduce(p, nil, nil, 0, elem.Int8, elem.Sum))
					return errors.New("none")
				},
			} {
				p, err := w.Hold(w.S)
				commtest.Must(t, err)
				if done, err := w.S.Query(); done || err != nil {
					t.Fatalf("a held stream is done: %v, %v", done, err)
				}
				if call(p) == nil {
					t.Fatal("no error")
				}
				commtest.Must(t, w.S.Synchronize())
			}
		})
	})
}
