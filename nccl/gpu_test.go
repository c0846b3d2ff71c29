package nccl

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// The tests here run on the real NCCL, with one goroutine for each GPU of this machine.

const (
	largest = 1<<20 + 1 // elements
	guard   = 256       // bytes behind every result that nothing may touch
	unset   = 0xEE
	period  = 1021 // inputs repeat after so many elements, a prime, so that a block in the wrong place shows
)

var gpuSizes = []int{0, 1, 1023, largest}

// rig is one rank: its GPU, a stream, and room for the largest case on the GPU and the host.
type rig struct {
	*Comm
	d        *cuda.Device
	s        *cuda.Stream
	src, dst unsafe.Pointer
	pinned   unsafe.Pointer
	host     []byte
}

// gpus opens the GPUs, or skips the test with the reason.
func gpus(t *testing.T) []*rig {
	t.Helper()
	if err := cuda.Load(); err != nil {
		t.Skip(err)
	}
	n, err := cuda.Count()
	if err != nil {
		t.Skip(err)
	}
	if n < 2 {
		t.Skipf("%d GPU, the test needs 2", n)
	}
	if err := Load(); err != nil {
		t.Skip(err)
	}
	rigs := make([]*rig, n)
	room := n*largest*8 + guard
	for i := range rigs {
		r := &rig{}
		rigs[i] = r
		r.d, err = cuda.Open(i)
		check(t, err)
		t.Cleanup(func() { check(t, r.d.Close()) })
		r.s, err = r.d.NewStream(0)
		check(t, err)
		t.Cleanup(func() { check(t, r.s.Close()) })
		for _, p := range []*unsafe.Pointer{&r.src, &r.dst} {
			*p, err = r.d.Malloc(room)
			check(t, err)
			t.Cleanup(func() { check(t, r.d.Free(*p)) })
		}
		r.pinned, err = r.d.MallocHost(room)
		check(t, err)
		t.Cleanup(func() { check(t, r.d.FreeHost(r.pinned)) })
		r.host = unsafe.Slice((*byte)(r.pinned), room)
		// The driver loads now what it loads at a first use, and not while a collective waits for
		// this rank.
		check(t, r.s.Fill(r.dst, 1, unset, 64))
		check(t, r.s.Copy(r.pinned, r.dst, 64))
		check(t, r.s.Synchronize())
	}
	return rigs
}

