package parallel_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// Every element of an arena is in the part of one rank, and in its shard at the place that Own
// says.
func TestPartition(t *testing.T) {
	for _, lens := range [][]int{nil, {0}, {1}, {5, 0, 64, 1000, 3}, {7, 7, 7}} {
		for ranks := 1; ranks <= 5; ranks++ {
			for _, align := range []int{1, 4, 64} {
				p := parallel.NewPartition(0, ranks, align, lens...)
				owner := make([]int, p.Len())
				for i := range owner {
					owner[i] = -1
				}
				for rank := range ranks {
					q := parallel.NewPartition(rank, ranks, align, lens...)
					if q.Len() != p.Len() || q.ShardLen()*ranks != q.Len() {
						t.Fatalf("%v over %d ranks: %d elements, %d on rank %d", lens, ranks, q.Len(),
							q.ShardLen(), rank)
					}
					end, shardEnd := 0, 0
					for i, n := range lens {
						lo, hi := q.Bucket(i)
						first, last := q.Part(i)
						at, atEnd := q.Shard(i)
						if lo != end || hi-lo < n || hi-lo >= n+ranks*align || at != shardEnd ||
							atEnd-at != last-first || (last-first)%align != 0 {
							t.Fatalf("%v over %d ranks: bucket %d in [%d, %d), part [%d, %d), shard [%d, %d)",
								lens, ranks, i, lo, hi, first, last, at, atEnd)
						}
						end, shardEnd = hi, atEnd
						for k := first; k < last; k++ {
							if owner[k] >= 0 {
								t.Fatalf("%v: element %d is rank %d's and rank %d's", lens, k, owner[k], rank)
							}
							owner[k] = rank
						}
						// A tensor at [lo+1, lo+n) has these elements of the part.
						skip, from, own := q.Own(i, lo+min(1, n), lo+n)
						for k := range own {
							x := lo + min(1, n) + skip + k
							if x < first || x >= last || from+k != at+x-first {
								t.Fatalf("%v over %d ranks: rank %d's %d elements from %d on lie at %d",
									lens, ranks, rank, own, x, from)
							}
						}
						if want := max(0, min(lo+n, last)-max(lo+min(1, n), first)); own != want {
							t.Fatalf("%v over %d ranks: rank %d has %d elements, want %d", lens, ranks, rank, own, want)
						}
					}
					if end != q.Len() {
						t.Fatalf("%v: buckets end at %d of %d", lens, end, q.Len())
					}
				}
				if i := slices.Index(owner, -1); i >= 0 {
					t.Fatalf("%v over %d ranks: element %d is nobody's", lens, ranks, i)
				}
			}
		}
	}
}

// shardedBuckets is four layers that take turns in two places, and one that has its own.
type shardedBuckets struct {
	parallel.Partition
	own     spmd.Buffer[float32] // the shard
	buckets []spmd.Buffer[float32]
}

var bucketLens = []int{10, 7, 10, 3, 129}

func newBuckets(t *testing.T, w *spmd.World) *shardedBuckets {
	x := &shardedBuckets{Partition: parallel.NewPartition(w.Rank(), w.Size(), 4, bucketLens...)}
	x.own = spmdtest.Alloc[float32](t, w, x.ShardLen())
	a, b, c := spmdtest.Alloc[float32](t, w, 64), spmdtest.Alloc[float32](t, w, 64), spmdtest.Alloc[float32](t, w, 256)
	for i, m := range []spmd.Buffer[float32]{a, b, a, b, c} {
		lo, hi := x.Bucket(i)
		x.buckets = append(x.buckets, m.Slice(0, hi-lo))
	}
	return x
}

// set puts the values of a version into the shard: element k of bucket i is version + 1000 i + k.
func (x *shardedBuckets) set(t *testing.T, version int) {
	for i := range x.buckets {
		lo, _ := x.Bucket(i)
		first, last := x.Part(i)
		at, _ := x.Shard(i)
		for k := first; k < last; k++ {
			x.own.Set(at+k-first, float32(version+1000*i+k-lo))
		}
	}
}

