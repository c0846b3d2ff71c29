package vector

import (
	_ "embed"
	"strconv"
	"sync"
	"unsafe"

	"lockstep/spmd"
	"lockstep/spmd/library"
)

//go:embed scan.cu
var scanSource string

// shape is the division of a scan into tiles, as chain.cuh says.
type shape struct{ threads, rounds, group int }

// Scans of few elements take one block.
const smallBlock, smallItems = 1024, 16

// scanner scans vectors of a type.
type scanner struct {
	shape
	bytes                int
	clear, tiles, single *spmd.Kernel
	library              *library.Function
}

// Chosen on an H100: for scans, and for other passes over elements.
var (
	full  = shape{threads, 8, 32}
	other = shape{threads, 4, 32}
)

// scanners are in the order of Number. A sum of integers has the same bits with and without a sign.
var scanners = []*scanner{newScanner[int32](full), newScanner[uint32](full), newScanner[int64](full),
	newScanner[uint64](full), newScanner[float32](full), newScanner[float64](full)}

func newScanner[T Number](p shape) *scanner {
	source := chainSource + scanSource
	name := cTypes[typeOf[T]()]
	if name[0] == 'i' {
		name = "u" + name
	}
	flags := []string{"-DROUNDS=" + strconv.Itoa(p.rounds), "-DGROUP=" + strconv.Itoa(p.group)}
	c := &scanner{shape: p, bytes: int(unsafe.Sizeof(*new(T)))}
	c.clear = device("clear_words", source, flags...)
	c.tiles = device("scan<"+name+">", source, flags...)
	c.single = device("scan_small<"+name+">", source, flags...)
	kept := sync.Pool{New: func() any { return new(hostScan[T]) }}
	c.library = library.New("scan", c.onGPU, func(a spmd.Args) error {
		h := kept.Get().(*hostScan[T])
		defer kept.Put(h)
		h.scan(p, spmd.ArgSlice[T](a, 0), spmd.ArgSlice[T](a, 1), spmd.ArgSlice[T](a, 3), a.Bool(4))
		return nil
	}, c.clear, c.tiles, c.single).OnlyKernels().Writes(0b1)
	return c
}

// tile returns the number of elements that a block scans.
func (p *shape) tile(bytes int) int { return p.threads * p.rounds * 16 / bytes }

// words returns the workspace of a scan of n elements.
func (c *scanner) words(n int) int {
	if n <= smallBlock*smallItems {
		return 0
	}
	return chained(over(n, c.tile(c.bytes)), c.group, c.bytes)
}

func (c *scanner) onGPU(call library.Call) error {
	n := call.I64(2)
	words := c.words(n)
	if words == 0 {
		g := spmd.Grid{Blocks: [3]int{1, 1, 1}, Threads: [3]int{smallBlock, 1, 1}}
		return call.Launch(c.single, g, call.Args[0], call.Args[1], call.Args[2], call.Args[3], call.Args[4])
	}
	if err := call.Launch(c.clear, clearGrid(call, words, threads), call.WorkspaceArg(), spmd.I64(words)); err != nil {
		return err
	}
	tiles := over(n, c.tile(c.bytes))
	return call.Launch(c.tiles, after(tiles, 0), call.Args[0], call.Args[1], call.Args[2], call.Args[3],
		call.Args[4], call.WorkspaceArg(), spmd.I64(tiles))
}

// A sum is inclusive if element i is part of the i-th, and exclusive if only those before it are.
const inclusive, exclusive = false, true

// scannable refuses operands of other lengths, and those that overlap.
func scannable[T Number](op string, dst, x, before spmd.Buffer[T]) error {
	if err := same(op, dst, x); err != nil {
		return err
	}
	return library.Apart(op, library.Writes("dst", dst), library.Reads("x", x).MayBe(0),
		library.Writes("before", before))
}

func scan[T Number](op string, s *spmd.Stream, c *scanner, dst, x, first spmd.Buffer[T], exclusive bool) error {
	if err := scannable(op, dst, x, first); err != nil || x.Len() == 0 {
		return err
	}
	return c.library.Call(s, 8*c.words(x.Len()), dst.Arg(), x.Arg(), spmd.I64(x.Len()), first.Arg(),
		spmd.Bool(exclusive))
}

