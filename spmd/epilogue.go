package spmd

import (
	"fmt"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// The operands of an epilogue are the arguments of the command, in this order, then the
// scales of A and B; those that are absent are zero.
const (
	argBias = iota
	argResidual
	argGELU
	argDGELU
	argBiasGrad
	argRowSums
	epilogueArgs
	argScaleA = iota - 1
	argScaleB
	gemmArgs
)

var epilogueNames = [gemmArgs]string{"Bias", "Residual", "GELU", "DGELU", "BiasGrad", "RowSums", "ScaleA", "ScaleB"}

// operands is the set of those that are there.
type operands uint8

const (
	opBias operands = 1 << iota
	opResidual
	opGELU
	opDGELU
	opBiasGrad
	opRowSums
)

// extended says whether there is more to do than a plain product.
func (o *GemmOpt) extended() bool {
	return o.Bias != Arg{} || o.Residual != Arg{} || o.GELU != Arg{} || o.DGELU != Arg{} || o.BiasGrad != Arg{} || o.RowSums != Arg{} ||
		o.ScaleA != Arg{} || o.ScaleB != Arg{}
}

// epilogue returns the operands, and the scales, as arguments of c, a product whose shape
// is settled, and enters them in c.
func (o *GemmOpt) epilogue(c *command) (args [gemmArgs]Arg, err error) {
	g := &c.gemm
	args = [...]Arg{o.Bias, o.Residual, o.GELU, o.DGELU, o.BiasGrad, o.RowSums, o.ScaleA, o.ScaleB}
	for i := range args {
		a := &args[i]
		if *a == (Arg{}) {
			continue
		}
		if i >= epilogueArgs {
			if c.Type != elem.Float8E4M3 || a.kind != bufferArg || a.typ != elem.Float32 || a.n != 1 {
				return args, fmt.Errorf("%s: Gemm: %s is %v, with A and B of %v: it is a buffer of 1 float32, for %v", ccall.At(), epilogueNames[i], a.String(), c.Type, elem.Float8E4M3)
			}
			g.scales[i-argScaleA] = true
			continue
		}
		g.ops |= 1 << i
		want := g.cols
		switch i {
		case argResidual, argGELU, argDGELU:
			want = extent(g.m, g.cols, g.ldc)
			if a.kind == bufferArg && a.n < want {
				return args, fmt.Errorf("%s: Gemm: %s has %d elements, %dx%d with rows %d apart, as C's, needs %d",
					ccall.At(), epilogueNames[i], a.n, g.m, g.cols, g.ldc, want)
			}
			a.n = want
		case argRowSums:
			want = g.m
		}
		if a.kind != bufferArg || a.typ != g.ctyp || a.n != want {
			return args, fmt.Errorf("%s: Gemm: %s is %v, for this C it is a buffer of %d %v", ccall.At(), epilogueNames[i], a.String(), want, g.ctyp)
		}
	}
	if g.ops != 0 && !g.ops.possible(o.Accumulate) {
		return args, fmt.Errorf("%s: Gemm: %v%s: an epilogue is Bias, Residual, or both; Bias with Accumulate; GELU, with or without Bias; "+
			"DGELU, with or without BiasGrad; or RowSums, with or without Accumulate", ccall.At(), g.ops, map[bool]string{true: " with Accumulate"}[o.Accumulate])
	}
	return args, c.disjoint(&args)
}

// possible says whether the operands go together.
func (ops operands) possible(accumulate bool) bool {
	switch ops {
	case opBias, opRowSums:
		return true
	case opResidual, opBias | opResidual, opGELU, opBias | opGELU, opDGELU, opDGELU | opBiasGrad:
		return !accumulate
	}
	return false
}

func (ops operands) String() string {
	text := ""
	for i, name := range epilogueNames[:epilogueArgs] {
		if ops&(1<<i) != 0 {
			if text != "" {
				text += ", "
			}
			text += name
		}
	}
	return text
}

// extent is how many elements a matrix whose rows are ld apart spans.
func extent(rows, cols, ld int) int {
	if rows == 0 || cols == 0 {
		return 0
	}
	return (rows-1)*ld + cols
}

// region is memory that an operand of a product lies in.
type region struct {
	name  string
	at    unsafe.Pointer
	bytes int
	rows  bool // of C's shape, so that others of it may lie between its rows
}

// disjoint refuses a product that writes where it reads or writes something else.
func (c *command) disjoint(args *[gemmArgs]Arg) error {
	g := &c.gemm
	size, csize := c.Type.Size(), g.ctyp.Size()
	ra, ca, rb, cb := g.m, g.k, g.k, g.cols
	if g.ta {
		ra, ca = ca, ra
	}
	if g.tb {
		rb, cb = cb, rb
	}
	all := [3 + gemmArgs]region{
		{"C", c.Dst, extent(g.m, g.cols, g.ldc) * csize, true},
		{"A", c.Src, extent(ra, ca, g.lda) * size, false},
		{"B", g.third, extent(rb, cb, g.ldb) * size, false},
	}
	for i := range args {
		all[3+i] = region{epilogueNames[i], args[i].ptr, args[i].n * args[i].typ.Size(), i == argResidual || i == argGELU || i == argDGELU}
	}
	for _, w := range [...]int{0, 3 + argGELU, 3 + argBiasGrad, 3 + argRowSums} {
		for i := range all {
			if i != w && all[w].overlaps(&all[i], g.ldc*csize, g.cols*csize) {
				return fmt.Errorf("%s: Gemm: %s, which is written, overlaps %s", ccall.At(), all[w].name, all[i].name)
			}
		}
	}
	return nil
}

// overlaps says whether r and o share memory; stride and width are those of C, in bytes.
func (r *region) overlaps(o *region, stride, width int) bool {
	d := int(uintptr(o.at)) - int(uintptr(r.at))
	if r.bytes == 0 || o.bytes == 0 || d >= r.bytes || -d >= o.bytes {
		return false
	}
	if !r.rows || !o.rows {
		return true
	}
	d = ((d % stride) + stride) % stride
	return d < width || stride-d < width
}

// hostEpilogue is the epilogue of a queued product on the host.
func hostEpilogue[C float32 | float64 | BF16 | F16](c *command) host.Epilogue[C] {
	if c.gemm.ops == 0 {
		return host.Epilogue[C]{}
	}
	of := func(i int) []C {
		if c.gemm.ops&(1<<i) == 0 {
			return nil
		}
		return ArgSlice[C](Args{c.args}, i)
	}
	return host.Epilogue[C]{Bias: of(argBias), Residual: of(argResidual), GELU: of(argGELU), DGELU: of(argDGELU),
		BiasGrad: of(argBiasGrad), RowSums: of(argRowSums)}
}
