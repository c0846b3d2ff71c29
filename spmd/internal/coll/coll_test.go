package coll

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// The collectives of MPI 3.1, chapters 3 and 5, with a part of 4 elements or of 1, 2 and 3, on 3
// ranks with root 1. Each row has the elements of recvbuf and sendbuf on ranks 0, 1 and 2, the
// place of the in-place form as recvbuf minus sendbuf in elements on rank 2, and the standard's
// other words on it.
const nowhere = 99

var standard = []struct {
	kind             Kind
	recv, send       [3]int
	place            int
	op, root, common bool
}{
	{AllReduce, [3]int{4, 4, 4}, [3]int{4, 4, 4}, 0, true, false, true},
	{Reduce, [3]int{0, 4, 0}, [3]int{4, 4, 4}, 0, true, true, true},
	{Broadcast, [3]int{4, 4, 4}, [3]int{0, 0, 0}, nowhere, false, true, true},
	{AllGather, [3]int{12, 12, 12}, [3]int{4, 4, 4}, -8, false, false, true},
	{ReduceScatter, [3]int{4, 4, 4}, [3]int{12, 12, 12}, 8, true, false, true},
	{AllToAll, [3]int{12, 12, 12}, [3]int{12, 12, 12}, 0, false, false, true},
	{Gather, [3]int{0, 12, 0}, [3]int{4, 4, 4}, -8, false, true, true},
	{Scatter, [3]int{4, 4, 4}, [3]int{0, 12, 0}, 8, false, true, true},
	{AllGatherV, [3]int{6, 6, 6}, [3]int{1, 2, 3}, -3, false, false, true},
	{ReduceScatterV, [3]int{1, 2, 3}, [3]int{6, 6, 6}, 3, true, false, true},
	{GatherV, [3]int{0, 6, 0}, [3]int{1, 2, 3}, -3, false, true, true},
	{ScatterV, [3]int{1, 2, 3}, [3]int{0, 6, 0}, 3, false, true, true},
	{AllToAllV, [3]int{9, 9, 9}, [3]int{6, 6, 6}, nowhere, false, false, true},
	{Scan, [3]int{4, 4, 4}, [3]int{4, 4, 4}, 0, true, false, true},
	{ExScan, [3]int{0, 4, 4}, [3]int{4, 4, 4}, 0, true, false, true},
	{Send, [3]int{0, 0, 0}, [3]int{4, 4, 4}, nowhere, false, false, false},
	{Recv, [3]int{4, 4, 4}, [3]int{0, 0, 0}, nowhere, false, false, false},
	{SendRecv, [3]int{5, 5, 5}, [3]int{4, 4, 4}, nowhere, false, false, false},
	{Barrier, [3]int{}, [3]int{}, nowhere, false, false, true},
}

func TestTable(t *testing.T) {
	var mem [64]float32
	for i, row := range standard {
		if int(row.kind) != i+1 {
			t.Fatalf("row %d is %v", i, row.kind)
		}
		c := Call{Kind: row.kind, Type: elem.Float32, Root: 1, N: 4, RecvN: 5}
		if c.Kind.Traits().Lengths != Equal {
			c.N, c.Counts = 0, []int{1, 2, 3}
		}
		if c.Kind == AllToAllV {
			c.RecvCounts = []int{2, 3, 4}
		}
		for rank := range 3 {
			if dst, src := c.Extents(rank, 3); dst != row.recv[rank] || src != row.send[rank] {
				t.Errorf("%v, rank %d: writes %d and reads %d, want %d and %d", c.Kind, rank, dst, src,
					row.recv[rank], row.send[rank])
			}
		}
		for place := -12; place <= 12; place++ {
			c.Dst, c.Src = unsafe.Pointer(&mem[32+place]), unsafe.Pointer(&mem[32])
			if got := c.InPlace(2); got != (place == row.place) {
				t.Errorf("%v with dst %d elements behind src: in place %v", c.Kind, place, got)
			}
		}
		tr := c.Kind.Traits()
		if tr.Reduces != row.op || tr.Rooted != row.root || tr.Message == row.common {
			t.Errorf("%v: reduces %v, rooted %v, message %v", c.Kind, tr.Reduces, tr.Rooted, tr.Message)
		}
		if tr.Rooted && tr.FromRoot != slices.Contains([]Kind{Broadcast, Scatter, ScatterV}, c.Kind) {
			t.Errorf("%v: from the root: %v", c.Kind, tr.FromRoot)
		}
	}
	for k := None + 1; k < Kinds; k++ {
		if tr := k.Traits(); tr.Name == "" || tr.Own != (k >= Split && k <= End) || tr.Own && tr.Moves() {
			t.Errorf("kind %d: %+v", k, tr)
		}
	}
}

