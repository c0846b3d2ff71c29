package spmd_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

const (
	fuzzEnv        = "LOCKSTEP_FUZZ"         // how long TestFuzz goes on: "10m"; without it each way has its turn once
	fuzzSeedEnv    = "LOCKSTEP_FUZZ_SEED"    // the first seed, to see a failure again; and of a job its own
	fuzzBatchesEnv = "LOCKSTEP_FUZZ_BATCHES" // of a job
)

// TestFuzz makes random calls on ranks that are processes, goroutines and both: every kind, type,
// operation and root, of any length, in every way to issue it, on the world and on parts of it. One
// rank computes each result from all operands, too. All ranks draw the same numbers.
func TestFuzz(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "the ranks are goroutines, too")
	spmdtest.Ranks(t, 3)
	until, seed := time.Time{}, uint64(1)
	if long := os.Getenv(fuzzEnv); long != "" {
		d, err := time.ParseDuration(long)
		must(t, err)
		until, seed = time.Now().Add(d), uint64(time.Now().UnixNano())
	}
	if given := os.Getenv(fuzzSeedEnv); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		must(t, err)
	}
	ways := []struct {
		processes int
		args      []string
		batches   int
	}{
		{0, []string{"--ranks", "3"}, 60}, {3, nil, 40}, {0, []string{"--ranks", "2"}, 40},
		{0, []string{"--ranks", "5"}, 60}, {2, nil, 40}, {0, []string{"--ranks", "2", "--check"}, 40},
		{3, []string{"--check"}, 40}, {0, nil, 40}, {4, nil, 40}, {0, []string{"--ranks", "4"}, 60}, {5, nil, 40},
	}
	most := 3 // ways that make test goes
	if !until.IsZero() {
		most = len(ways)
	}
	for turn := 0; turn < most || time.Now().Before(until); turn++ {
		way, its := ways[turn%most], strconv.FormatUint(seed+uint64(turn), 10)
		batches := way.batches
		if !until.IsZero() {
			batches *= 10
		}
		env := []string{fuzzSeedEnv + "=" + its, fuzzBatchesEnv + "=" + strconv.Itoa(batches)}
		status, out := run(t, way.processes, "fuzz", env,
			append([]string{"--rows", "100", "--log-level", "error"}, way.args...)...)
		if status != 0 {
			t.Fatalf("%s=%s, %d processes %v: status %d\n%s", fuzzSeedEnv, its, way.processes, way.args, status, out)
		}
	}
}

// fuzz is a rank of TestFuzz.
func fuzz(w *spmd.World) error {
	seed, err := strconv.ParseUint(os.Getenv(fuzzSeedEnv), 10, 64)
	batches, e := strconv.Atoi(os.Getenv(fuzzBatchesEnv))
	if err = errors.Join(err, e); err != nil {
		return err
	}
	if seed%3 == 0 { // errors in what the collector may free show only where it looks
		over := make(chan struct{})
		defer close(over)
		go func() {
			for {
				select {
				case <-over:
					return
				default:
					runtime.GC()
				}
			}
		}()
	}
	for b := range batches {
		if err := fuzzBatch(w, rand.New(rand.NewPCG(seed, uint64(b)))); err != nil {
			return fmt.Errorf("seed %d, batch %d: %w", seed, b, err)
		}
	}
	return nil
}

// fuzzCall is a call whose operands are there.
type fuzzCall struct {
	name  string
	issue func(c spmd.Comm) error
	check []func() error
	free  []func() error
}

func fuzzBatch(w *spmd.World, r *rand.Rand) (err error) {
	c := w.Comm()
	if r.IntN(3) == 0 {
		colors, keys := r.Perm(w.Size()), r.Perm(w.Size())
		parts := 1 + r.IntN(2)
		if c, err = c.Split(colors[w.Rank()]%parts-r.IntN(2), keys[w.Rank()]); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		if c.Size() == 0 { // of a negative color
			return nil
		}
	}
	var calls []*fuzzCall
	how := r.IntN(5)
	name := []string{"blocking", "on a stream", "in a graph", "in a group", "in a group on a stream"}[how]
	for range 1 + r.IntN(4) {
		call, err := fuzzAny(w, c, rand.New(rand.NewPCG(r.Uint64(), 0)), how >= 3)
		if err != nil {
			return err
		}
		name += "; " + call.name
		calls = append(calls, call)
	}
	all := func(c spmd.Comm) error {
		for _, call := range calls {
			if err := call.issue(c); err != nil {
				return err
			}
		}
		return nil
	}
	if err := fuzzIssue(w, c, how, all); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for i, call := range calls {
		for _, check := range call.check {
			if err := check(); err != nil {
				return fmt.Errorf("%s: call %d on rank %d of %d: %w", name, i, c.Rank(), c.Size(), err)
			}
		}
		for _, free := range call.free {
			if err := free(); err != nil {
				return err
			}
		}
	}
	return nil
}

