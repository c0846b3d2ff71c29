package blas

import (
	"lockstep/host"
	"lockstep/internal/elem"
	"lockstep/spmd"
)

// product is all that a Gemm or Gemv needs beside its operands.
type product struct {
	batch         int       // how many products
	typ, ctyp     elem.Type // of A, and of C; B has A's type, but is Float8E4M3 if A is Float8E5M2
	m, n, k       int       // C is (m, n), op(A) (m, k); for Gemv A is (m, n), before any transposition
	lda, ldb, ldc int
	ta, tb, fast  bool
	scales        [2]bool  // whether there is one of A, and of B
	ops           operands // which of an epilogue's operands there are
	alpha, beta   float64
}

// The arguments of a call. Those from the first operand of an epilogue on are left out if there is
// none; one that is absent among others is zero.
const (
	argC = iota // or y
	argA
	argB // or x
	argSet
	argM
	argN
	argK
	argLdA
	argLdB
	argLdC
	argAlpha
	argBeta
	plainArgs
	argScaleA = plainArgs + epilogueArgs
	argScaleB = argScaleA + 1
	gemmArgs  = argScaleB + 1

	gemmOperands = 3 + gemmArgs - plainArgs
)

// The bits of argSet, and the places of operands and types in it.
const (
	setTransA = 1 << iota
	setTransB
	setFast
	setScaleA
	setScaleB

	setOps, setTyp, setC, setBatch = 8, 16, 24, 32
)

// encode makes arguments of p.
func (p *product) encode(args *[gemmArgs]spmd.Arg) {
	set := uint64(p.ops)<<setOps | uint64(p.typ)<<setTyp | uint64(p.ctyp)<<setC | uint64(p.batch)<<setBatch
	for i, on := range [...]bool{p.ta, p.tb, p.fast, p.scales[0], p.scales[1]} {
		if on {
			set |= 1 << i
		}
	}
	args[argSet] = spmd.Scalar(set)
	for i, n := range [...]int{p.m, p.n, p.k, p.lda, p.ldb, p.ldc} {
		args[argM+i] = spmd.I64(n)
	}
	args[argAlpha], args[argBeta] = spmd.F64(p.alpha), spmd.F64(p.beta)
}

// decode undoes encode.
func decode(a spmd.Args) product {
	set := a.U64(argSet)
	return product{
		batch: int(set >> setBatch), typ: elem.Type(set >> setTyp & 0xff), ctyp: elem.Type(set >> setC & 0xff),
		m: a.I64(argM), n: a.I64(argN), k: a.I64(argK), lda: a.I64(argLdA), ldb: a.I64(argLdB), ldc: a.I64(argLdC),
		ta: set&setTransA != 0, tb: set&setTransB != 0, fast: set&setFast != 0,
		scales: [2]bool{set&setScaleA != 0, set&setScaleB != 0},
		ops:    operands(set >> setOps), alpha: a.F64(argAlpha), beta: a.F64(argBeta),
	}
}

func (p *product) scale(o *Options) {
	p.alpha = o.Alpha
	if o.Alpha == 0 {
		p.alpha = 1
	}
	if o.Accumulate {
		p.beta = 1
	}
}

// stored returns the rows and columns of A and B as they lie in memory.
func (p *product) stored() (rowsA, colsA, rowsB, colsB int) {
	rowsA, colsA, rowsB, colsB = p.m, p.k, p.k, p.n
	if p.ta {
		rowsA, colsA = colsA, rowsA
	}
	if p.tb {
		rowsB, colsB = colsB, rowsB
	}
	return
}

func hostGemm(a spmd.Args) error {
	switch p := decode(a); {
	case p.typ == elem.Float32:
		gemmAs(&p, a, host.GemmEpilogue[float32])
	case p.typ == elem.Float64:
		gemmAs(&p, a, host.GemmEpilogue[float64])
	case p.typ == elem.BFloat16 && p.ctyp == elem.Float32:
		gemmAs(&p, a, host.GemmHalf[float32, spmd.BF16])
	case p.typ == elem.BFloat16:
		gemmAs(&p, a, host.GemmHalf[spmd.BF16, spmd.BF16])
	case p.typ == elem.Float8E4M3:
		gemmAs(&p, a, host.GemmEightEpilogue[spmd.F8E4M3])
	case p.typ == elem.Float8E5M2:
		gemmAs(&p, a, host.GemmEightEpilogue[spmd.F8E5M2])
	case p.ctyp == elem.Float32:
		gemmAs(&p, a, host.GemmHalf[float32, spmd.F16])
	default:
		gemmAs(&p, a, host.GemmHalf[spmd.F16, spmd.F16])
	}
	return nil
}

// gemmAs calls do, which computes in S, on matrices of A, B and C.
func gemmAs[S float32 | float64, C float32 | float64 | spmd.BF16 | spmd.F16, A, B Elem](
	p *product, args spmd.Args, do func(ta, tb bool, m, n, k int, alpha S, a []A, lda int, b []B, ldb int,
		beta S, c []C, ldc int, e host.Epilogue[C]),
) {
	rowsA, colsA, rowsB, colsB := p.stored()
	alpha := S(p.alpha)
	for i, has := range p.scales {
		if has {
			alpha *= S(spmd.ArgSlice[float32](args, argScaleA+i)[0])
		}
	}
	a, b := matrixArg[A](args, argA, p.batch*rowsA, colsA, p.lda), matrixArg[B](args, argB, p.batch*rowsB, colsB, p.ldb)
	c, e := matrixArg[C](args, argC, p.batch*p.m, p.n, p.ldc), hostEpilogue[C](p, args)
	for i := range p.batch {
		one := e
		if one.Residual != nil {
			one.Residual = e.Residual[min(i*p.m*p.ldc, len(e.Residual)):]
		}
		do(p.ta, p.tb, p.m, p.n, p.k, alpha, a[min(i*rowsA*p.lda, len(a)):], p.lda,
			b[min(i*rowsB*p.ldb, len(b)):], p.ldb, S(p.beta), c[min(i*p.m*p.ldc, len(c)):], p.ldc, one)
	}
}

func hostGemv(a spmd.Args) error {
	if p := decode(a); p.typ == elem.Float32 {
		gemvAs[float32](&p, a)
	} else {
		gemvAs[float64](&p, a)
	}
	return nil
}

func gemvAs[T float32 | float64](p *product, args spmd.Args) {
	host.Gemv(p.ta, p.m, p.n, T(p.alpha), matrixArg[T](args, argA, p.m, p.n, p.lda), p.lda,
		spmd.ArgSlice[T](args, argB), T(p.beta), spmd.ArgSlice[T](args, argC))
}

// matrixArg returns the memory of a matrix whose rows are ld apart.
func matrixArg[T Elem](args spmd.Args, i, rows, cols, ld int) []T {
	return spmd.ArgSlice[T](args, i)[:extent(rows, cols, ld)]
}
