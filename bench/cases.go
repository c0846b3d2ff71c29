package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"lockstep/spmd"
)

// operation is one collective as the sweep measures it.
type operation struct {
	name  string
	nccl  string // nccl-tests' program for it, if there is one
	parts bool   // the elements are divided among the ranks
	// bus is bus bandwidth over algorithm bandwidth on n ranks.
	// Source: nccl-tests, doc/PERFORMANCE.md and the GetBw functions of src/*.cu; it has no ping-pong, which moves a
	// message from one rank to another as sendrecv does.
	bus      func(n int) float64
	places   []bool // whether it works in place
	modifies bool   // in place, a second call gives something else than the first
	least    int    // ranks that it needs
}

func whole(int) float64    { return 1 }
func others(n int) float64 { return float64(n-1) / float64(n) }

var (
	outOfPlace = []bool{false}
	either     = []bool{false, true}
	inPlace    = []bool{true}
)

// operations are all collectives of the sweep. allreduce to scatter are named as MPI does, less the prefix.
var operations = []operation{
	{"allreduce", "all_reduce_perf", false, func(n int) float64 { return 2 * others(n) }, either, true, 1},
	{"reduce", "reduce_perf", false, whole, either, true, 1},
	{"broadcast", "broadcast_perf", false, whole, inPlace, false, 1},
	{"allgather", "all_gather_perf", true, others, either, false, 1},
	{"reducescatter", "reduce_scatter_perf", true, others, either, true, 1},
	{"alltoall", "alltoall_perf", true, others, either, true, 1},
	{"gather", "gather_perf", true, others, either, false, 1},
	{"scatter", "scatter_perf", true, others, either, false, 1},
	{"sendrecv", "sendrecv_perf", false, whole, outOfPlace, false, 1},
	{"pingpong", "", false, whole, outOfPlace, false, 2},
}

func operationNames() []string {
	var n []string
	for _, o := range operations {
		n = append(n, o.name)
	}
	return n
}

func operationOf(name string) (operation, error) {
	if i := slices.Index(operationNames(), name); i >= 0 {
		return operations[i], nil
	}
	return operation{}, fmt.Errorf("unknown operation %q: want %s", name, strings.Join(operationNames(), ", "))
}

// dtype is an element type of the sweep.
type dtype struct {
	name  string
	size  int
	exact int    // every whole number from 0 to this is exact in it, and none of them is number(-1)
	nccl  string // nccl-tests' name
	run   func(w *spmd.World, s *spmd.Stream, c kase, v variant, t times) (measured, error)
}

var dtypes = []dtype{
	{"float32", 4, 1 << 24, "float", measure[float32]},
	{"float64", 8, 1 << 53, "double", measure[float64]},
	{"float16", 2, 1 << 11, "half", measure[spmd.F16]},
	{"bfloat16", 2, 1 << 8, "bfloat16", measure[spmd.BF16]},
	{"int8", 1, 1<<7 - 1, "int8", measure[int8]},
	{"uint8", 1, 1<<8 - 2, "uint8", measure[uint8]}, // 255 is what untouched elements hold
	{"int32", 4, 1<<31 - 1, "int32", measure[int32]},
	{"uint32", 4, 1<<32 - 2, "uint32", measure[uint32]},
	{"int64", 8, 1 << 62, "int64", measure[int64]},
	{"uint64", 8, 1 << 62, "uint64", measure[uint64]},
}

func dtypeNames() []string {
	var n []string
	for _, t := range dtypes {
		n = append(n, t.name)
	}
	return n
}

func dtypeOf(name string) (dtype, error) {
	if i := slices.Index(dtypeNames(), name); i >= 0 {
		return dtypes[i], nil
	}
	return dtype{}, fmt.Errorf("unknown type %q: want %s", name, strings.Join(dtypeNames(), ", "))
}

// kase is one line of the sweep: a collective of a number of elements. All sides get the same ones, as
// op:dtype:elements:calls.
type kase struct {
	op       operation
	dtype    dtype
	elements int // of one rank's whole buffer
	calls    int // back to back in one timed iteration
}

func (c kase) String() string {
	return fmt.Sprintf("%s:%s:%d:%d", c.op.name, c.dtype.name, c.elements, c.calls)
}

func (c kase) bytes() int { return c.elements * c.dtype.size }