func fuzzIssue(w *spmd.World, c spmd.Comm, how int, all func(c spmd.Comm) error) error {
	if how == 0 {
		return all(c)
	}
	if how == 3 {
		return c.Group(func() error { return all(c) })
	}
	s, err := w.NewStream("fuzz")
	if err != nil {
		return err
	}
	on := c.On(s)
	switch how {
	case 1:
		err = all(on)
	case 2:
		var g *spmd.Graph
		if g, err = s.Capture(func() error { return all(on) }); err == nil {
			err = errors.Join(g.Launch(s), s.Synchronize(), g.Close())
		}
	case 4:
		err = on.Group(func() error { return all(on) })
	}
	return errors.Join(err, s.Close())
}

func fuzzAny(w *spmd.World, c spmd.Comm, r *rand.Rand, grouped bool) (*fuzzCall, error) {
	switch r.IntN(10) {
	case 0:
		return fuzzOf(w, c, r, grouped, plain[int8]())
	case 1:
		return fuzzOf(w, c, r, grouped, plain[uint8]())
	case 2:
		return fuzzOf(w, c, r, grouped, plain[int32]())
	case 3:
		return fuzzOf(w, c, r, grouped, plain[uint32]())
	case 4:
		return fuzzOf(w, c, r, grouped, plain[int64]())
	case 5:
		return fuzzOf(w, c, r, grouped, plain[uint64]())
	case 6:
		return fuzzOf(w, c, r, grouped, half())
	case 7:
		return fuzzOf(w, c, r, grouped, brain())
	case 8:
		return fuzzOf(w, c, r, grouped, plain[float32]())
	}
	return fuzzOf(w, c, r, grouped, plain[float64]())
}

// fuzzer makes one call.
type fuzzer[T spmd.Elem] struct {
	*fuzzCall
	w        *spmd.World
	me, size int
	seed     uint64
	op       spmd.Op
	num      number[T]
	err      error
}

// value is element i of a rank's part: so small that every order of a sum is exact in every type.
func (z *fuzzer[T]) value(rank, i int) float64 {
	h := (z.seed + uint64(rank)*7919 + uint64(i)) * 0x9e3779b97f4a7c15
	h ^= h >> 31
	if z.op == spmd.Prod {
		return float64(1 + h%2)
	}
	return float64(h % 7)
}

// reduced is the result of the ranks from one to before another, computed by one.
func (z *fuzzer[T]) reduced(from, to, i int) float64 {
	x := z.value(from, i)
	for r := from + 1; r < to; r++ {
		switch y := z.value(r, i); z.op {
		case spmd.Prod:
			x *= y
		case spmd.Min:
			x = min(x, y)
		case spmd.Max:
			x = max(x, y)
		default:
			x += y
		}
	}
	if z.op == spmd.Avg {
		x /= float64(to - from)
	}
	return x
}

const fuzzGuard = 99

// buffer is n elements with a guard before and behind them, filled by value.
func (z *fuzzer[T]) buffer(n int, value func(i int) float64) spmd.Buffer[T] {
	whole, err := spmd.AllocPinned[T](z.w, n+2)
	if err != nil {
		z.err = err
		return whole
	}
	x := whole.Host()
	x[0], x[n+1] = z.num.of(fuzzGuard), z.num.of(fuzzGuard)
	for i := range n {
		x[i+1] = z.num.of(fuzzGuard)
		if value != nil {
			x[i+1] = z.num.of(value(i))
		}
	}
	z.free = append(z.free, whole.Free)
	z.check = append(z.check, func() error {
		if z.num.to(x[0]) != fuzzGuard || z.num.to(x[n+1]) != fuzzGuard {
			return errors.New("memory beside an operand has changed")
		}
		return nil
	})
	return whole.Slice(1, n+1)
}

// wants compares a buffer with its expected contents after the call.
func (z *fuzzer[T]) wants(b spmd.Buffer[T], want func(i int) float64) {
	z.check = append(z.check, func() error {
		for i, got := range b.Host() {
			if should := z.num.of(want(i)); got != should {
				return fmt.Errorf("[%d] of %d is %v, want %v", i, b.Len(), z.num.to(got), z.num.to(should))
			}
		}
		return nil
	})
}

