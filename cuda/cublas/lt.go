package cublas

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"unsafe"

	"lockstep/cuda"
)

var ltFiles = []string{"libcublasLt.so.13", "libcublasLt.so.12"}

var loadLt = sync.OnceValue(func() error {
	if _, err := openLtLibrary(ltFiles); err != nil {
		return unusable("cuBLASLt", err)
	}
	return nil
})

// unusable returns the error of a library that does not load, in one line though the loader has a
// reason for each file.
func unusable(library string, err error) error {
	return fmt.Errorf("cublas: %s cannot be used: %s", library, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// Lt multiplies matrices by cuBLASLt. It may be used from several goroutines and with several
// streams at once.
type Lt struct {
	d     *cuda.Device
	h     light        // nil once closed
	mu    sync.RWMutex // over what follows
	plans map[planKey]*product
	met   []Shape // in order, of those with a plan
}

// product is a plan with its changing parts.
type product struct {
	plan plan // nil if the library has no algorithm for this epilogue
	// over the plan while it is used: its algorithm may change, and the places of an epilogue's
	// operands
	mu sync.Mutex
}

// OpenLt loads cuBLASLt (of CUDA 12 or 13) if that has not happened, and opens it for a device.
// Source: cublasLt.h, cublasLtCreate.
func OpenLt(d *cuda.Device) (*Lt, error) {
	if err := loadLt(); err != nil {
		return nil, err
	}
	h, code := sysLtCreate(d.Bind())
	if code != 0 {
		return nil, check("cublasLtCreate", code, "")
	}
	return &Lt{d: d, h: h, plans: map[planKey]*product{}}, nil
}

// Close frees l; no product of l may be running. Further calls do nothing. Source: cublasLt.h,
// cublasLtDestroy.
func (l *Lt) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		return nil
	}
	var errs []error
	for _, p := range l.plans {
		if p.plan != nil {
			code, op := sysPlanFree(l.h, p.plan)
			errs = append(errs, check(op, code, ""))
		}
	}
	errs = append(errs, check("cublasLtDestroy", sysLtDestroy(l.h), ""))
	l.h, l.plans, l.met = nil, nil, nil
	return errors.Join(errs...)
}

// Gemm enqueues the product g on s. The types of A and B, and of C, are all float32, float64,
// bfloat16 or float16; or A and B are 16-bit floats and C is float32; or A is an 8-bit float, B
// Float8E4M3 and C bfloat16. The library takes the latter on GPUs from compute capability 8.9 on,
// with B transposed and A not. K, N and addresses must be multiples of 16.
//
// C of 16-bit floats takes no Beta but 0 and 1 if K or Alpha is 0. If Beta is not 0, it may be
// rounded twice.
//
// workspace is device memory of workspaceBytes bytes, aligned to 256, that the product may
// overwrite. Products that may run at the same time need one each. More of it allows faster
// algorithms: NVIDIA asks for 32 MiB on Hopper.
//
// The first product of a shape chooses its algorithm, which takes a fraction of a millisecond and
// may load code onto the device. Later ones with the same shape, strides, types, workspace size and
// alignments allocate nothing. Source: cublasLt.h, cublasLtMatmul, cublasLtMatmulAlgoGetHeuristic,
// cublasLtMatrixTransform.
func (l *Lt) Gemm(s *cuda.Stream, g *Gemm, c, a, b, workspace unsafe.Pointer, workspaceBytes int) error {
	return l.GemmBeside(s, g, &Beside{}, c, a, b, workspace, workspaceBytes)
}

// ErrNoEpilogue means that the library does not have the epilogue for a product of these types,
// sizes and alignments. Nothing was enqueued.
var ErrNoEpilogue = errors.New("cublas: the library does not have this epilogue for the product")