func TestString(t *testing.T) {
	for want, c := range map[string]Call{
		"AllReduce of 5 float32 (sum)":   {Kind: AllReduce, Type: elem.Float32, N: 5},
		"Reduce of 5 int8 (max, root 2)": {Kind: Reduce, Type: elem.Int8, Op: elem.Max, N: 5, Root: 2},
		"Gather of 0 uint64 (root 1)":    {Kind: Gather, Type: elem.Uint64, Root: 1},
		"ReduceScatterV of float64 (avg)": {Kind: ReduceScatterV, Type: elem.Float64,
			Op: elem.Avg, Counts: []int{1}},
		"AllToAllV of int32":          {Kind: AllToAllV, Type: elem.Int32},
		"Send of 3 int32 to rank 7":   {Kind: Send, Type: elem.Int32, N: 3, Root: 7},
		"Recv of 3 int32 from rank 7": {Kind: Recv, Type: elem.Int32, N: 3, Root: 7},
		"SendRecv of 3 int32 to rank 7, and from rank 8": {Kind: SendRecv, Type: elem.Int32, N: 3,
			RecvN: 9, Root: 7, From: 8},
		"Barrier":                 {Kind: Barrier, Type: elem.Uint8},
		"Close of a communicator": {Kind: CloseComm},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPeers(t *testing.T) {
	for kind, want := range map[Kind][2]int{Send: {7, -1}, Recv: {-1, 7}, SendRecv: {7, 8},
		Reduce: {-1, -1}, Barrier: {-1, -1}} {
		c := Call{Kind: kind, Root: 7, From: 8}
		if to, from := c.Peers(); to != want[0] || from != want[1] {
			t.Errorf("%v goes to %d and comes from %d, want %v", kind, to, from, want)
		}
	}
}

// libraries to decompose for: NCCL's calls, those of sockets, and one library that has all.
const most = 1<<Scan - 1<<AllReduce | 1<<Send | 1<<Recv | 1<<SendRecv | 1<<Barrier

var libraries = map[string]*Library{
	"NCCL's": {Kinds: SetOf(AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AllToAll, Send, Recv),
		Apart: SetOf(AllToAll)},
	"few":      {Kinds: SetOf(AllReduce, Reduce, Broadcast, Send, Recv)},
	"MPI's":    {Kinds: most},
	"no place": {Kinds: most, Apart: most},
}

// A world of ranks in one piece of Go. It makes steps as their definitions say: it copies first,
// and then has all other steps read before any writes.
type world struct {
	steps [][]Call
	late  []func()
}

func ints(p unsafe.Pointer, n int) []int64 { return unsafe.Slice((*int64)(p), n) }

func (w *world) write(dst unsafe.Pointer, values []int64) {
	values = slices.Clone(values)
	w.late = append(w.late, func() { copy(ints(dst, len(values)), values) })
}

func (w *world) run(t *testing.T) {
	sent := map[[2]int][][]int64{}
	var rest [][]Call
	for rank, steps := range w.steps {
		rest = append(rest, nil)
		others := false
		for _, s := range steps {
			switch to := [2]int{rank, int(s.Root)}; {
			case s.Kind.Traits().Local && others:
				t.Errorf("rank %d copies after %v", rank, steps[0].Kind)
			case s.Kind == Fill:
				for i := range s.N {
					ints(s.Dst, s.N)[i] = 0 // of a sum
				}
				continue
			case s.Kind == Copy:
				copy(ints(s.Dst, s.N), ints(s.Src, s.N))
				continue
			case s.Kind == Send:
				sent[to] = append(sent[to], slices.Clone(ints(s.Src, s.N)))
			case s.Kind == SendRecv:
				sent[to] = append(sent[to], slices.Clone(ints(s.Src, s.N)))
			case s.Kind != Recv:
				rest[rank] = append(rest[rank], s)
			}
			others = true
		}
	}
	take := func(rank, from int, dst unsafe.Pointer, n int) {
		k := [2]int{from, rank}
		if len(sent[k]) == 0 || len(sent[k][0]) != n {
			t.Fatalf("rank %d receives %d elements from %d, sent are %v", rank, n, from, sent[k])
		}
		w.write(dst, sent[k][0])
		sent[k] = sent[k][1:]
	}
	for rank, steps := range w.steps {
		for _, s := range steps {
			switch s.Kind {
			case Recv:
				take(rank, int(s.Root), s.Dst, s.N)
			case SendRecv:
				take(rank, int(s.From), s.Dst, s.RecvN)
			}
		}
	}
	for k, left := range sent {
		if len(left) > 0 {
			t.Errorf("%v: nobody receives %v", k, left)
		}
	}
	for i := range rest[0] {
		calls := make([]Call, len(rest))
		for r := range rest {
			if len(rest[r]) != len(rest[0]) || rest[r][i].Kind != rest[0][i].Kind ||
				rest[r][i].Root != rest[0][i].Root {
				t.Fatalf("rank %d makes %v, rank 0 %v", r, rest[r], rest[0])
			}
			calls[r] = rest[r][i]
		}
		w.together(t, calls)
	}
	for _, f := range w.late {
		f()
	}
}

// together makes a collective that all ranks have. It gives every rank all that MPI's definition
// says it gets.
func (w *world) together(t *testing.T, calls []Call) {
	size := len(calls)
	offset := func(c *Call, r int) (off, n int) {
		if c.Counts == nil {
			return r * c.N, c.N
		}
		for _, k := range c.Counts[:r] {
			off += k
		}
		return off, c.Counts[r]
	}
	sum := func(off, n int) []int64 {
		total := make([]int64, n)
		for r := range calls {
			for i, x := range ints(calls[r].Src, off+n)[off:] {
				total[i] += x
			}
		}
		return total
	}
	for rank := range calls {
		c := &calls[rank]
		at := func(p unsafe.Pointer, i int) unsafe.Pointer { return unsafe.Add(p, 8*i) }
		root := int(c.Root)
		switch c.Kind {
		case AllReduce:
			w.write(c.Dst, sum(0, c.N))
		case Reduce:
			if rank == root {
				w.write(c.Dst, sum(0, c.N))
			}
		case Broadcast:
			src := calls[root].Src
			if src == nil {
				src = calls[root].Dst
			}
			w.write(c.Dst, ints(src, c.N))
		case ReduceScatter, ReduceScatterV:
			w.write(c.Dst, sum(offset(c, rank)))
		case AllGather, AllGatherV, Gather, GatherV:
			for r := range size {
				if off, n := offset(c, r); c.Kind == AllGather || c.Kind == AllGatherV || rank == root {
					w.write(at(c.Dst, off), ints(calls[r].Src, n))
				}
			}
		case Scatter, ScatterV:
			off, n := offset(c, rank)
			w.write(c.Dst, ints(at(calls[root].Src, off), n))
		case AllToAll:
			for r := range size {
				w.write(at(c.Dst, r*c.N), ints(at(calls[r].Src, rank*c.N), c.N))
			}
		case AllToAllV:
			in := 0
			for r := range size {
				off, n := offset(&calls[r], rank)
				w.write(at(c.Dst, in), ints(at(calls[r].Src, off), n))
				in += n
			}
		default:
			t.Fatalf("nobody makes a %v", c.Kind)
		}
	}
}

// tag is element i of rank r's data.
func tag(r, i int) int64 { return int64(1000*r + i + 1) }

// The steps of every call, for every library, have the effect of the call.
func TestSteps(t *testing.T) {
	for name, lib := range libraries {
		for _, size := range []int{1, 2, 3, 5} {
			for kind := AllReduce; kind < Barrier; kind++ {
				if kind == Send || kind == Recv {
					continue // of which a call has one side
				}
				for _, n := range []int{0, 1, 3} {
					for _, inPlace := range []bool{false, true} {
						if !inPlace || kind.Traits().InPlace != Apart {
							what := fmt.Sprintf("%v for %s library, %d ranks, %d elements, in place %v",
								kind, name, size, n, inPlace)
							t.Run(what, func(t *testing.T) { checkSteps(t, kind, lib, size, n, inPlace) })
						}
					}
				}
			}
		}
	}
}

func checkSteps(t *testing.T, kind Kind, lib *Library, size, n int, inPlace bool) {
	const room = 200
	var w world
	root := size - 1
	counts := make([]int, size)
	before := func(r int) (off int) { // elements ahead of those of rank r
		for _, k := range counts[:r] {
			off += k
		}
		return off
	}
	for r := range counts {
		counts[r] = n
		if kind.Traits().Lengths != Equal {
			counts[r] = n * r % 4
		}
	}
	total := before(size)
	pair := func(from, to int) int { return (from + 2*to) % 3 * n }
	dst, src := make([][]int64, size), make([][]int64, size)
	for rank := range size {
		dst[rank], src[rank] = make([]int64, room), make([]int64, room)
		for i := range room {
			dst[rank][i], src[rank][i] = -1, tag(rank, i)
		}
		c := Call{Kind: kind, Type: elem.Int64, Root: int32(root), N: n, RecvN: n}
		switch kind.Traits().Lengths {
		case Shared:
			c.N, c.Counts = 0, counts
		case Own:
			c.N, c.Counts, c.RecvCounts = 0, make([]int, size), make([]int, size)
			for r := range size {
				c.Counts[r], c.RecvCounts[r] = pair(rank, r), pair(r, rank)
			}
		}
		if kind == SendRecv {
			c.Root, c.From = int32((rank+1)%size), int32((rank+size-1)%size)
		}
		c.Dst, c.Src = unsafe.Pointer(&dst[rank][0]), unsafe.Pointer(&src[rank][0])
		if kind == Broadcast {
			c.Src = nil
			if rank == root {
				copy(dst[rank], src[rank][:n])
			}
		}
		if inPlace {
			switch kind {
			case AllReduce, Reduce, AllToAll, Scan, ExScan:
				dst[rank] = src[rank]
				c.Dst = c.Src
			case AllGather, AllGatherV, Gather, GatherV:
				if own := before(rank); kind == AllGather || kind == AllGatherV || rank == root {
					copy(dst[rank][own:], src[rank][:counts[rank]])
					c.Src = unsafe.Pointer(&dst[rank][own])
				}
			default:
				if own := before(rank); kind == ReduceScatter || kind == ReduceScatterV || rank == root {
					dst[rank] = src[rank][own:]
					c.Dst = unsafe.Pointer(&src[rank][own])
				}
			}
		}
		var steps []Call
		work := make([]int64, c.Scratch(rank, size, lib)/8+1)
		c.Steps(rank, size, lib, unsafe.Pointer(&work[0]), func(s Call) bool {
			if !s.Kind.Traits().Local && s.Kind != Send && s.Kind != Recv && !lib.Kinds.Has(s.Kind) {
				t.Fatalf("a step is %v", s.Kind)
			}
			steps = append(steps, s)
			return true
		})
		w.steps = append(w.steps, steps)
		stop := 0 // whoever wants no more steps gets none
		c.Steps(rank, size, lib, unsafe.Pointer(&work[0]), func(Call) bool { stop++; return false })
		if stop > 1 {
			t.Errorf("%d steps after the end", stop-1)
		}
	}
	w.run(t)
	for rank := range size {
		var want []int64
		sum := func(i int) (s int64) {
			for r := range size {
				s += tag(r, i)
			}
			return s
		}
		switch kind {
		case AllReduce, Reduce:
			for i := range n {
				want = append(want, sum(i))
			}
		case Scan, ExScan:
			last := rank
			if kind == ExScan {
				last--
			}
			for i := 0; i < n && last >= 0; i++ {
				want = append(want, 0)
				for r := range last + 1 {
					want[i] += tag(r, i)
				}
			}
		case Broadcast:
			want = src[root][:n]
		case ReduceScatter, ReduceScatterV:
			for i := range counts[rank] {
				want = append(want, sum(before(rank)+i))
			}
		case AllGather, AllGatherV, Gather, GatherV:
			for r := range size {
				for i := range counts[r] {
					want = append(want, tag(r, i))
				}
			}
		case Scatter, ScatterV:
			for i := range counts[rank] {
				want = append(want, tag(root, before(rank)+i))
			}
		case AllToAll:
			for r := range size {
				for i := range n {
					want = append(want, tag(r, rank*n+i))
				}
			}
		case AllToAllV:
			for r := range size {
				off := 0
				for q := range rank {
					off += pair(r, q)
				}
				for i := range pair(r, rank) {
					want = append(want, tag(r, off+i))
				}
			}
		case SendRecv:
			for i := range n {
				want = append(want, tag((rank+size-1)%size, i))
			}
		}
		if kind.Traits().Rooted && !kind.Traits().FromRoot && rank != root {
			want = nil
		}
		if got := dst[rank][:len(want)]; !slices.Equal(got, want) {
			t.Errorf("rank %d has %v, want %v", rank, got, want)
		}
		if !inPlace && total < room && dst[rank][len(want)] != -1 {
			t.Errorf("rank %d: %d is written behind the end", rank, dst[rank][len(want)])
		}
	}
}

func TestNoAllocation(t *testing.T) {
	var mem [8]float32
	c := Call{Kind: GatherV, Type: elem.Float32, Dst: unsafe.Pointer(&mem[0]), Src: unsafe.Pointer(&mem[7]),
		Counts: []int{1, 2, 1}}
	n := 0
	if a := testkit.Allocations(50, func() {
		c.Steps(0, 3, libraries["NCCL's"], nil, func(s Call) bool { n += s.N; return true })
	}); a != 0 || n == 0 {
		t.Errorf("%v allocations, %d elements", a, n)
	}
}
