package nccl

import (
	"bytes"
	"context"
	"fmt"
	"math"
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
		// What the driver loads at a first use it loads now, not while a collective waits for this rank.
		check(t, r.s.Fill(r.dst, 1, unset, 64))
		check(t, r.s.Copy(r.pinned, r.dst, 64))
		check(t, r.s.Synchronize())
	}
	return rigs
}

// each runs f for every rank at once. When a rank fails the communicators are aborted, so that the others end as well.
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

// value is element i of a rank's input. Sums of them are exact in every type, and products powers of two.
func value(t elem.Type, op elem.Op, rank, i int) float64 {
	i %= period
	if op == elem.Prod {
		return float64(1 + (i+i/7+rank)%2)
	}
	v := (i*5 + i/9 + rank*3) % 11
	if t == elem.Uint8 || t == elem.Uint32 || t == elem.Uint64 {
		return float64(v)
	}
	return float64(v - 5)
}

// reduced is element i of the reduction over ranks, in float64.
func reduced(t elem.Type, op elem.Op, ranks, i int) float64 {
	acc := value(t, op, 0, i)
	for r := 1; r < ranks; r++ {
		v := value(t, op, r, i)
		switch op {
		case elem.Prod:
			acc *= v
		case elem.Min:
			acc = math.Min(acc, v)
		case elem.Max:
			acc = math.Max(acc, v)
		default:
			acc += v
		}
	}
	if op == elem.Avg {
		acc /= float64(ranks)
	}
	return acc
}

// encode stores v as one element of t; integers are cut to their width, as they wrap round on the GPU.
func encode(t elem.Type, out []byte, v float64) {
	p := unsafe.Pointer(&out[0])
	switch t {
	case elem.Int8, elem.Uint8:
		*(*int8)(p) = int8(int64(v))
	case elem.Int32, elem.Uint32:
		*(*int32)(p) = int32(int64(v))
	case elem.Int64, elem.Uint64:
		*(*int64)(p) = int64(v)
	case elem.Float16:
		*(*elem.F16)(p) = elem.ToF16(float32(v))
	case elem.BFloat16:
		*(*elem.BF16)(p) = elem.ToBF16(float32(v))
	case elem.Float32:
		*(*float32)(p) = float32(v)
	case elem.Float64:
		*(*float64)(p) = v
	}
}

func decode(t elem.Type, in []byte) float64 {
	p := unsafe.Pointer(&in[0])
	switch t {
	case elem.Float16:
		return float64((*(*elem.F16)(p)).Float32())
	case elem.BFloat16:
		return float64((*(*elem.BF16)(p)).Float32())
	case elem.Float32:
		return float64(*(*float32)(p))
	default:
		return *(*float64)(p)
	}
}

// series writes n elements f(from), f(from+1), ... to out; f has the period.
func series(t elem.Type, out []byte, from, n int, f func(i int) float64) {
	size := t.Size()
	for i := range min(n, period) {
		encode(t, out[i*size:], f(from+i))
	}
	for done := period * size; done < n*size; done *= 2 {
		copy(out[done:n*size], out[:done])
	}
}

// load puts n elements into src.
func (r *rig) load(t elem.Type, n int, f func(i int) float64) error {
	series(t, r.host, 0, n, f)
	return r.s.Copy(r.src, r.pinned, n*t.Size())
}

// result runs the collective into dst, where n elements may change, and compares them with want, whose rounding may
// differ by tolerance times the element.
func (r *rig) result(t elem.Type, n int, tolerance float64, want []byte, run func(dst unsafe.Pointer) error) error {
	bytesOf := n * t.Size()
	if err := r.s.Fill(r.dst, 1, unset, bytesOf+guard); err != nil {
		return err
	}
	return r.compare(r.dst, t, n, tolerance, want, run)
}

func (r *rig) compare(dst unsafe.Pointer, t elem.Type, n int, tolerance float64, want []byte, run func(dst unsafe.Pointer) error) error {
	bytesOf := n * t.Size()
	if err := run(dst); err != nil {
		return err
	}
	if err := r.s.Copy(r.pinned, dst, bytesOf+guard); err != nil {
		return err
	}
	if err := r.s.Synchronize(); err != nil {
		return err
	}
	got := r.host[:bytesOf]
	if dst == r.dst {
		for i, b := range r.host[bytesOf : bytesOf+guard] {
			if b != unset {
				return fmt.Errorf("byte %d behind the result was written", i)
			}
		}
	}
	if bytes.Equal(got, want) {
		return nil
	}
	for i := 0; i < n; i++ {
		a, b := got[i*t.Size():(i+1)*t.Size()], want[i*t.Size():(i+1)*t.Size()]
		if bytes.Equal(a, b) {
			continue
		}
		if tolerance == 0 || math.Abs(decode(t, a)-decode(t, b)) > tolerance*math.Max(math.Abs(decode(t, b)), 1) {
			return fmt.Errorf("element %d of %d is % x, want % x", i, n, a, b)
		}
	}
	return nil
}

