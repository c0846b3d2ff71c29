package blas

import (
	_ "embed"
	"errors"
	"sync"
	"sync/atomic"

	"lockstep/cuda/cublas"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// handle has a world's libraries and memory for products.
type handle struct {
	w          *spmd.World
	gemm, gemv *library.Function
	names      names

	// Fields for a GPU:
	mu      sync.Mutex
	lt      *cublas.Lt
	gv      *cublas.Handle
	hasLt   atomic.Bool
	hasGemv atomic.Bool
	chosen  []tunedShape                               // by Tune, on rank 0
	said    [1 << epilogueArgs][elem.Types]atomic.Bool // which epilogues the log has mentioned
}

var handles = library.PerWorld[handle]{Open: newHandle}

func newHandle(w *spmd.World) *handle {
	h := &handle{w: w}
	h.gemm = library.New("Gemm", h.gpuGemm, hostGemm, allKernels()...).Describe(h.describeGemm).
		Writes(1<<argC | 1<<(plainArgs+gelu) | 1<<(plainArgs+biasGrad) | 1<<(plainArgs+rowSums))
	h.gemv = library.New("Gemv", h.gpuGemv, hostGemv).Describe(h.describeGemv).Writes(1 << argC)
	library.AtClose(w, h.close)
	return h
}

// close ends the use of cuBLAS. Streams and graphs are closed already.
func (h *handle) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if h.lt != nil {
		err = h.lt.Close()
	}
	if h.gv != nil {
		err = errors.Join(err, h.gv.Close())
	}
	return err
}

// openGemm opens cuBLASLt on a GPU, at the first product.
func (h *handle) openGemm() error {
	return h.open(&h.hasLt, func() (err error) { h.lt, err = cublas.OpenLt(library.GPU(h.w)); return err })
}

// openGemv opens cuBLAS on a GPU, at the first product.
func (h *handle) openGemv() error {
	return h.open(&h.hasGemv, func() (err error) { h.gv, err = cublas.Open(library.GPU(h.w)); return err })
}

// open calls fn on a GPU until it has succeeded once.
func (h *handle) open(done *atomic.Bool, fn func() error) error {
	if h.w.OnHost() || done.Load() {
		return nil
	}
	if err := library.Quiet(h.w); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if done.Load() {
		return nil
	}
	err := fn()
	done.Store(err == nil)
	return err
}

// ownWorkspace is the size that NVIDIA recommends for cuBLAS on Hopper; other architectures need
// less.
const ownWorkspace = 32 << 20

// gpuGemv runs a Gemv by cuBLAS, whose handle serves one stream at a time.
func (h *handle) gpuGemv(c library.Call) error {
	p := decode(c.Args)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.gv.SetWorkspace(c.Workspace, c.Bytes); err != nil {
		return err
	}
	return h.gv.Gemv(c.Stream, p.typ, p.ta, p.m, p.n, p.alpha, c.Pointer(argA), p.lda, c.Pointer(argB),
		p.beta, c.Pointer(argC))
}

//go:embed epilogue.cu
var epilogueSource string