var fuzzLengths = []int{0, 1, 2, 3, 7, 64, 515, 1031, 4099, 20_011, 70_001}

// fuzzKinds are the calls. The last are made of others if they are not in a group.
var fuzzKinds = []string{"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "AllToAll",
	"Gather", "Scatter", "Scan", "ExScan", "SendRecv", "AllToAllV", "Send and Recv"}

func fuzzOf[T spmd.Elem](w *spmd.World, c spmd.Comm, r *rand.Rand, grouped bool, num number[T]) (*fuzzCall, error) {
	kind, root, inPlace, vector := fuzzKinds[r.IntN(len(fuzzKinds))], r.IntN(60)%c.Size(), r.IntN(2) == 0,
		r.IntN(2) == 0
	z := &fuzzer[T]{fuzzCall: &fuzzCall{}, w: w, me: c.Rank(), size: c.Size(), seed: r.Uint64(),
		op: []spmd.Op{spmd.Sum, spmd.Prod, spmd.Min, spmd.Max, spmd.Avg}[r.IntN(5)], num: num}
	if kind == "Scan" || kind == "ExScan" {
		z.op %= spmd.Avg
	}
	n := fuzzLengths[r.IntN(len(fuzzLengths))]
	counts := slices.Repeat([]int{n}, z.size)
	if vector {
		for i := range counts {
			counts[i] = fuzzLengths[r.IntN(len(fuzzLengths))]
		}
	}
	z.name = fmt.Sprintf("%s of %d %T, %v, counts %v, root %d, in place %t", kind, n, *new(T), z.op,
		counts, root, inPlace)
	switch kind {
	case "AllReduce", "Reduce", "Scan", "ExScan", "Broadcast":
		z.same(kind, n, root, inPlace)
	case "SendRecv", "Send and Recv":
		z.message(n, grouped && kind == "Send and Recv")
	case "AllToAll":
		z.allToAll(n, inPlace)
	case "AllToAllV":
		z.allToAllV(r)
	default:
		z.parts(kind, counts, vector, root, inPlace)
	}
	return z.fuzzCall, z.err
}

// same makes a call whose operands have one length.
func (z *fuzzer[T]) same(kind string, n, root int, inPlace bool) {
	mine := func(i int) float64 { return z.value(z.me, i) }
	src := z.buffer(n, mine)
	if kind == "Broadcast" {
		z.issue = func(c spmd.Comm) error { return spmd.Broadcast(c, src, root) }
		z.wants(src, func(i int) float64 { return z.value(root, i) })
		return
	}
	dst, before := src, mine
	if !inPlace {
		dst, before = z.buffer(n, nil), func(int) float64 { return fuzzGuard }
		z.wants(src, mine)
	}
	switch kind {
	case "AllReduce":
		z.issue = func(c spmd.Comm) error { return spmd.AllReduce(c, dst, src, z.op) }
		z.wants(dst, func(i int) float64 { return z.reduced(0, z.size, i) })
	case "Reduce":
		z.issue = func(c spmd.Comm) error { return spmd.Reduce(c, dst, src, z.op, root) }
		if z.me == root {
			z.wants(dst, func(i int) float64 { return z.reduced(0, z.size, i) })
		} else {
			z.wants(dst, before)
		}
	case "Scan":
		z.issue = func(c spmd.Comm) error { return spmd.Scan(c, dst, src, z.op) }
		z.wants(dst, func(i int) float64 { return z.reduced(0, z.me+1, i) })
	case "ExScan":
		z.issue = func(c spmd.Comm) error { return spmd.ExScan(c, dst, src, z.op) }
		if z.me == 0 {
			z.wants(dst, before)
		} else {
			z.wants(dst, func(i int) float64 { return z.reduced(0, z.me, i) })
		}
	}
}

// message makes a message to the next rank and from the one before: one call, or two of a group.
func (z *fuzzer[T]) message(n int, two bool) {
	to, from := (z.me+1)%z.size, (z.me+z.size-1)%z.size
	src, dst := z.buffer(n, func(i int) float64 { return z.value(z.me, i) }), z.buffer(n, nil)
	z.wants(dst, func(i int) float64 { return z.value(from, i) })
	z.issue = func(c spmd.Comm) error { return spmd.SendRecv(c, dst, from, src, to) }
	if two {
		z.issue = func(c spmd.Comm) error { return errors.Join(spmd.Send(c, src, to), spmd.Recv(c, dst, from)) }
	}
}