// averageError bounds the rounding of an average: NCCL multiplies by 1/ranks before it sums, so each of the inputs and
// each sum is rounded once in a type of 8 (bfloat16), 11 (float16), 24 or 53 bits.
func averageError(t elem.Type, op elem.Op, ranks int) float64 {
	bits := map[elem.Type]int{elem.BFloat16: 8, elem.Float16: 11, elem.Float32: 24, elem.Float64: 53}[t]
	if op != elem.Avg || bits == 0 {
		return 0
	}
	return 5 * float64(2*ranks) * math.Ldexp(1, -bits) // inputs are at most 5 in size
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
			for ty := elem.Type(0); ty < elem.Types; ty++ {
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
			err := r.result(ty, size, tolerance, want, func(dst unsafe.Pointer) error { return r.AllReduce(r.s, dst, r.src, size, ty, op) })
			if err != nil {
				return err
			}
			err = r.compare(r.src, ty, size, tolerance, want, func(dst unsafe.Pointer) error { return r.AllReduce(r.s, dst, dst, size, ty, op) })
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
			return r.result(ty, n*size, 0, want, func(dst unsafe.Pointer) error { return r.AllGather(r.s, dst, r.src, size, ty) })
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
			return r.result(ty, n*size, 0, want, func(dst unsafe.Pointer) error { return r.AllToAll(r.s, dst, r.src, size, ty) })
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
				return r.Group(r.s, []Call{
					{Kind: Send, Type: ty, Peer: int32(to), Src: r.src, N: size},
					{Kind: Recv, Type: ty, Peer: int32(from), Dst: dst, N: size},
					{Kind: AllReduce, Type: ty, Op: elem.Max, Dst: unsafe.Add(dst, size*ty.Size()), Src: r.src, N: size},
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
					kind Kind
					n    int                                                    // elements of the result
					at   unsafe.Pointer                                         // where it lies
					fill func(want []byte)                                      // what it is
					run  func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error // in memory that starts with this rank's input
				}{
					{Broadcast, size, r.src, func(want []byte) { series(ty, want, 0, size, input(ty, elem.Sum, root)) },
						func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error { return c.Broadcast(s, at, at, size, ty, root) }},
					{AllGather, n * size, r.src, func(want []byte) {
						for q := range n {
							series(ty, want[q*size*4:], q*size, size, input(ty, elem.Sum, q))
						}
					}, func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error {
						return c.AllGather(s, at, block(at, rank), size, ty)
					}},
					{ReduceScatter, size, block(r.src, rank), func(want []byte) { series(ty, want, rank*size, size, sum(ty, elem.Sum)) },
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
					{Scatter, size, block(r.src, rank), func(want []byte) { series(ty, want, rank*size, size, input(ty, elem.Sum, root)) },
						func(c *Comm, s *cuda.Stream, at unsafe.Pointer) error { return c.Scatter(s, at, r.src, size, ty, root) }},
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
		wantError(t, rigs[0].Send(rigs[0].s, rigs[0].src, 1, elem.Int8, n), "ncclSend", ErrInvalidArgument, fmt.Sprintf("rank %d of", n))
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

func fill(b []byte) {
	for i := range b {
		b[i] = unset
	}
}

// sumOfRanks reduces this rank's number from 1 on over c.
func (r *rig) sumOfRanks(c *Comm, rank, want int) error {
	const size = 1023
	out := make([]byte, size*4)
	series(elem.Int32, out, 0, size, func(int) float64 { return float64(want) })
	if err := r.load(elem.Int32, size, func(int) float64 { return float64(rank + 1) }); err != nil {
		return err
	}
	return r.result(elem.Int32, size, 0, out, func(dst unsafe.Pointer) error {
		return c.AllReduce(r.s, dst, r.src, size, elem.Int32, elem.Sum)
	})
}

// testRegistered reduces in memory that is registered, as a window where this NCCL has them.
func testRegistered(t *testing.T, rigs []*rig) {
	if Version() < 21900 {
		t.Skipf("NCCL %s has no registration", VersionString())
	}
	const size = 4096
	n := len(rigs)
	each(t, rigs, func(rank int, r *rig) error {
		p, err := MemAlloc(r.d, 2*size*4)
		if err != nil {
			return err
		}
		ends := []func() error{}
		reg, err := r.Register(p, 2*size*4)
		if err != nil {
			return err
		}
		ends = append(ends, reg.Close)
		if Version() >= 22700 {
			w, err := r.RegisterWindow(p, 2*size*4)
			if err != nil {
				return err
			}
			if rank == 0 {
				t.Logf("window registered: %v", w.Registered())
			}
			ends = append([]func() error{w.Close}, ends...)
		}
		for _, op := range []elem.Op{elem.Sum, elem.Max} {
			want := make([]byte, size*4)
			series(elem.Float32, want, 0, size, func(i int) float64 { return reduced(elem.Float32, op, n, i) })
			series(elem.Float32, r.host, 0, size, func(i int) float64 { return value(elem.Float32, op, rank, i) })
			if err := r.s.Copy(p, r.pinned, size*4); err != nil {
				return err
			}
			if err := r.AllReduce(r.s, unsafe.Add(p, size*4), p, size, elem.Float32, op); err != nil {
				return err
			}
			if err := r.s.Copy(r.pinned, unsafe.Add(p, size*4), size*4); err != nil {
				return err
			}
			if err := r.s.Synchronize(); err != nil {
				return err
			}
			if !bytes.Equal(r.host[:size*4], want) {
				return fmt.Errorf("%v in registered memory is wrong", op)
			}
		}
		for _, end := range ends {
			if err := end(); err != nil {
				return err
			}
		}
		return MemFree(r.d, p)
	})
}

// testSplit makes communicators of the even and the odd ranks in reverse order, with and without shared resources, and
// one of all but the first.
func testSplit(t *testing.T, rigs []*rig) {
	n := len(rigs)
	ctx := context.Background()
	for _, share := range []bool{false, true} {
		leave := join(t, rigs, Config{SplitShare: share, CommName: "world"})
		each(t, rigs, func(rank int, r *rig) error {
			c, err := r.Split(ctx, rank%2, -rank, Config{CommName: "half"})
			if err != nil {
				return err
			}
			var size, after, sum int
			for q := rank % 2; q < n; q += 2 {
				size++
				sum += q + 1
				if q > rank {
					after++
				}
			}
			if c.Size() != size || c.Rank() != after || c.Device() != r.d {
				return fmt.Errorf("rank %d of %d in its half, want %d of %d", c.Rank(), c.Size(), after, size)
			}
			if err := r.sumOfRanks(c, rank, sum); err != nil {
				return err
			}
			if err := c.Close(); err != nil {
				return err
			}
			color := 0
			if rank == 0 {
				color = -1
			}
			c, err = r.Split(ctx, color, 0, Config{})
			if err != nil || (c == nil) != (rank == 0) {
				return fmt.Errorf("split of all but the first: %v, %w", c, err)
			}
			if c != nil {
				if err := r.sumOfRanks(c, rank, n*(n+1)/2-1); err != nil {
					return err
				}
				if err := c.Close(); err != nil {
					return err
				}
			}
			return r.sumOfRanks(r.Comm, rank, n*(n+1)/2)
		})
		leave()
	}
}

// testAbort ends a reduction that the last rank never joins.
func testAbort(t *testing.T, rigs []*rig) {
	n := len(rigs)
	leave := join(t, rigs, Config{})
	each(t, rigs, func(rank int, r *rig) error { return r.sumOfRanks(r.Comm, rank, n*(n+1)/2) }) // connects
	var waiting sync.WaitGroup
	waiting.Add(n - 1)
	each(t, rigs, func(rank int, r *rig) error {
		if rank == n-1 {
			waiting.Wait()
			return r.Abort()
		}
		err := r.AllReduce(r.s, r.dst, r.src, 1023, elem.Int32, elem.Sum)
		waiting.Done()
		if err != nil {
			return err
		}
		if done, err := r.s.Query(); done || err != nil {
			return fmt.Errorf("a reduction without the last rank: done %v, %w", done, err)
		}
		if err := r.Abort(); err != nil {
			return err
		}
		return r.s.Synchronize() // the stream is free again
	})
	leave()
	leave = join(t, rigs, Config{}) // and the GPUs serve another communicator
	each(t, rigs, func(rank int, r *rig) error { return r.sumOfRanks(r.Comm, rank, n*(n+1)/2) })
	leave()
}
