package spmd

import (
	_ "embed"
	"errors"
	"unsafe"

	"lockstep/cuda/cublas"
	"lockstep/internal/elem"
)

//go:embed epilogue.cu
var epilogueSource string

// The kernels of epilogue.cu, by the type of C or, for sums, of what is summed.
var (
	finishKernels  = kernelsOf("gemm_finish<", "", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	columnKernels  = kernelsOf("gemm_columns<", "", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	totalKernels   = kernelsOf("gemm_columns_total<", "", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	rowKernels     = kernelsOf("gemm_rows<", ",", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	rowWideKernels = kernelsOf("gemm_rows<float, ", "", elem.BFloat16, elem.Float16) // sums in float32
)

// kernelsOf declares the instances of a template for some types; with again for the
// type twice.
func kernelsOf(name, again string, types ...elem.Type) (list [elem.Types]*Kernel) {
	for _, t := range types {
		c := map[elem.Type]string{elem.Float32: "float", elem.Float64: "double", elem.BFloat16: "bf16", elem.Float16: "f16"}[t]
		args := c
		if again != "" {
			args += again + " " + c
		}
		list[t] = NewKernel(name+args+">", epilogueSource, func(Args) error {
			return errors.New("a kernel of Gemm on GPUs: the host has its own way")
		})
	}
	return list
}

// What gemm_finish does beside adding the bias.
const (
	addBias = iota
	applyGELU
	applySlope
)

// epilogueKernels are those that c may need; nil where there are less.
func (c *command) epilogueKernels() (list [3]*Kernel) {
	g := &c.gemm
	switch {
	case g.ops == 0 || g.ops == opResidual:
	case g.ops&opRowSums == 0:
		list[0] = finishKernels[g.ctyp]
		if g.ops&opBiasGrad != 0 {
			list[1], list[2] = columnKernels[g.ctyp], totalKernels[g.ctyp]
		}
	case g.ta:
		list[0], list[1] = columnKernels[c.Type], totalKernels[g.ctyp]
	default:
		list[0] = rowKernel(c.Type, g.ctyp)
	}
	return list
}

func rowKernel(typ, ctyp elem.Type) *Kernel {
	if typ == ctyp {
		return rowKernels[typ]
	}
	return rowWideKernels[typ]
}

// inLibrary is what cuBLASLt is asked for, one after the other until it has one: what
// it may do of the epilogue, or nothing. Its gelu is approximate: it is asked only where
// the type of C does not show that. Its sums (DGELU_BGRAD, BGRADB) are slower than the
// kernels here, threefold in the product that GPT-2 has them in.
func (g *gemm) inLibrary() (list [2]cublas.Epilogue, n int) {
	e := cublas.NoEpilogue
	switch half := g.ctyp.Half(); {
	case g.ops&opGELU != 0 && g.ops&opBias != 0 && half:
		e = cublas.BiasGELU
	case g.ops&opGELU != 0 && half:
		e = cublas.GELU
	case g.ops&opDGELU != 0 && half:
		e = cublas.DGELU
	case g.ops&(opBias|opGELU) == opBias:
		e = cublas.Bias
	default:
		return list, 1
	}
	return [...]cublas.Epilogue{e, cublas.NoEpilogue}, 2
}

// inProduct is what of an epilogue is done by cuBLASLt; it reads a residual in any case.
func inProduct(e cublas.Epilogue) operands {
	return opResidual | [...]operands{cublas.NoEpilogue: 0, cublas.Bias: opBias, cublas.GELU: opGELU, cublas.BiasGELU: opBias | opGELU,
		cublas.DGELU: opDGELU}[e]
}

// gemm runs a queued Gemm by cuBLASLt, and what cuBLASLt does not do by kernels behind it.
func (g *gpu) gemm(q *gpuQueue, c *command, args []Arg, work unsafe.Pointer) error {
	m := &c.gemm
	p := cublas.Gemm{M: m.m, N: m.cols, K: m.k, TransA: m.ta, TransB: m.tb, LdA: m.lda, LdB: m.ldb, LdC: m.ldc,
		AB: c.Type, C: m.ctyp, Alpha: m.alpha, Beta: m.beta, FastAccum: m.fast}
	var x cublas.Beside
	if m.scales[0] {
		x.ScaleA = args[argScaleA].ptr
	}
	if m.scales[1] {
		x.ScaleB = args[argScaleB].ptr
	}
	if m.ops == 0 {
		return g.lt.GemmBeside(q.h, &p, &x, c.Dst, c.Src, m.third, work, gemmWorkspace)
	}
	if m.ops&opResidual != 0 {
		x.Add, p.Beta = args[argResidual].ptr, 1
	}
	list, n := m.inLibrary()
	for i := range n {
		p.Epilogue = list[i]
		has := inProduct(p.Epilogue) & m.ops
		x.Bias, x.Aux = nil, nil
		if has&opBias != 0 {
			x.Bias = args[argBias].ptr
		}
		switch {
		case has&opGELU != 0:
			x.Aux = args[argGELU].ptr
		case has&opDGELU != 0:
			x.Aux = args[argDGELU].ptr
		}
		switch err := g.lt.GemmBeside(q.h, &p, &x, c.Dst, c.Src, m.third, work, gemmWorkspace); {
		case err == cublas.ErrNoEpilogue:
			continue
		case err != nil || m.ops == has:
			return err
		}
		g.sayBehind(q.s.w, c, m.ops&^has, i > 0)
		return g.finish(q, c, args, work, m.ops&^has)
	}
	panic("spmd: a product without an epilogue was refused as one with")
}

// finish does what is left of an epilogue by kernels behind the product.
func (g *gpu) finish(q *gpuQueue, c *command, args []Arg, work unsafe.Pointer, left operands) error {
	m := &c.gemm
	rows, cols, ld := I64(m.m), I64(m.cols), I64(m.ldc)
	pointer := func(p unsafe.Pointer) Arg { return Arg{ptr: p, kind: bufferArg} }
	if left&(opBias|opGELU|opDGELU) != 0 && m.m > 0 && m.cols > 0 {
		what, x, bias := addBias, Arg{kind: bufferArg}, Arg{kind: bufferArg}
		if left&opBias != 0 {
			bias = args[argBias]
		}
		switch {
		case left&opGELU != 0:
			what, x = applyGELU, args[argGELU]
		case left&opDGELU != 0:
			what, x = applySlope, args[argDGELU]
		}
		list := [...]Arg{pointer(c.Dst), x, bias, rows, cols, ld, I32(what)}
		units := m.cols * m.ctyp.Size() / 16
		grid := Grid{Blocks: [3]int{max(1, min((units+127)/128, 1<<16)), min(m.m, 1<<15), 1}, Threads: [3]int{128, 1, 1}}
		if err := q.launch(finishKernels[m.ctyp], grid, list[:]); err != nil {
			return err
		}
	}
	switch {
	case left&opBiasGrad != 0:
		return g.sumColumns(q, args[argBiasGrad], m.ctyp, m.ctyp, c.Dst, m.m, m.cols, m.ldc, work)
	case left&opRowSums != 0 && m.ta:
		return g.sumColumns(q, args[argRowSums], c.Type, m.ctyp, c.Src, m.k, m.m, m.lda, work)
	case left&opRowSums != 0 && m.m > 0:
		list := [...]Arg{args[argRowSums], pointer(c.Src), rows, I64(m.k), I64(m.lda)}
		return q.launch(rowKernel(c.Type, m.ctyp), Grid{Blocks: [3]int{min(m.m, 1<<20), 1, 1}, Threads: [3]int{256, 1, 1}}, list[:])
	}
	return nil
}

// sumColumns sums the columns of x(rows, cols) of typ into sum of ctyp, by way of work.
func (g *gpu) sumColumns(q *gpuQueue, sum Arg, typ, ctyp elem.Type, x unsafe.Pointer, rows, cols, ld int, work unsafe.Pointer) error {
	if cols == 0 {
		return nil
	}
	tile := 32 * 16 / typ.Size()
	if uintptr(x)%16 != 0 || cols*typ.Size()%16 != 0 || ld*typ.Size()%16 != 0 {
		tile = 32
	}
	// Enough blocks to fill a GPU, each with some rows, and their parts within the workspace.
	tiles := (cols + tile - 1) / tile
	parts := max(1, min((rows+31)/32, max(16, 1024/tiles), gemmWorkspace/(8*cols)))
	mem := Arg{ptr: work, kind: bufferArg}
	list := [...]Arg{mem, {ptr: x, kind: bufferArg}, I64(rows), I64(cols), I64(ld)}
	grid := Grid{Blocks: [3]int{min(tiles, 1<<20), parts, 1}, Threads: [3]int{256, 1, 1}}
	if err := q.launch(columnKernels[typ], grid, list[:]); err != nil {
		return err
	}
	total := [...]Arg{sum, mem, I64(parts), I64(cols)}
	return q.launch(totalKernels[ctyp], Grid{Blocks: [3]int{min((cols+31)/32, 1<<20), 1, 1}, Threads: [3]int{256, 1, 1}}, total[:])
}

// workspace is the scratch memory of a product.
func (g *gemm) workspace() int {
	n := gemmWorkspace
	if g.ops&opBiasGrad != 0 {
		n = max(n, 8*g.cols)
	}
	if g.ops&opRowSums != 0 {
		n = max(n, 8*g.m)
	}
	return n
}

// sayBehind logs once for each epilogue and type what of it is not done in the product;
// refused says that cuBLASLt was asked for more.
func (g *gpu) sayBehind(w *World, c *command, left operands, refused bool) {
	m := &c.gemm
	if g.said[m.ops][m.ctyp].Swap(true) {
		return
	}
	log, why := w.Log.Debug(), "as is fastest"
	switch {
	case refused:
		log, why = w.Log.Info(), "cuBLASLt does not take it for these types, sizes and addresses"
	case left&(opGELU|opDGELU) != 0:
		why = "cuBLASLt's is approximate"
	}
	log.Str("epilogue", left.String()).Stringer("type", m.ctyp).Ints("shape", []int{m.m, m.cols, m.k}).
		Str("why", why).Msg("Gemm: kernels behind the product")
}