// parseCase reads what String wrote, for a number of ranks.
func parseCase(s string, ranks int) (kase, error) {
	bad := func(err error) (kase, error) { return kase{}, fmt.Errorf("--case %s: %w", s, err) }
	f := strings.Split(s, ":")
	if len(f) != 4 {
		return bad(fmt.Errorf("want op:dtype:elements:calls"))
	}
	var c kase
	var err error
	if c.op, err = operationOf(f[0]); err != nil {
		return bad(err)
	}
	if c.dtype, err = dtypeOf(f[1]); err != nil {
		return bad(err)
	}
	for i, n := range []*int{&c.elements, &c.calls} {
		if *n, err = strconv.Atoi(f[2+i]); err != nil || *n < 1 {
			return bad(fmt.Errorf("%q is no positive number", f[2+i]))
		}
	}
	switch {
	case c.op.parts && c.elements%ranks != 0:
		return bad(fmt.Errorf("%d elements do not divide by %d ranks", c.elements, ranks))
	case ranks < c.op.least:
		return bad(fmt.Errorf("needs %d ranks, not %d", c.op.least, ranks))
	case ranks > c.dtype.exact:
		return bad(fmt.Errorf("sums over %d ranks are not exact", ranks))
	}
	return c, nil
}

// fitted is how many elements of the given bytes a collective moves on n ranks: where they are divided, parts are
// cut to a multiple of 16 bytes, as nccl-tests does, and smaller ones to whole elements. It is 0 where a rank would
// have none.
// Source: nccl-tests, the GetCollByteCount functions of src/*.cu.
func fitted(op operation, t dtype, bytes, n int) int {
	if !op.parts {
		return bytes / t.size
	}
	part := bytes / n / t.size
	if unit := 16 / t.size; part >= unit {
		part -= part % unit
	}
	return part * n
}

// cases are the lines of a sweep on n ranks, for what works on so many; calls are those of a timed iteration at a size.
func cases(ops []operation, types []dtype, sizes []int, n int, calls func(bytes int) int) []kase {
	var all []kase
	for _, op := range ops {
		for _, t := range types {
			if n < op.least || n > t.exact {
				continue
			}
			last := 0
			for _, bytes := range sizes {
				c := kase{op: op, dtype: t, elements: fitted(op, t, bytes, n), calls: calls(bytes)}
				if c.elements > last {
					all = append(all, c)
					last = c.elements
				}
			}
		}
	}
	return all
}

// byteSize is a flag's number of bytes, such as 8B, 64KiB, 1GiB or 4096.
type byteSize int

// mostBytes keeps sums and products of sizes far from overflow.
const mostBytes = 1 << 40

var units = []struct {
	name  string
	bytes int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// Set reads a size.
func (b *byteSize) Set(s string) error {
	number, unit := s, 1
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			number, unit = n, u.bytes
			break
		}
	}
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil || n < 1 || n > mostBytes/unit {
		return fmt.Errorf("want a number of bytes from 1 to 1024GiB, such as 8B, 64KiB, 16MiB or 1GiB")
	}
	*b = byteSize(n * unit)
	return nil
}

// String writes it in the largest unit that leaves no remainder.
func (b *byteSize) String() string { return sizeText(int(*b)) }

// Type names it in a usage text.
func (b *byteSize) Type() string { return "bytes" }

func sizeText(bytes int) string {
	for _, u := range units {
		if bytes%u.bytes == 0 && bytes >= u.bytes {
			return strconv.Itoa(bytes/u.bytes) + u.name
		}
	}
	return strconv.Itoa(bytes) + "B"
}

// sizes are from, from*factor and so on, up to to.
func sizes(from, to, factor int) ([]int, error) {
	switch {
	case factor < 2:
		return nil, fmt.Errorf("--factor %d: must be at least 2", factor)
	case to < from:
		return nil, fmt.Errorf("--to %s: is less than --from %s", sizeText(to), sizeText(from))
	}
	all := []int{from}
	for last := from; last <= to/factor; {
		last *= factor
		all = append(all, last)
	}
	return all, nil
}

// choice is a flag that may be off, on or both.
type choice []bool

// Set reads one of the three words.
func (c *choice) Set(s string) error {
	switch s {
	case "off":
		*c = choice{false}
	case "on":
		*c = choice{true}
	case "both":
		*c = choice{false, true}
	default:
		return fmt.Errorf("want off, on or both")
	}
	return nil
}

// String writes the word that Set reads.
func (c *choice) String() string {
	switch {
	case len(*c) > 1:
		return "both"
	case len(*c) == 1 && (*c)[0]:
		return "on"
	}
	return "off"
}

// Type names it in a usage text.
func (c *choice) Type() string { return "off|on|both" }