// each runs f for every rank at once. When a rank fails the communicators are aborted, so that the
// others end as well.
func each(t *testing.T, rigs []*rig, f func(rank int, r *rig) error) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(rigs))
	var once sync.Once
	for i, r := range rigs {
		wg.Go(func() {
			if errs[i] = f(i, r); errs[i] == nil {
				return
			}
			once.Do(func() {
				for _, r := range rigs {
					if r.Comm != nil {
						_ = r.Abort() // the first failure is the one to report
					}
				}
			})
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the ranks do not come to an end")
	}
	for i, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// join gives every rank a communicator of all of them; leave closes it.
func join(t *testing.T, rigs []*rig, cfg Config) (leave func()) {
	t.Helper()
	id, err := NewID()
	check(t, err)
	each(t, rigs, func(rank int, r *rig) (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r.Comm, err = Init(ctx, r.d, id, rank, len(rigs), cfg)
		return err
	})
	return func() {
		t.Helper()
		each(t, rigs, func(_ int, r *rig) error { return r.Close() })
		for _, r := range rigs {
			r.Comm = nil
		}
	}
}

func TestGPU(t *testing.T) {
	rigs := gpus(t)
	n := len(rigs)
	t.Logf("NCCL %s on %d x %s", VersionString(), n, rigs[0].d.Name())
	leave := join(t, rigs, Config{})
	all := func(t *testing.T, f func(rank int, r *rig, ty elem.Type, n int, buf []byte) error) {
		t.Helper()
		each(t, rigs, func(rank int, r *rig) error {
			buf := make([]byte, n*largest*8)
			for ty := elem.Type(0); ty <= elem.Float64; ty++ {
				for _, size := range gpuSizes {
					if err := f(rank, r, ty, size, buf); err != nil {
						return fmt.Errorf("%d %v: %w", size, ty, err)
					}
				}
			}
			return nil
		})
	}
	reductions := func(t *testing.T, f func(rank int, r *rig, ty elem.Type, op elem.Op, n int, buf []byte) error) {
		t.Helper()
		all(t, func(rank int, r *rig, ty elem.Type, size int, buf []byte) error {
			for op := elem.Op(0); op < elem.Ops; op++ {
				if err := f(rank, r, ty, op, size, buf); err != nil {
					return fmt.Errorf("%v: %w", op, err)
				}
			}
			return nil
		})
	}
	input := func(ty elem.Type, op elem.Op, rank int) func(i int) float64 {
		return func(i int) float64 { return value(ty, op, rank, i) }
	}
	sum := func(ty elem.Type, op elem.Op) func(i int) float64 {
		return func(i int) float64 { return reduced(ty, op, n, i) }
	}

	t.Run("AllReduce", func(t *testing.T) {
		reductions(t, func(rank int, r *rig, ty elem.Type, op elem.Op, size int, buf []byte) error {
			want := buf[:size*ty.Size()]
			series(ty, want, 0, size, sum(ty, op))
			if err := r.load(ty, size, input(ty, op, rank)); err != nil {
				return err
			}
			tolerance := averageError(ty, op, n)
			err := r.result(ty, size, tolerance, want,
				func(dst unsafe.Pointer) error { return r.AllReduce(r.s, dst, r.src, size, ty, op) })
			if err != nil {
				return err
			}
			err = r.compare(r.src, ty, size, tolerance, want,
				func(dst unsafe.Pointer) error { return r.AllReduce(r.s, dst, dst, size, ty, op) })
			if err != nil {
				return fmt.Errorf("in place: %w", err)
			}
			return nil
		})
	})
	t.Run("Reduce", func(t *testing.T) {
		reductions(t, func(rank int, r *rig, ty elem.Type, op elem.Op, size int, buf []byte) error {
			root := (int(ty) + int(op)) % n
			want := buf[:size*ty.Size()]
			if rank == root {
				series(ty, want, 0, size, sum(ty, op))
			} else {
				fill(want)
			}
			if err := r.load(ty, size, input(ty, op, rank)); err != nil {
				return err
			}
			return r.result(ty, size, averageError(ty, op, n), want, func(dst unsafe.Pointer) error {
				return r.Reduce(r.s, dst, r.src, size, ty, op, root)
			})
		})
	})
	t.Run("ReduceScatter", func(t *testing.T) {
		reductions(t, func(rank int, r *rig, ty elem.Type, op elem.Op, size int, buf []byte) error {
			want := buf[:size*ty.Size()]
			series(ty, want, rank*size, size, sum(ty, op))
			if err := r.load(ty, n*size, input(ty, op, rank)); err != nil {
				return err
			}
			return r.result(ty, size, averageError(ty, op, n), want, func(dst unsafe.Pointer) error {
				return r.ReduceScatter(r.s, dst, r.src, size, ty, op)
			})
		})
	})
	t.Run("Broadcast", func(t *testing.T) {
		all(t, func(rank int, r *rig, ty elem.Type, size int, buf []byte) error {
			for root := range n {
				want := buf[:size*ty.Size()]
				series(ty, want, 0, size, input(ty, elem.Sum, root))
				if err := r.load(ty, size, input(ty, elem.Sum, rank)); err != nil {
					return err
				}
				if err := r.result(ty, size, 0, want, func(dst unsafe.Pointer) error {
					return r.Broadcast(r.s, dst, r.src, size, ty, root)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	})
	t.Run("AllGather", func(t *testing.T) {
		all(t, func(rank int, r *rig, ty elem.Type, size int, buf []byte) error {
			want := buf[:n*size*ty.Size()]
			for q := range n {
				series(ty, want[q*size*ty.Size():], 0, size, input(ty, elem.Sum, q))
			}
			if err := r.load(ty, size, input(ty, elem.Sum, rank)); err != nil {
				return err
			}
			return r.result(ty, n*size, 0, want,
				func(dst unsafe.Pointer) error { return r.AllGather(r.s, dst, r.src, size, ty) })
		})
	})
	t.Run("AllToAll", func(t *testing.T) {
		all(t, func(rank int, r *rig, ty elem.Type, size int, buf []byte) error {
			want := buf[:n*size*ty.Size()]
			for q := range n {
				series(ty, want[q*size*ty.Size():], rank*size, size, input(ty, elem.Sum, q))
			}
			if err := r.load(ty, n*size, input(ty, elem.Sum, rank)); err != nil {
				return err
			}
			return r.result(ty, n*size, 0, want,
				func(dst unsafe.Pointer) error { return r.AllToAll(r.s, dst, r.src, size, ty) })
		})
	})
	t.Run("GatherScatter", func(t *testing.T) {
		all(t, func(rank int, r *rig, ty elem.Type, size int, buf []byte) error {
			for root := range n {
				want := buf[:n*size*ty.Size()]
				fill(want)
				for q := range n {
					if rank == root {
						series(ty, want[q*size*ty.Size():], 0, size, input(ty, elem.Sum, q))
					}
				}
				if err := r.load(ty, n*size, input(ty, elem.Sum, rank)); err != nil {
					return err
				}
				if err := r.result(ty, n*size, 0, want, func(dst unsafe.Pointer) error {
					return r.Gather(r.s, dst, r.src, size, ty, root)
				}); err != nil {
					return fmt.Errorf("gather: %w", err)
				}
				want = buf[:size*ty.Size()]
				series(ty, want, rank*size, size, input(ty, elem.Sum, root))
				if err := r.result(ty, size, 0, want, func(dst unsafe.Pointer) error {
					return r.Scatter(r.s, dst, r.src, size, ty, root)
				}); err != nil {
					return fmt.Errorf("scatter: %w", err)
				}
			}
			return nil
		})
	})
	t.Run("SendRecv", func(t *testing.T) { // a ring, in a group, with a reduction beside it
		all(t, func(rank int, r *rig, ty elem.Type, size int, buf []byte) error {
			to, from := (rank+1)%n, (rank+n-1)%n
			want := buf[:2*size*ty.Size()]
			series(ty, want, 0, size, input(ty, elem.Sum, from))
			series(ty, want[size*ty.Size():], 0, size, sum(ty, elem.Max))
			if err := r.load(ty, size, input(ty, elem.Sum, rank)); err != nil {
				return err
			}
			if err := r.result(ty, 2*size, 0, want, func(dst unsafe.Pointer) error {
				return r.Group(r.s, []GroupCall{
					{Kind: Send, Type: ty, Peer: int32(to), Src: r.src, N: size},
					{Kind: Recv, Type: ty, Peer: int32(from), Dst: dst, N: size},
					{Kind: AllReduce, Type: ty, Op: elem.Max, Dst: unsafe.Add(dst, size*ty.Size()),
						Src: r.src, N: size},
				})
			}); err != nil {
				return err
			}
			if rank > 1 { // without a group, between two
				return nil
			}
			want = want[:size*ty.Size()]
			fill(want)
			if rank == 1 {
				series(ty, want, 0, size, input(ty, elem.Sum, 0))
			}
			return r.result(ty, size, 0, want, func(dst unsafe.Pointer) error {
				if rank == 0 {
					return r.Send(r.s, r.src, size, ty, 1)
				}
				return r.Recv(r.s, dst, size, ty, 0)
			})
		})
	})
	t.Run("InPlace", func(t *testing.T) {
		const ty = elem.Float32
		each(t, rigs, func(rank int, r *rig) error {
			buf := make([]byte, n*largest*4)
			for _, size := range gpuSizes {
				block := func(p unsafe.Pointer, q int) unsafe.Pointer { return unsafe.Add(p, q*size*4) }
				root := n - 1
				for _, x := range []struct {
					kind Function
					n    int               // elements of the result
					at   unsafe.Pointer    // where it lies
					fill func(want []byte) // what it is
					// in memory that starts with this rank's input
					run func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error
				}{
					{Broadcast, size, r.src, func(want []byte) { series(ty, want, 0, size, input(ty, elem.Sum, root)) },
						func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error {
							return c.Broadcast(s, at, at, size, ty, root)
						}},
					{AllGather, n * size, r.src, func(want []byte) {
						for q := range n {
							series(ty, want[q*size*4:], q*size, size, input(ty, elem.Sum, q))
						}
					}, func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error {
						return c.AllGather(s, at, block(at, rank), size, ty)
					}},
					{ReduceScatter, size, block(r.src, rank),
						func(want []byte) { series(ty, want, rank*size, size, sum(ty, elem.Sum)) },
						func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error {
							return c.ReduceScatter(s, at, r.src, size, ty, elem.Sum)
						}},
					{Gather, n * size, r.src, func(want []byte) {
						for q := range n {
							from := q
							if rank != root { // nothing changes there
								from = rank
							}
							series(ty, want[q*size*4:], q*size, size, input(ty, elem.Sum, from))
						}
					}, func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error {
						return c.Gather(s, at, block(at, rank), size, ty, root)
					}},
					{Scatter, size, block(r.src, rank),
						func(want []byte) { series(ty, want, rank*size, size, input(ty, elem.Sum, root)) },
						func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error {
							return c.Scatter(s, at, r.src, size, ty, root)
						}},
				} {
					if err := r.load(ty, n*size, input(ty, elem.Sum, rank)); err != nil {
						return err
					}
					want := buf[:x.n*4]
					x.fill(want)
					run := func(at unsafe.Pointer) error { return x.run(r.Comm, r.s, at) }
					if err := r.compare(x.at, ty, x.n, 0, want, run); err != nil {
						return fmt.Errorf("%v of %d: %w", x.kind, size, err)
					}
				}
			}
			return nil
		})
	})
	t.Run("Registered", func(t *testing.T) { testRegistered(t, rigs) })
	t.Run("Errors", func(t *testing.T) {
		wantError(t, rigs[0].Send(rigs[0].s, rigs[0].src, 1, elem.Int8, n), "ncclSend", ErrInvalidArgument,
			fmt.Sprintf("rank %d of", n))
		for _, r := range rigs {
			if err := r.AsyncError(); err != nil {
				t.Error(err)
			}
		}
	})
	leave()
	t.Run("Split", func(t *testing.T) { testSplit(t, rigs) })
	t.Run("NonBlocking", func(t *testing.T) {
		leave := join(t, rigs, Config{NonBlocking: true})
		each(t, rigs, func(rank int, r *rig) error { return r.sumOfRanks(r.Comm, rank, n*(n+1)/2) })
		leave()
	})
	t.Run("Abort", func(t *testing.T) { testAbort(t, rigs) })
	t.Run("Deadline", func(t *testing.T) {
		id, err := NewID()
		check(t, err)
		for _, nonBlocking := range []bool{true, false} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err = Init(ctx, rigs[0].d, id, 0, n, Config{NonBlocking: nonBlocking}) // the others never come
			cancel()
			wantError(t, err, "ncclCommInitRankConfig", context.DeadlineExceeded, fmt.Sprintf("all %d ranks", n))
		}
	})
}