// GemmBeside is Gemm with the operands x of its epilogue. Beta may multiply another matrix than C.
// It returns ErrNoEpilogue itself if the library cannot do it; with nothing to multiply (K or Alpha
// is 0) it never can. Bias and Aux must be aligned to 16 bytes, and the rows of Aux too. Source:
// cublasLt.h, cublasLtEpilogue_t, cublasLtMatmulDescAttributes_t.
func (l *Lt) GemmBeside(
	s *cuda.Stream, g *Gemm, x *Beside, c, a, b, workspace unsafe.Pointer, workspaceBytes int,
) error {
	if !supported(g.AB, g.C) {
		return fmt.Errorf("cublas: Lt.Gemm: no product of %v with a result of %v", g.AB, g.C)
	}
	if err := g.check(c, a, b); err != nil {
		return err
	}
	if workspaceBytes < 0 || workspace == nil && workspaceBytes > 0 {
		return fmt.Errorf("cublas: Lt.Gemm: workspace of %d bytes at %p", workspaceBytes, workspace)
	}
	with := *x
	if with.Add == nil {
		with.Add = c
	}
	switch {
	case g.Epilogue != NoEpilogue && (g.empty() || g.scales() || !g.aligned(x)):
		return ErrNoEpilogue
	case g.empty():
		return nil
	case g.scales():
		return l.scale(s, g, c, with.Add)
	case !g.AB.Eight() && (g.FastAccum || x.ScaleA != nil || x.ScaleB != nil):
		return fmt.Errorf("cublas: Lt.Gemm: %s: scales, or fast sums, of A and B that are not 8-bit floats", g.String())
	case uintptr(x.ScaleA)%16 != 0 || uintptr(x.ScaleB)%16 != 0:
		return fmt.Errorf("cublas: Lt.Gemm: %s: scales at %p and %p: want addresses that are multiples of 16",
			g.String(), x.ScaleA, x.ScaleB)
	case g.Epilogue.bias() != (x.Bias != nil) || g.Epilogue.aux() != (x.Aux != nil):
		return fmt.Errorf("cublas: Lt.Gemm: %s: Bias at %p, Aux at %p", g.String(), x.Bias, x.Aux)
	}
	key := planKey{
		m: g.M, n: g.N, k: g.K, count: g.count(), lda: g.LdA, ldb: g.LdB, ldc: g.LdC,
		workspace: workspaceBytes, ab: g.AB, c: g.C,
		ta: g.TransA, tb: g.TransB, fast: g.FastAccum, scaleA: x.ScaleA != nil, scaleB: x.ScaleB != nil,
		epilogue: g.Epilogue, adds: g.Beta != 0, apart: g.Beta != 0 && x.Add != nil,
		alignA: alignment(a), alignB: alignment(b), alignC: alignment(c), alignAdd: alignment(with.Add),
	}
	if key.count > 1 {
		key.alignStacks()
	}
	l.mu.RLock()
	p := l.plans[key]
	l.mu.RUnlock()
	if p == nil {
		var err error
		if p, err = l.newPlan(key, g, &with); err != nil {
			return err
		}
	}
	if p.plan == nil {
		return ErrNoEpilogue
	}
	p.mu.Lock()
	code, op := sysMatmul(l.h, p.plan, s, g, &with, operands{c, a, b, workspace})
	p.mu.Unlock()
	if code != 0 {
		return check(op, code, g.String())
	}
	return nil
}

// aligned reports whether the operands of an epilogue lie as the library wants them.
func (g *Gemm) aligned(x *Beside) bool {
	const line = 16
	return uintptr(x.Bias)%line == 0 && uintptr(x.Aux)%line == 0 && (x.Aux == nil || g.LdC*g.C.Size()%line == 0)
}

// alignStacks takes the alignments of all matrices of each stack, which lie apart.
func (k *planKey) alignStacks() {
	rowsA, rowsB := k.m, k.k
	if k.ta {
		rowsA = k.k
	}
	if k.tb {
		rowsB = k.n
	}
	each := func(apart int) uint8 { return uint8(bits.TrailingZeros64(uint64(apart) | 256)) }
	k.alignA, k.alignB = min(k.alignA, each(rowsA*k.lda*k.ab.Size())), min(k.alignB, each(rowsB*k.ldb*k.ab.Size()))
	apart := each(k.m * k.ldc * k.c.Size())
	k.alignC, k.alignAdd = min(k.alignC, apart), min(k.alignAdd, apart)
}

// newPlan returns the plan of a key, which another goroutine may have made in the meantime.
func (l *Lt) newPlan(key planKey, g *Gemm, x *Beside) (*product, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		return nil, errClosed
	}
	if p := l.plans[key]; p != nil {
		return p, nil
	}
	var best [1]algorithm
	p, _, code, op := sysPlan(l.h, &key, x, best[:])
	if code == 0 && p == nil && g.Epilogue == NoEpilogue {
		code, op = int(ErrNotSupported), "cublasLtMatmulAlgoGetHeuristic"
	}
	if code != 0 {
		return nil, check(op, code, g.String())
	}
	l.plans[key] = &product{plan: p}
	if p != nil {
		l.met = append(l.met, Shape{key})
	}
	return l.plans[key], nil
}

// scale is C = Beta add.
func (l *Lt) scale(s *cuda.Stream, g *Gemm, c, add unsafe.Pointer) error {
	switch {
	case l.h == nil:
		return errClosed
	case g.Beta == 1 && add == c:
		return nil
	case g.Beta == 1:
		return rows(g, func(at, bytes int) error { return s.Copy(unsafe.Add(c, at), unsafe.Add(add, at), bytes) })
	case g.Beta != 0 && add != c:
		return fmt.Errorf("cublas: Lt.Gemm: %s: another matrix than C times Beta %v where there is no product to add",
			g.String(), g.Beta)
	case g.Beta != 0 && g.C.Half():
		return fmt.Errorf("cublas: Lt.Gemm: %s: cuBLASLt cannot multiply 16-bit floats by Beta %v where "+
			"there is no product to add", g.String(), g.Beta)
	case g.Beta != 0:
		code, op := sysLtScale(l.h, s, g, c)
		if code != 0 {
			return check(op, code, g.String())
		}
		return nil
	}
	// A product with zero would keep the NaNs of C.
	return rows(g, func(at, bytes int) error { return s.Fill(unsafe.Add(c, at), 1, 0, bytes) })
}

// rows calls do on the runs of memory that C consists of.
func rows(g *Gemm, do func(at, bytes int) error) error {
	size := g.C.Size()
	n, width := g.M*g.count(), g.N
	if g.LdC == g.N {
		n, width = 1, n*g.N
	}
	for i := range n {
		if err := do(i*g.LdC*size, width*size); err != nil {
			return err
		}
	}
	return nil
}

var (
	errClosed = errors.New("cublas: used after Close")
	errNarrow = errors.New("a size beyond 32 bits, which this libcublas, older than CUDA 12, does not take")
)