func (z *fuzzer[T]) allToAll(n int, inPlace bool) {
	src := z.buffer(n*z.size, func(i int) float64 { return z.value(z.me, i) })
	dst := src
	if !inPlace {
		dst = z.buffer(n*z.size, nil)
	}
	z.issue = func(c spmd.Comm) error { return spmd.AllToAll(c, dst, src) }
	z.wants(dst, func(i int) float64 { return z.value(i/n, z.me*n+i%n) })
}

// allToAllV makes rank a send b as many elements as a table says.
func (z *fuzzer[T]) allToAllV(r *rand.Rand) {
	table := make([][]int, z.size)
	for a := range table {
		for range z.size {
			table[a] = append(table[a], fuzzLengths[r.IntN(len(fuzzLengths)-1)])
		}
	}
	var recv []int
	var from, at []int // of each element that arrives: its rank, and its place there
	for a := range table {
		recv = append(recv, table[a][z.me])
		before := 0
		for _, k := range table[a][:z.me] {
			before += k
		}
		for i := range table[a][z.me] {
			from, at = append(from, a), append(at, before+i)
		}
	}
	sent := 0
	for _, k := range table[z.me] {
		sent += k
	}
	src, dst := z.buffer(sent, func(i int) float64 { return z.value(z.me, i) }), z.buffer(len(from), nil)
	z.issue = func(c spmd.Comm) error { return spmd.AllToAllV(c, dst, src, recv, table[z.me]) }
	z.wants(dst, func(i int) float64 { return z.value(from[i], at[i]) })
}

// parts makes a call in which each rank has a part of a whole.
func (z *fuzzer[T]) parts(kind string, counts []int, vector bool, root int, inPlace bool) {
	off := make([]int, z.size+1)
	for i, k := range counts {
		off[i+1] = off[i] + k
	}
	all, own, lo := off[z.size], counts[z.me], off[z.me]
	owner := func(i int) (rank, at int) { // of an element of the whole
		for off[rank+1] <= i {
			rank++
		}
		return rank, i - off[rank]
	}
	gathered := func(i int) float64 { return z.value(owner(i)) }
	atRoot := z.me == root
	switch kind {
	case "AllGather", "Gather":
		has := kind == "AllGather" || atRoot
		var dst, src spmd.Buffer[T]
		if has {
			dst = z.buffer(all, nil)
			z.wants(dst, gathered)
		}
		if has && inPlace {
			src = dst.Slice(lo, lo+own)
			for i := range own {
				src.Set(i, z.num.of(z.value(z.me, i)))
			}
		} else {
			src = z.buffer(own, func(i int) float64 { return z.value(z.me, i) })
		}
		z.issue = func(c spmd.Comm) error {
			switch {
			case kind == "AllGather" && vector:
				return spmd.AllGatherV(c, dst, src, counts)
			case kind == "AllGather":
				return spmd.AllGather(c, dst, src)
			case vector:
				return spmd.GatherV(c, dst, src, counts, root)
			}
			return spmd.Gather(c, dst, src, root)
		}
	case "ReduceScatter", "Scatter":
		var dst, src spmd.Buffer[T]
		has := kind == "ReduceScatter" || atRoot
		if has {
			src = z.buffer(all, func(i int) float64 { return z.value(z.me, i) })
		}
		if has && inPlace {
			dst = src.Slice(lo, lo+own)
		} else {
			dst = z.buffer(own, nil)
		}
		want := func(i int) float64 { return z.value(root, lo+i) }
		if kind == "ReduceScatter" {
			want = func(i int) float64 { return z.reduced(0, z.size, lo+i) }
		}
		z.wants(dst, want)
		z.issue = func(c spmd.Comm) error {
			switch {
			case kind == "ReduceScatter" && vector:
				return spmd.ReduceScatterV(c, dst, src, counts, z.op)
			case kind == "ReduceScatter":
				return spmd.ReduceScatter(c, dst, src, z.op)
			case vector:
				return spmd.ScatterV(c, dst, src, counts, root)
			}
			return spmd.Scatter(c, dst, src, root)
		}
	}
}

// TestFuzzFindsAWrongElement: the comparison sees wrong elements.
func TestFuzzFindsAWrongElement(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		z := &fuzzer[int32]{fuzzCall: &fuzzCall{}, w: w, size: 1, num: plain[int32]()}
		z.same("AllReduce", 5, 0, true)
		must(t, z.issue(w.Comm()))
		for _, check := range z.check {
			must(t, check())
		}
		z.seed++
		if z.check[1]() == nil {
			t.Error("another result counts as the same")
		}
	})
}
