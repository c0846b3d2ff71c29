package measure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"lockstep/spmd"
)

// DType is an element type of the sweep.
type DType struct {
	Name  string
	Size  int
	exact int    // whole numbers from 0 to this are exact, and none is number(-1)
	NCCL  string // nccl-tests' name
	run   func(w *spmd.World, s *spmd.Stream, c Case, v variant, t times) (Measured, error)
}

// DTypes are the element types that a sweep knows.
var DTypes = []DType{
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

// DTypeNames returns the values of --types.
func DTypeNames() []string {
	var n []string
	for _, t := range DTypes {
		n = append(n, t.Name)
	}
	return n
}

// DTypeOf returns the type of a name.
func DTypeOf(name string) (DType, error) {
	if i := slices.Index(DTypeNames(), name); i >= 0 {
		return DTypes[i], nil
	}
	return DType{}, fmt.Errorf("unknown type %q: want %s", name, strings.Join(DTypeNames(), ", "))
}

// Case is one line of the sweep: a collective of a number of elements. All sides get the same
// cases, as op:dtype:elements:calls.
type Case struct {
	Op       Operation
	DType    DType
	Elements int // of one rank's whole buffer
	Calls    int // back to back in one timed iteration
}

func (c Case) String() string {
	return fmt.Sprintf("%s:%s:%d:%d", c.Op.Name, c.DType.Name, c.Elements, c.Calls)
}

// Bytes returns the size of a rank's larger buffer.
func (c Case) Bytes() int { return c.Elements * c.DType.Size }

// parseCase reads what String wrote, for a number of ranks.
func parseCase(s string, ranks int) (Case, error) {
	bad := func(err error) (Case, error) { return Case{}, fmt.Errorf("--case %s: %w", s, err) }
	f := strings.Split(s, ":")
	if len(f) != 4 {
		return bad(fmt.Errorf("want op:dtype:elements:calls"))
	}
	var c Case
	var err error
	if c.Op, err = OperationOf(f[0]); err != nil {
		return bad(err)
	}
	if c.DType, err = DTypeOf(f[1]); err != nil {
		return bad(err)
	}
	for i, n := range []*int{&c.Elements, &c.Calls} {
		if *n, err = strconv.Atoi(f[2+i]); err != nil || *n < 1 {
			return bad(fmt.Errorf("%q is no positive number", f[2+i]))
		}
	}
	switch {
	case c.Op.divides && c.Elements%ranks != 0:
		return bad(fmt.Errorf("%d elements do not divide by %d ranks", c.Elements, ranks))
	case ranks < c.Op.least:
		return bad(fmt.Errorf("needs %d ranks, not %d", c.Op.least, ranks))
	case ranks > c.DType.exact:
		return bad(fmt.Errorf("sums over %d ranks are not exact", ranks))
	}
	return c, nil
}

// fitted returns how many elements of the given bytes a collective moves on n ranks, or 0 if a
// rank would have none. If they are divided, parts are cut to a multiple of 16 bytes, as in
// nccl-tests, and smaller ones to whole elements. Source: nccl-tests, the GetCollByteCount
// functions of src/*.cu.
func fitted(op Operation, t DType, bytes, n int) int {
	if !op.divides {
		return bytes / t.Size
	}
	part := bytes / n / t.Size
	if unit := 16 / t.Size; part >= unit {
		part -= part % unit
	}
	return part * n
}

// Cases returns the lines of a sweep on n ranks, for the operations that work on so many. calls
// returns the calls of a timed iteration at a size.
func Cases(ops []Operation, types []DType, sizes []int, n int, calls func(bytes int) int) []Case {
	var all []Case
	for _, op := range ops {
		for _, t := range types {
			if n < op.least || n > t.exact {
				continue
			}
			last := 0
			for _, bytes := range sizes {
				c := Case{Op: op, DType: t, Elements: fitted(op, t, bytes, n), Calls: calls(bytes)}
				if c.Elements > last {
					all = append(all, c)
					last = c.Elements
				}
			}
		}
	}
	return all
}

// Sizes returns from, from*factor and so on, up to to.
func Sizes(from, to, factor int) ([]int, error) {
	switch {
	case factor < 2:
		return nil, fmt.Errorf("--factor %d: must be at least 2", factor)
	case to < from:
		return nil, fmt.Errorf("--to %s: is less than --from %s", SizeText(to), SizeText(from))
	}
	all := []int{from}
	for last := from; last <= to/factor; {
		last *= factor
		all = append(all, last)
	}
	return all, nil
}

// Choice is a flag that may be off, on or both.
type Choice []bool

// Set reads one of the words off, on and both.
func (c *Choice) Set(s string) error {
	switch s {
	case "off":
		*c = Choice{false}
	case "on":
		*c = Choice{true}
	case "both":
		*c = Choice{false, true}
	default:
		return fmt.Errorf("want off, on or both")
	}
	return nil
}

// String writes the word that Set reads.
func (c *Choice) String() string {
	switch {
	case len(*c) > 1:
		return "both"
	case len(*c) == 1 && (*c)[0]:
		return "on"
	}
	return "off"
}

// Type returns its name in a usage text.
func (c *Choice) Type() string { return "off|on|both" }

// CaseArgs returns the arguments that pass cases to a rank.
func CaseArgs(list []Case) []string {
	var args []string
	for _, c := range list {
		args = append(args, "--case="+c.String())
	}
	return args
}

// These are the defaults on the host, and on GPUs, where an iteration is longer.
const (
	HostIters, HostWarmup = 20, 5
	GPUIters, GPUWarmup   = 4, 1
	HostGoal, GPUGoal     = 1.05, 1.03
)

// Ours is the name of this framework's side.
const Ours = "lockstep"