// Buckets are whole when they are used, also if the streams run at very different times, and in a
// graph.
func TestGatherer(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		x := newBuckets(t, w)
		after := make([]int, len(x.buckets))
		g, err := parallel.NewGatherer(w.Comm(), x.buckets, parallel.GathererConfig[float32]{
			Before: func(i int, part spmd.Buffer[float32], s *spmd.Stream) error {
				return spmd.Copy(s, part, x.own.Slice(x.Shard(i)))
			},
			After: func(i int, s *spmd.Stream) error { after[i]++; return nil },
		})
		spmdtest.Must(t, err)
		order := []int{4, 0, 1, 2, 3, 3, 2, 1, 0}
		pass, err := g.Pass(order...)
		spmdtest.Must(t, err)
		compute := spmdtest.Stream(t, w, "compute")
		var seen []spmd.Buffer[float32]
		for _, i := range order {
			seen = append(seen, spmdtest.Alloc[float32](t, w, x.buckets[i].Len()))
		}
		commands := func(held chan struct{}) error {
			if err := g.Begin(pass, compute); err != nil {
				return err
			}
			for k, i := range order {
				if err := g.Need(i, compute); err != nil {
					return err
				}
				if k == 0 && held != nil { // the gatherer has time to be too early
					if err := compute.HostFunc(func() error { <-held; return nil }); err != nil {
						return err
					}
				}
				if err := spmd.Copy(compute, seen[k], x.buckets[i]); err != nil {
					return err
				}
				if err := g.Done(i, compute); err != nil {
					return err
				}
			}
			return g.End(compute)
		}
		check := func(version int) {
			t.Helper()
			spmdtest.Must(t, compute.Synchronize())
			for k, i := range order {
				for j := range seen[k].Len() {
					if got, want := seen[k].At(j), float32(version+1000*i+j); got != want {
						t.Fatalf("use %d: bucket %d has %v at %d, want %v", k, i, got, j, want)
					}
				}
			}
		}
		for version := range 3 {
			x.set(t, version)
			spmdtest.Must(t, commands(nil))
			check(version)
		}
		// 3 and 2 still lie in their memory when they are used again.
		if want := []int{6, 6, 3, 3, 3}; !slices.Equal(after, want) {
			t.Errorf("buckets were gathered %v times in 3 passes, want %v", after, want)
		}
		x.set(t, 50)
		held := make(chan struct{})
		spmdtest.Must(t, commands(held))
		close(held)
		check(50)
		if w.Comm().Capturable() == nil {
			graph, err := compute.Capture(func() error { return commands(nil) })
			spmdtest.Must(t, err)
			for version := range 3 {
				x.set(t, 100+version)
				spmdtest.Must(t, graph.Launch(compute))
				check(100 + version)
			}
			spmdtest.Must(t, graph.Close())
		}
		// The next bucket is gathered while the stream that computes is held up.
		x.set(t, 7)
		spmdtest.Must(t, g.Begin(pass, compute))
		spmdtest.Must(t, g.Need(4, compute))
		ahead := spmdtest.Stream(t, w, "ahead")
		spmdtest.Must(t, ahead.After(g.Stream()))
		held = make(chan struct{})
		spmdtest.Must(t, compute.HostFunc(func() error { <-held; return nil }))
		spmdtest.Must(t, ahead.Synchronize())
		if got := x.buckets[1].At(2); got != 7+1000+2 {
			t.Errorf("a bucket that is used later has %v, want %v", got, 7+1000+2)
		}
		close(held)

		for _, tc := range []struct {
			err  error
			want string
		}{
			{g.Need(1, compute), "bucket 0 is next"},
			{g.Done(0, compute), "not the first bucket in use"},
			{last(g.Need(0, compute), g.Need(1, compute), g.Need(2, compute)), "its memory is that of bucket 0"},
			{g.End(compute), "not all uses"},
			{second(g.Pass(0, 5)), "bucket 5 of 5"},
		} {
			if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", tc.err, tc.want)
			}
		}
		spmdtest.Must(t, compute.Synchronize())
		spmdtest.Must(t, g.Close())
		if w.Size() > 1 {
			if _, err := parallel.NewGatherer(w.Comm(), []spmd.Buffer[float32]{x.own.Slice(0, 1)},
				parallel.GathererConfig[float32]{}); err == nil {
				t.Error("a bucket that the ranks cannot divide is taken")
			}
		}
	})
}

// last returns the last of some errors.
func last(errs ...error) error { return errs[len(errs)-1] }

func second[T any](_ T, err error) error { return err }

