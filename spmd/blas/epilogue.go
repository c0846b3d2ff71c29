package blas

import (
	"fmt"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// The operands of an epilogue, in the order of their arguments; behind them are the scales of A and
// B.
const (
	bias = iota
	residual
	gelu
	dgelu
	biasGrad
	rowSums
	epilogueArgs
)

var epilogueNames = [...]string{"Bias", "Residual", "GELU", "DGELU", "BiasGrad", "RowSums", "ScaleA", "ScaleB"}

// operands is the set of the operands that there are.
type operands uint8

const (
	hasBias operands = 1 << iota
	hasResidual
	hasGELU
	hasDGELU
	hasBiasGrad
	hasRowSums
)

// extended reports whether there is more to do than a plain product.
func (o *Options) extended() bool {
	return o.Bias != spmd.Arg{} || o.Residual != spmd.Arg{} || o.GELU != spmd.Arg{} ||
		o.DGELU != spmd.Arg{} || o.BiasGrad != spmd.Arg{} || o.RowSums != spmd.Arg{} ||
		o.ScaleA != spmd.Arg{} || o.ScaleB != spmd.Arg{}
}

// batches reports whether a batch may have the epilogue.
func (o *Options) batches() bool {
	plain := *o
	plain.Residual = spmd.Arg{}
	return !plain.extended()
}

// epilogue enters the operands, and the scales, in args, in all and in p, a product whose shape is
// settled.
func epilogue[C Elem](
	p *product, o *Options, c Matrix[C], args *[gemmArgs]spmd.Arg, all *[gemmOperands]library.Operand,
) error {
	given := [...]spmd.Arg{o.Bias, o.Residual, o.GELU, o.DGELU, o.BiasGrad, o.RowSums, o.ScaleA, o.ScaleB}
	for i := range given {
		a := &given[i]
		if *a == (spmd.Arg{}) {
			continue
		}
		if i >= epilogueArgs {
			b, ok := library.BufferOf[float32](*a)
			if !p.typ.Eight() || !ok || b.Len() != 1 {
				return fmt.Errorf("%s: blas.Gemm: %s is %v, with A and B of %v: it is a buffer of 1 float32, "+
					"for 8-bit floats", ccall.At(), epilogueNames[i], a.String(), p.typ)
			}
			p.scales[i-epilogueArgs] = true
			args[plainArgs+i], all[3+i] = *a, library.Reads(epilogueNames[i], b)
			continue
		}
		p.ops |= 1 << i
		b, ok := library.BufferOf[C](*a)
		want, matrix := p.n, false
		switch i {
		case residual, gelu, dgelu:
			want, matrix = c.extent(), true
			if ok && b.Len() < want {
				return fmt.Errorf("%s: blas.Gemm: %s has %d elements, %dx%d with rows %d apart, as C's, needs %d",
					ccall.At(), epilogueNames[i], b.Len(), p.batch*p.m, p.n, p.ldc, want)
			}
			b = b.Slice(0, min(want, b.Len()))
		case rowSums:
			want = p.m
		}
		if !ok || b.Len() != want {
			return fmt.Errorf("%s: blas.Gemm: %s is %v, for this C it is a buffer of %d %v", ccall.At(),
				epilogueNames[i], a.String(), want, p.ctyp)
		}
		args[plainArgs+i], all[3+i] = b.Arg(), library.Reads(epilogueNames[i], b)
		if i == gelu || i == biasGrad || i == rowSums {
			all[3+i] = library.Writes(epilogueNames[i], b)
		}
		if matrix {
			all[3+i] = inRows(all[3+i], &c)
		}
	}
	if p.ops != 0 && !p.ops.possible(o.Accumulate) {
		return fmt.Errorf("%s: blas.Gemm: %v%s: an epilogue is Bias, Residual, or both; Bias with Accumulate; "+
			"GELU, with or without Bias; "+
			"DGELU, with or without BiasGrad; or RowSums, with or without Accumulate", ccall.At(), p.ops,
			map[bool]string{true: " with Accumulate"}[o.Accumulate])
	}
	return nil
}

// possible reports whether the operands go together.
func (ops operands) possible(accumulate bool) bool {
	switch ops {
	case hasBias, hasRowSums:
		return true
	case hasResidual, hasBias | hasResidual, hasGELU, hasBias | hasGELU, hasDGELU, hasDGELU | hasBiasGrad:
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

// extent returns the number of elements from the first to the last of a matrix whose rows are ld
// apart.
func extent(rows, cols, ld int) int {
	if rows == 0 || cols == 0 {
		return 0
	}
	return (rows-1)*ld + cols
}

func hostEpilogue[C float32 | float64 | spmd.BF16 | spmd.F16](p *product, args spmd.Args) host.Epilogue[C] {
	of := func(i int) []C {
		if p.ops&(1<<i) == 0 {
			return nil
		}
		return spmd.ArgSlice[C](args, plainArgs+i)
	}
	return host.Epilogue[C]{Bias: of(bias), Residual: of(residual), GELU: of(gelu), DGELU: of(dgelu),
		BiasGrad: of(biasGrad), RowSums: of(rowSums)}
}