// Scan enqueues dst[i] = x[0] + ... + x[i], in T. dst may be x. As NumPy's cumsum, and MPI_Scan
// over elements.
func Scan[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return scan("vector.Scan", s, scanners[typeOf[T]()], dst, x, spmd.Buffer[T]{}, inclusive)
}

// ExScan enqueues dst[i] = x[0] + ... + x[i-1], in T, and dst[0] = 0. dst may be x.
func ExScan[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return scan("vector.ExScan", s, scanners[typeOf[T]()], dst, x, spmd.Buffer[T]{}, exclusive)
}

// scan does the work of scan.cu. Floats are added in its order.
func (h *hostScan[T]) scan(p shape, dst, x, first []T, exclusive bool) {
	var before T
	if len(first) > 0 {
		before = first[0]
	}
	if T(1)/2 == 0 { // integers: their order does not matter
		for i, v := range x {
			after := before + v
			dst[i] = after
			if exclusive {
				dst[i] = before
			}
			before = after
		}
		return
	}
	bytes := int(unsafe.Sizeof(before))
	h.each, h.rounds, h.exclusive, h.warps = 16/bytes, p.rounds, exclusive, h.all[:p.threads/32]
	defer func() { h.x = nil }()
	if len(x) <= smallBlock*smallItems {
		h.warps, h.rounds = h.all[:], bytes
		h.tile(x)
		h.write(dst, before)
		return
	}
	var tiles, groups [32]T // the sums of the tiles of a group, and of a field
	tile := p.tile(bytes)
	for t := 0; t*tile < len(x); t++ {
		lo, hi := t*tile, min((t+1)*tile, len(x))
		inGroup, inField := t%p.group, t/p.group%p.group
		sum := h.tile(x[lo:hi])
		earlier := lanesSum(tiles, inGroup)
		all := (before + lanesSum(groups, inField)) + earlier
		h.write(dst[lo:hi], all)
		tiles[inGroup] = sum
		if inGroup == p.group-1 {
			groups[inField] = earlier + sum
			if inField == p.group-1 {
				before = all + sum
			}
		}
	}
}

// lanesSum is warp_sum of the first n values.
func lanesSum[T Number](v [32]T, n int) T {
	clear(v[n:])
	for d := 16; d > 0; d /= 2 {
		for l := range d {
			v[l] += v[l+d]
		}
	}
	return v[0]
}

// hostScan is the state of scan_block. It is kept from one scan to another.
type hostScan[T Number] struct {
	each, rounds int
	exclusive    bool
	all          [smallBlock / 32]warpScan[T]
	warps        []warpScan[T] // of a tile
	x            []T
}

type warpScan[T Number] struct {
	before T         // of the tile
	base   [16][32]T // by rounds and lanes
}

// tile returns the sum of a tile, and prepares for write.
func (h *hostScan[T]) tile(x []T) (all T) {
	h.x = x
	for w := range h.warps {
		from := &h.warps[w]
		from.before = all
		var sum T
		for r := range h.rounds {
			start := (w*h.rounds + r) * 32 * h.each
			var upto [32]T
			for l := range upto {
				upto[l] = h.part(start + l*h.each)[h.each-1]
			}
			for d := 1; d < 32; d *= 2 {
				for l := 31; l >= d; l-- {
					upto[l] = upto[l-d] + upto[l]
				}
			}
			from.base[r][0] = sum + 0
			for l := 1; l < 32; l++ {
				from.base[r][l] = sum + upto[l-1]
			}
			sum += upto[31]
		}
		all += sum
	}
	return all
}

// part returns the scan of a lane's elements from i on.
func (h *hostScan[T]) part(i int) (v [4]T) {
	for k := range h.each {
		if i+k < len(h.x) {
			v[k] = h.x[i+k]
		}
		if k > 0 {
			v[k] = v[k-1] + v[k]
		}
	}
	return v
}

// write scans the tile; all is the sum before it. dst may be its elements.
func (h *hostScan[T]) write(dst []T, all T) {
	for i := 0; i < len(dst); i += h.each {
		lane, round := i/h.each%32, i/h.each/32
		from := &h.warps[round/h.rounds]
		add := (all + from.before) + from.base[round%h.rounds][lane]
		v := h.part(i)
		for k := range min(h.each, len(dst)-i) {
			switch {
			case !h.exclusive:
				dst[i+k] = add + v[k]
			case k == 0:
				dst[i] = add
			default:
				dst[i+k] = add + v[k-1]
			}
		}
	}
}