// The shards are the sums over the ranks, added up over micro-batches, with gradients that take
// turns in memory. The norm is that of all of it.
func TestScatterer(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		x := newBuckets(t, w)
		compute := spmdtest.Stream(t, w, "compute")
		var shards []spmd.Buffer[float32]
		for i := range x.buckets {
			shards = append(shards, x.own.Slice(x.Shard(i)))
		}
		r, err := parallel.NewScatterer(w.Comm(), x.buckets, shards, spmd.Sum)
		spmdtest.Must(t, err)
		values := make([]spmd.Buffer[float32], len(x.buckets)) // what this rank's passes find
		for i, b := range x.buckets {
			values[i] = spmdtest.Alloc[float32](t, w, b.Len())
		}
		// Element k of bucket i is (rank+1)(k+10i) times version: small whole numbers.
		set := func(version int) {
			for i, b := range values {
				for k := range b.Len() {
					b.Set(k, float32(version*(w.Rank()+1)*(k+10*i)))
				}
			}
		}
		commands := func(ready func(i int, s *spmd.Stream) error) error {
			for i, b := range x.buckets {
				if err := r.Use(i, compute); err != nil {
					return err
				}
				if err := spmd.Copy(compute, b, values[i]); err != nil {
					return err
				}
				if err := ready(i, compute); err != nil {
					return err
				}
			}
			return r.Wait(compute)
		}
		ranks := w.Size() * (w.Size() + 1) / 2
		check := func(times int) {
			t.Helper()
			spmdtest.Must(t, compute.Synchronize())
			for i := range x.buckets {
				lo, _ := x.Bucket(i)
				first, _ := x.Part(i)
				for k := range shards[i].Len() {
					if got, want := shards[i].At(k), float32(times*ranks*(first-lo+k+10*i)); got != want {
						t.Fatalf("rank %d: bucket %d has %v at %d, want %v", w.Rank(), i, got, first-lo+k, want)
					}
				}
			}
		}
		set(1)
		spmdtest.Must(t, commands(r.Ready))
		check(1)
		set(2)
		spmdtest.Must(t, commands(r.Add))
		check(3)
		spmdtest.Must(t, commands(r.Ready))
		check(2)
		if w.Comm().Capturable() == nil {
			graph, err := compute.Capture(func() error { return commands(r.Add) })
			spmdtest.Must(t, err)
			spmdtest.Must(t, graph.Launch(compute))
			spmdtest.Must(t, graph.Launch(compute))
			check(6)
			spmdtest.Must(t, graph.Close())
		}

		want := 0.0
		for i, b := range x.buckets {
			for k := range b.Len() {
				v := float64(6 * ranks * (k + 10*i))
				if w.Comm().Capturable() != nil {
					v /= 3
				}
				want += v * v
			}
		}
		want = math.Sqrt(want)
		norm := spmdtest.Alloc[float32](t, w, 1)
		before := make([]float32, x.own.Len())
		spmdtest.Must(t, x.own.CopyTo(before))
		for _, limit := range []float64{0, 2 * want, want / 4} {
			spmdtest.Must(t, r.ClipNorm(limit, norm, compute))
			spmdtest.Must(t, compute.Synchronize())
			if got := float64(norm.At(0)); math.Abs(got-want) > 1e-6*want {
				t.Errorf("limit %v: norm %v, want %v", limit, got, want)
			}
			scale := 1.0
			if limit > 0 {
				scale = min(1, limit/want)
			}
			for k, v := range before {
				if got, want := float64(x.own.At(k)), scale*float64(v); math.Abs(got-want) > 1e-6*math.Abs(want) {
					t.Fatalf("limit %v: [%d] = %v, want %v", limit, k, got, want)
				}
			}
		}

		// In place: the part of a gradient is its shard.
		whole := spmdtest.Alloc[float32](t, w, x.Len())
		var grads, parts []spmd.Buffer[float32]
		for i := range x.buckets {
			grads = append(grads, whole.Slice(x.Bucket(i)))
			parts = append(parts, whole.Slice(x.Part(i)))
		}
		in, err := parallel.NewScatterer(w.Comm(), grads, parts, spmd.Avg)
		spmdtest.Must(t, err)
		spmdtest.Must(t, whole.SetAll(float32(w.Rank())))
		for i := range grads {
			spmdtest.Must(t, in.Ready(i, compute))
		}
		spmdtest.Must(t, in.Wait(compute))
		spmdtest.Must(t, in.ClipNorm(0, norm, compute))
		spmdtest.Must(t, compute.Synchronize())
		for i, p := range parts {
			for k := range p.Len() {
				if got, want := p.At(k), float32(w.Size()-1)/2; got != want {
					t.Fatalf("average %v of gradient %d, want %v", got, i, want)
				}
			}
		}
		if got, want := float64(norm.At(0)),
			float64(w.Size()-1)/2*math.Sqrt(float64(x.Len())); math.Abs(got-want) > 1e-6*want {
			t.Errorf("norm %v, want %v", got, want)
		}

		spmdtest.Must(t, r.Ready(0, compute))
		for _, tc := range []struct {
			err  error
			want string
		}{
			{r.Ready(2, compute), "gradient 1 of 5 is next"},
			{r.Use(3, compute), "its memory is that of gradient 1, which is not ready"},
			{r.Use(0, compute), "gradient 1 of 5 is the next"},
			{r.Wait(compute), "only 1 of 5"},
			{in.Add(0, compute), "nothing can be added"},
			{second(parallel.NewScatterer(w.Comm(), grads, grads[1:], spmd.Sum)), "5 gradients and 4 shards"},
			{second(parallel.NewScatterer(w.Comm(), x.buckets, partsOf(x), spmd.Sum)), "in the way of gradient"},
		} {
			if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", tc.err, tc.want)
			}
		}
		spmdtest.Must(t, r.Abandon(compute))
		spmdtest.Must(t, commands(r.Ready))
		spmdtest.Must(t, compute.Synchronize())
		spmdtest.Must(t, r.Close())
		spmdtest.Must(t, in.Close())
	})
}