// The kernels of epilogue.cu, by the type of C or, for sums, of the summed matrix.
var (
	finishKernels  = kernelsOf("gemm_finish<", "", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	columnKernels  = kernelsOf("gemm_columns<", "", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	totalKernels   = kernelsOf("gemm_columns_total<", "", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	rowKernels     = kernelsOf("gemm_rows<", ",", elem.Float32, elem.Float64, elem.BFloat16, elem.Float16)
	rowWideKernels = kernelsOf("gemm_rows<float, ", "", elem.BFloat16, elem.Float16) // sums in float32
)

// kernelsOf declares the instances of a template for some types; with again for the
// type twice.
func kernelsOf(name, again string, types ...elem.Type) (list [elem.Types]*spmd.Kernel) {
	for _, t := range types {
		c := map[elem.Type]string{elem.Float32: "float", elem.Float64: "double", elem.BFloat16: "bf16",
			elem.Float16: "f16"}[t]
		args := c
		if again != "" {
			args += again + " " + c
		}
		list[t] = spmd.NewKernel(name+args+">", epilogueSource, func(spmd.Args) error {
			return errors.New("a kernel of Gemm on GPUs: the host has its own way")
		})
	}
	return list
}

// allKernels are the kernels that stand behind products.
func allKernels() (all []*spmd.Kernel) {
	for _, list := range [...]*[elem.Types]*spmd.Kernel{&finishKernels, &columnKernels, &totalKernels,
		&rowKernels, &rowWideKernels} {
		for _, k := range list {
			if k != nil {
				all = append(all, k)
			}
		}
	}
	return all
}

// The work of gemm_finish beside adding the bias.
const (
	addBias = iota
	applyGELU
	applySlope
)

// rowKernel sums rows of typ into ctyp.
func rowKernel(typ, ctyp elem.Type) *spmd.Kernel {
	if typ == ctyp {
		return rowKernels[typ]
	}
	return rowWideKernels[typ]
}

// inLibrary returns the epilogues that cuBLASLt is asked for, one after the other until it has one.
// Its gelu is approximate: it is asked only if the type of C does not show that. Its sums
// (DGELU_BGRAD, BGRADB) are slower than the kernels here, threefold in the product that GPT-2 has
// them in.
func (p *product) inLibrary() (list [2]cublas.Epilogue, n int) {
	e := cublas.NoEpilogue
	switch half := p.ctyp.Half(); {
	case p.ops&hasGELU != 0 && p.ops&hasBias != 0 && half:
		e = cublas.BiasGELU
	case p.ops&hasGELU != 0 && half:
		e = cublas.GELU
	case p.ops&hasDGELU != 0 && half:
		e = cublas.DGELU
	case p.ops&(hasBias|hasGELU) == hasBias:
		e = cublas.Bias
	default:
		return list, 1
	}
	return [...]cublas.Epilogue{e, cublas.NoEpilogue}, 2
}

// inProduct returns the part of an epilogue that cuBLASLt does; it reads a residual in any case.
func inProduct(e cublas.Epilogue) operands {
	return hasResidual | [...]operands{cublas.NoEpilogue: 0, cublas.Bias: hasBias, cublas.GELU: hasGELU,
		cublas.BiasGELU: hasBias | hasGELU, cublas.DGELU: hasDGELU}[e]
}

// gpuGemm runs a Gemm by cuBLASLt, and by kernels behind it for the rest.
func (h *handle) gpuGemm(c library.Call) error {
	p := decode(c.Args)
	g := cublas.Gemm{M: p.m, N: p.n, K: p.k, Count: p.batch, TransA: p.ta, TransB: p.tb, LdA: p.lda,
		LdB: p.ldb, LdC: p.ldc,
		AB: p.typ, C: p.ctyp, Alpha: p.alpha, Beta: p.beta, FastAccum: p.fast}
	dst, a, b := c.Pointer(argC), c.Pointer(argA), c.Pointer(argB)
	var x cublas.Beside
	if p.scales[0] {
		x.ScaleA = c.Pointer(argScaleA)
	}
	if p.scales[1] {
		x.ScaleB = c.Pointer(argScaleB)
	}
	if p.ops == 0 {
		return h.lt.GemmBeside(c.Stream, &g, &x, dst, a, b, c.Workspace, ownWorkspace)
	}
	if p.ops&hasResidual != 0 {
		x.Add, g.Beta = c.Pointer(plainArgs+residual), 1
	}
	list, n := p.inLibrary()
	for i := range n {
		g.Epilogue = list[i]
		has := inProduct(g.Epilogue) & p.ops
		x.Bias, x.Aux = nil, nil
		if has&hasBias != 0 {
			x.Bias = c.Pointer(plainArgs + bias)
		}
		switch {
		case has&hasGELU != 0:
			x.Aux = c.Pointer(plainArgs + gelu)
		case has&hasDGELU != 0:
			x.Aux = c.Pointer(plainArgs + dgelu)
		}
		switch err := h.lt.GemmBeside(c.Stream, &g, &x, dst, a, b, c.Workspace, ownWorkspace); {
		case err == cublas.ErrNoEpilogue:
			continue
		case err != nil || p.ops == has:
			return err
		}
		h.sayBehind(&p, p.ops&^has, i > 0)
		return p.finish(c, p.ops&^has)
	}
	panic("blas: a product without an epilogue was refused as one with")
}

// finish does the rest of an epilogue by kernels behind the product.
func (p *product) finish(c library.Call, left operands) error {
	rows, cols, ld := spmd.I64(p.m), spmd.I64(p.n), spmd.I64(p.ldc)
	if left&(hasBias|hasGELU|hasDGELU) != 0 && p.m > 0 && p.n > 0 {
		none := spmd.Buffer[float32]{}.Arg()
		what, x, b := addBias, none, none
		if left&hasBias != 0 {
			b = c.Args[plainArgs+bias]
		}
		switch {
		case left&hasGELU != 0:
			what, x = applyGELU, c.Args[plainArgs+gelu]
		case left&hasDGELU != 0:
			what, x = applySlope, c.Args[plainArgs+dgelu]
		}
		units := p.n * p.ctyp.Size() / 16
		grid := spmd.Grid{Blocks: [3]int{max(1, min((units+127)/128, 1<<16)), min(p.m, 1<<15), 1},
			Threads: [3]int{128, 1, 1}}
		err := c.Launch(finishKernels[p.ctyp], grid, c.Args[argC], x, b, rows, cols, ld, spmd.I32(what))
		if err != nil {
			return err
		}
	}
	switch {
	case left&hasBiasGrad != 0:
		return sumColumns(c, plainArgs+biasGrad, p.ctyp, p.ctyp, argC, p.m, p.n, p.ldc)
	case left&hasRowSums != 0 && p.ta:
		return sumColumns(c, plainArgs+rowSums, p.typ, p.ctyp, argA, p.k, p.m, p.lda)
	case left&hasRowSums != 0 && p.m > 0:
		grid := spmd.Grid{Blocks: [3]int{min(p.m, 1<<20), 1, 1}, Threads: [3]int{256, 1, 1}}
		return c.Launch(rowKernel(p.typ, p.ctyp), grid, c.Args[plainArgs+rowSums], c.Args[argA], rows,
			spmd.I64(p.k), spmd.I64(p.lda))
	}
	return nil
}

// sumColumns sums the columns of argument x(rows, cols) of typ into argument sum of ctyp, by way of
// the workspace.
func sumColumns(c library.Call, sum int, typ, ctyp elem.Type, x, rows, cols, ld int) error {
	if cols == 0 {
		return nil
	}
	tile := 32 * 16 / typ.Size()
	if uintptr(c.Pointer(x))%16 != 0 || cols*typ.Size()%16 != 0 || ld*typ.Size()%16 != 0 {
		tile = 32
	}
	// Enough blocks to fill a GPU, each with some rows, and their parts within the workspace.
	tiles := (cols + tile - 1) / tile
	parts := max(1, min((rows+31)/32, max(16, 1024/tiles), ownWorkspace/(8*cols)))
	grid := spmd.Grid{Blocks: [3]int{min(tiles, 1<<20), parts, 1}, Threads: [3]int{256, 1, 1}}
	if err := c.Launch(columnKernels[typ], grid, c.WorkspaceArg(), c.Args[x], spmd.I64(rows),
		spmd.I64(cols), spmd.I64(ld)); err != nil {
		return err
	}
	grid = spmd.Grid{Blocks: [3]int{min((cols+31)/32, 1<<20), 1, 1}, Threads: [3]int{256, 1, 1}}
	return c.Launch(totalKernels[ctyp], grid, c.Args[sum], c.WorkspaceArg(), spmd.I64(parts), spmd.I64(cols))
}

// workspace returns the scratch memory of a product.
func (p *product) workspace() int {
	n := ownWorkspace
	if p.ops&hasBiasGrad != 0 {
		n = max(n, 8*p.n)
	}
	if p.ops&hasRowSums != 0 {
		n = max(n, 8*p.m)
	}
	return n
}

// sayBehind logs, once for each epilogue and type, the part of it that is not done in the product.
// refused says that cuBLASLt was asked for more.
func (h *handle) sayBehind(p *product, left operands, refused bool) {
	if h.said[p.ops][p.ctyp].Swap(true) {
		return
	}
	log, why := h.w.Log().Debug(), "as is fastest"
	switch {
	case refused:
		log, why = h.w.Log().Info(), "cuBLASLt does not take it for these types, sizes and addresses"
	case left&(hasGELU|hasDGELU) != 0:
		why = "cuBLASLt's is approximate"
	}
	log.Str("epilogue", left.String()).Stringer("type", p.ctyp).Ints("shape", []int{p.m, p.n, p.k}).
		Str("why", why).Msg("Gemm: kernels behind the product")
}
