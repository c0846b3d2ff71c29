package vector

import (
	_ "embed"
	"fmt"
	"sync"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

//go:embed sort.cu
var sortSource string

// As in sort.cu.
const (
	sorting   = 384 // threads of a block that sorts
	counting  = 512 // and of one that counts
	digits    = 256
	head      = 16
	countBits = 27
	turns     = (1<<(32-countBits) - 2) / 2 // launches between which words need not be cleared
)

// The kinds of keys.
const (
	unsigned = iota
	signed
	float
)

// sorter sorts keys of a size, with values of a size.
type sorter struct {
	block, tile, most  int // threads and keys of a block, and keys of a launch
	key, value         int // bytes
	clear, count, pass *spmd.Kernel
	library            *library.Function
}

// The pairs of a sorter.
const keysAlone, withValues = false, true

// sorters has sorters by the words of keys and of values.
var sorters = [2][3]*sorter{
	{newSorter[uint32, uint32](keysAlone, 0), newSorter[uint32, uint32](withValues, 0),
		newSorter[uint32, uint64](withValues, 0)},
	{newSorter[uint64, uint32](keysAlone, 0), newSorter[uint64, uint32](withValues, 0),
		newSorter[uint64, uint64](withValues, 0)},
}

// newSorter declares a sort. items is the number of keys of a thread; 0 leaves it to sort.cu.
func newSorter[K, V uint32 | uint64](pairs bool, items int) *sorter {
	c := &sorter{block: sorting, key: int(unsafe.Sizeof(*new(K)))}
	if pairs {
		c.value = int(unsafe.Sizeof(*new(V)))
	}
	var options spmd.KernelOptions
	if items > 0 {
		options.Flags = []string{fmt.Sprint("-DITEMS=", items)}
	} else if items = 16; max(c.key, c.value) == 8 {
		items = 10
	} else if pairs {
		items = 20
	}
	c.tile = sorting * items
	c.most = (1<<countBits - 1) / c.tile * c.tile
	c.clear = spmd.NewKernel("clear_words", sortSource, nil, options)
	c.count = spmd.NewKernel(fmt.Sprintf("count_digits<uint%d_t>", 8*c.key), sortSource, nil, options)
	c.pass = spmd.NewKernel(fmt.Sprintf("sort_pass<uint%d_t, uint%d_t, %v>", 8*c.key, 8*unsafe.Sizeof(*new(V)), pairs),
		sortSource, nil, options)
	kept := sync.Pool{New: func() any { return new(scratch[K, V]) }}
	c.library = library.New("sort", c.onGPU, func(a spmd.Args) error {
		m := kept.Get().(*scratch[K, V])
		defer kept.Put(m)
		m.onHost(spmd.ArgSlice[K](a, 0), spmd.ArgSlice[K](a, 1), spmd.ArgSlice[V](a, 2),
			spmd.ArgSlice[V](a, 3), a.I32(5))
		return nil
	}, c.clear, c.count, c.pass).OnlyKernels().Writes(0b101)
	return c
}

// words returns how many words of 8 bytes a sort of n keys clears, and how many it has in all.
func (c *sorter) words(n int) (cleared, all int) {
	tiles := over(min(n, c.most), c.tile)
	cleared = head + 2*8*digits + tiles*digits/2
	return cleared, cleared + over(n*c.key, 8) + over(n*c.value, 8)
}

func (c *sorter) onGPU(call library.Call) error {
	n, kind := call.I64(4), call.Args[5]
	cleared, _ := c.words(n)
	work := call.WorkspaceArg()
	grid := func(blocks, threads int) spmd.Grid {
		return spmd.Grid{Blocks: [3]int{blocks, 1, 1}, Threads: [3]int{threads, 1, 1}, Programmatic: true}
	}
	if err := call.Launch(c.clear, clearGrid(call, cleared, digits), work, spmd.I64(0),
		spmd.I64(cleared)); err != nil {
		return err
	}
	if err := call.Launch(c.count, grid(max(1, min(over(n, 16*counting), 2*cores(call))), counting), work,
		call.Args[1], call.Args[4], kind); err != nil {
		return err
	}
	turn := 0
	for pass := range c.key {
		set := 0
		for begin := 0; begin < n; begin += c.most {
			if turn == turns {
				const places = 2 * 8 * digits // which are still needed
				if err := call.Launch(c.clear, clearGrid(call, cleared, digits), work,
					spmd.I64(places), spmd.I64(cleared)); err != nil {
					return err
				}
				turn = 0
			}
			count := min(c.most, n-begin)
			if err := call.Launch(c.pass, grid(over(count, c.tile), c.block), call.Args[0], call.Args[1],
				call.Args[2], call.Args[3], work,
				spmd.I64(cleared), call.Args[4], kind, spmd.I32(pass), spmd.I64(begin), spmd.I64(count),
				spmd.I32(set), spmd.I32(turn)); err != nil {
				return err
			}
			set, turn = 1-set, turn+1
		}
	}
	return nil
}

// kindOf returns the kind of a type of keys.
func kindOf[K Number]() int {
	switch any(*new(K)).(type) {
	case int32, int64:
		return signed
	case float32, float64:
		return float
	}
	return unsigned
}

// Sort enqueues that dst has the elements of x from the smallest to the largest, as NumPy's sort.
// dst may be x. Among floats, -0 comes before 0, and NaNs come last, all as the same one.
//
// A sort takes workspace of the stream, a little more than the size of the keys and values.
func Sort[K Number](s *spmd.Stream, dst, x spmd.Buffer[K]) error {
	if err := fits("vector.Sort", "keys", dst, x); err != nil {
		return err
	}
	if err := library.Apart("vector.Sort", library.Writes("dst", dst), library.Reads("x", x).MayBe(0)); err != nil {
		return err
	}
	if unsafe.Sizeof(*new(K)) == 4 {
		none := spmd.Buffer[uint32]{}
		return enqueue(s, sorters[0][0], spmd.View[uint32](dst), spmd.View[uint32](x), none, none, kindOf[K]())
	}
	none := spmd.Buffer[uint32]{}
	return enqueue(s, sorters[1][0], spmd.View[uint64](dst), spmd.View[uint64](x), none, none, kindOf[K]())
}

// SortPairs enqueues that keysDst has keys from the smallest to the largest, and valuesDst the
// values in the order of their keys. Equal keys stay in their order, and so do all NaNs.
// Destinations may be the sources. With 0, 1, 2 ... as values it is NumPy's argsort.
func SortPairs[K, V Number](
	s *spmd.Stream, keysDst spmd.Buffer[K], valuesDst spmd.Buffer[V], keys spmd.Buffer[K], values spmd.Buffer[V],
) error {
	if err := fits("vector.SortPairs", "keys", keysDst, keys); err != nil {
		return err
	}
	if err := fits("vector.SortPairs", "values", valuesDst, values); err != nil {
		return err
	}
	if keys.Len() != values.Len() {
		return fmt.Errorf("%s: vector.SortPairs: %d values of %d keys", ccall.At(), values.Len(), keys.Len())
	}
	if err := library.Apart("vector.SortPairs", library.Writes("keysDst", keysDst),
		library.Writes("valuesDst", valuesDst), library.Reads("keys", keys).MayBe(0),
		library.Reads("values", values).MayBe(1)); err != nil {
		return err
	}
	if unsafe.Sizeof(*new(K)) == 4 {
		return pairs(s, sorters[0], spmd.View[uint32](keysDst), spmd.View[uint32](keys), valuesDst, values, kindOf[K]())
	}
	return pairs(s, sorters[1], spmd.View[uint64](keysDst), spmd.View[uint64](keys), valuesDst, values, kindOf[K]())
}

func pairs[K uint32 | uint64, V Number](
	s *spmd.Stream, by [3]*sorter, dst, x spmd.Buffer[K], valuesDst, values spmd.Buffer[V], kind int,
) error {
	if unsafe.Sizeof(*new(V)) == 4 {
		return enqueue(s, by[1], dst, x, spmd.View[uint32](valuesDst), spmd.View[uint32](values), kind)
	}
	return enqueue(s, by[2], dst, x, spmd.View[uint64](valuesDst), spmd.View[uint64](values), kind)
}

func enqueue[K, V uint32 | uint64](
	s *spmd.Stream, c *sorter, dst, x spmd.Buffer[K], valuesDst, values spmd.Buffer[V], kind int,
) error {
	n := x.Len()
	if n == 0 {
		return nil
	}
	_, words := c.words(n)
	return c.library.Call(s, 8*words, dst.Arg(), x.Arg(), valuesDst.Arg(), values.Arg(), spmd.I64(n), spmd.I32(kind))
}

// fits refuses a destination of another length.
func fits[T Number](op, what string, dst, x spmd.Buffer[T]) error {
	if dst.Len() != x.Len() {
		return fmt.Errorf("%s: %s: %d %s are sorted to %d", ccall.At(), op, x.Len(), what, dst.Len())
	}
	return nil
}