// partsOf is shards that lie in gradients which take turns in memory.
func partsOf(x *shardedBuckets) []spmd.Buffer[float32] {
	var parts []spmd.Buffer[float32]
	for i, b := range x.buckets {
		lo, _ := x.Bucket(i)
		first, last := x.Part(i)
		parts = append(parts, b.Slice(first-lo, last-lo))
	}
	return parts
}

// A pass costs no Go allocation.
func TestShardNoAllocation(t *testing.T) {
	spmdtest.Run(t, []int{1, 2}, func(t *testing.T, w *spmd.World) {
		x := newBuckets(t, w)
		compute := spmdtest.Stream(t, w, "compute")
		g, err := parallel.NewGatherer(w.Comm(), x.buckets, parallel.GathererConfig[float32]{})
		spmdtest.Must(t, err)
		shards := make([]spmd.Buffer[float32], len(x.buckets))
		for i := range shards {
			shards[i] = x.own.Slice(x.Shard(i))
		}
		r, err := parallel.NewScatterer(w.Comm(), x.buckets, shards, spmd.Sum)
		spmdtest.Must(t, err)
		order := []int{0, 1, 2, 3, 4}
		pass, err := g.Pass(order...)
		spmdtest.Must(t, err)
		once := func() {
			spmdtest.Must(t, g.Begin(pass, compute))
			for _, i := range order {
				spmdtest.Must(t, g.Need(i, compute))
				spmdtest.Must(t, g.Done(i, compute))
			}
			spmdtest.Must(t, g.End(compute))
			for i := range order {
				spmdtest.Must(t, r.Use(i, compute))
				spmdtest.Must(t, r.Ready(i, compute))
			}
			spmdtest.Must(t, r.Wait(compute))
			spmdtest.Must(t, compute.Synchronize())
		}
		for range 200 { // until queues are as long as they get
			once()
		}
		if n := testkit.Allocations(50, once); n != 0 {
			t.Errorf("%v allocations in a pass, want none", n)
		}
		spmdtest.Must(t, g.Close())
		spmdtest.Must(t, r.Close())
	})
}

// The norm is that of all ranks together, though some have no elements, and clipped once.
func TestNorm(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1, 2, 3, 4}, testNorm)
	spmdtest.Run(t, []int{3}, testNorm)
}

func testNorm(t *testing.T, w *spmd.World) {
	const n = 70_000
	a := spmdtest.Alloc[float32](t, w, n)
	b, norm := spmdtest.Alloc[float32](t, w, 3), spmdtest.Alloc[float32](t, w, 1)
	s := spmdtest.Stream(t, w, "norm")
	for _, limit := range []float64{0, 1, 1e9} {
		squares := 0.0
		for r := range w.Size() {
			if r == 1 {
				continue // has none
			}
			for i := range n {
				x := float64(float32(i%7) - float32(r))
				squares += x * x
			}
			squares += 3 * 4
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(i%7) - float32(w.Rank())
		}
		spmdtest.Must(t, a.CopyFrom(x))
		spmdtest.Must(t, b.SetAll(-2))
		parts := []spmd.Buffer[float32]{a, b}
		if w.Rank() == 1 {
			parts = nil
		}
		whole, err := parallel.NewNorm(w.Comm(), parts...)
		spmdtest.Must(t, err)
		spmdtest.Must(t, whole.Clip(limit, norm, s))
		spmdtest.Must(t, s.Synchronize())
		want := math.Sqrt(squares)
		if got := float64(norm.At(0)); math.Abs(got-want) > 1e-6*want {
			t.Errorf("norm %v, want %v", got, want)
		}
		scaled := float32(-2)
		if limit > 0 && want > limit && w.Rank() != 1 {
			scaled *= float32(limit / want)
		}
		if got := b.At(1); math.Abs(float64(got-scaled)) > 1e-6 {
			t.Errorf("limit %v: an element of -2 is %v, want %v", limit, got, scaled)
		}
		spmdtest.Must(t, whole.Close())
	}
}
