package cublas

/*
#cgo nocallback lt_matmul
#cgo nocallback handle_gemm
#cgo nocallback handle_gemv

#include "sys.h"
*/
import "C"

import (
	"math"
	"math/bits"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/dl"
	"lockstep/internal/elem"
)

const (
	r32F  = C.R_32F
	r64F  = C.R_64F
	r16F  = C.R_16F
	r16BF = C.R_16BF
	r8F4  = C.R_8F_E4M3
	r8F5  = C.R_8F_E5M2
)

// slot returns the place of an entry point in one of C's tables, whose fields are pointers to
// functions.
func slot[T any](p *T) *unsafe.Pointer { return (*unsafe.Pointer)(unsafe.Pointer(p)) }

func openLtLibrary(files []string) (string, error) {
	t := &C.lt
	return dl.Open([]dl.Sym{
		{Name: "cublasLtGetVersion", Slot: slot(&t.version)},
		{Name: "cublasLtCreate", Slot: slot(&t.create)},
		{Name: "cublasLtDestroy", Slot: slot(&t.destroy)},
		{Name: "cublasLtMatmulDescCreate", Slot: slot(&t.desc_create)},
		{Name: "cublasLtMatmulDescDestroy", Slot: slot(&t.desc_destroy)},
		{Name: "cublasLtMatmulDescSetAttribute", Slot: slot(&t.desc_set)},
		{Name: "cublasLtMatrixLayoutCreate", Slot: slot(&t.layout_create)},
		{Name: "cublasLtMatrixLayoutDestroy", Slot: slot(&t.layout_destroy)},
		{Name: "cublasLtMatrixLayoutSetAttribute", Slot: slot(&t.layout_set)},
		{Name: "cublasLtMatmulPreferenceCreate", Slot: slot(&t.pref_create)},
		{Name: "cublasLtMatmulPreferenceDestroy", Slot: slot(&t.pref_destroy)},
		{Name: "cublasLtMatmulPreferenceSetAttribute", Slot: slot(&t.pref_set)},
		{Name: "cublasLtMatmulAlgoGetHeuristic", Slot: slot(&t.heuristic)},
		{Name: "cublasLtMatmul", Slot: slot(&t.matmul)},
		{Name: "cublasLtMatrixTransformDescCreate", Slot: slot(&t.transform_create)},
		{Name: "cublasLtMatrixTransformDescDestroy", Slot: slot(&t.transform_destroy)},
		{Name: "cublasLtMatrixTransform", Slot: slot(&t.transform)},
	}, files...)
}

func openLibrary(files []string) (string, error) {
	t := &C.blas
	return dl.Open([]dl.Sym{
		{Name: "cublasCreate_v2", Slot: slot(&t.create)},
		{Name: "cublasDestroy_v2", Slot: slot(&t.destroy)},
		{Name: "cublasSetStream_v2", Slot: slot(&t.set_stream)},
		{Name: "cublasSetWorkspace_v2", Slot: slot(&t.set_workspace)},
		{Name: "cublasSgemm_v2", Slot: slot(&t.gemm[0])},
		{Name: "cublasDgemm_v2", Slot: slot(&t.gemm[1])},
		{Name: "cublasSgemv_v2", Slot: slot(&t.gemv[0])},
		{Name: "cublasDgemv_v2", Slot: slot(&t.gemv[1])},
		{Name: "cublasSgeam", Slot: slot(&t.geam[0])},
		{Name: "cublasDgeam", Slot: slot(&t.geam[1])},
		{Name: "cublasSgemm_v2_64", Slot: slot(&t.gemm64[0]), Optional: true},
		{Name: "cublasDgemm_v2_64", Slot: slot(&t.gemm64[1]), Optional: true},
		{Name: "cublasSgemv_v2_64", Slot: slot(&t.gemv64[0]), Optional: true},
		{Name: "cublasDgemv_v2_64", Slot: slot(&t.gemv64[1]), Optional: true},
		{Name: "cublasSgeam_64", Slot: slot(&t.geam64[0]), Optional: true},
		{Name: "cublasDgeam_64", Slot: slot(&t.geam64[1]), Optional: true},
	}, files...)
}

// address passes device memory.
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(ccall.Address(p)) }

func cDevice(b cuda.Bind) C.struct_device {
	return C.struct_device{enter: C.enter_fn(b.Enter), context: b.Context}
}

func operation(trans bool) C.int {
	if trans {
		return C.OP_T
	}
	return C.OP_N
}

func is64(t elem.Type) C.int {
	if t == elem.Float64 {
		return 1
	}
	return 0
}

// took turns an outcome into a status and its call.
func took(o C.struct_outcome) (code int, op string) {
	if o.code == 0 {
		return 0, ""
	}
	return int(o.code), C.GoString(o.what)
}

// light and handle are structures in C's memory, plan a product made ready, there too.
type (
	light  = *C.struct_light
	handle = *C.struct_handle
	plan   = *C.struct_plan
)

func sysLtCreate(b cuda.Bind) (l light, code int) {
	l = (light)(C.calloc(1, C.sizeof_struct_light))
	l.d = cDevice(b)
	if code = int(C.lt_create(l)); code != 0 {
		C.free(unsafe.Pointer(l))
		return nil, code
	}
	return l, 0
}

func sysLtDestroy(l light) int {
	defer C.free(unsafe.Pointer(l))
	return int(C.lt_destroy(l))
}

// planKey is all that a plan depends on. Alpha and Beta are not in it.
type planKey struct {
	m, n, k, lda, ldb, ldc int
	count                  int // of products; at least 1
	workspace              int
	ab, c                  elem.Type
	ta, tb                 bool
	fast                   bool // sums in fewer bits
	scaleA, scaleB         bool // there is one
	epilogue               Epilogue
	adds, apart            bool  // Beta is not 0; it multiplies another matrix than C
	alignA, alignB, alignC uint8 // logarithms
	alignAdd               uint8 // of the matrix that Beta multiplies: C's, unless it is another matrix
}

// alignment returns the logarithm of the largest power of two, up to 256, that divides an address.
func alignment(p unsafe.Pointer) uint8 { return uint8(bits.TrailingZeros64(uint64(uintptr(p)) | 256)) }

// sysPlan makes the product ready. Row-major C = op(A) op(B) is, read column-major, C' = op(B)'
// op(A)': the operands change places, and each keeps its transposition and its stride. It returns
// up to len(found) algorithms; the first is the plan's. Without one there is no plan.
func sysPlan(l light, k *planKey, x *Beside, found []algorithm) (p plan, n, code int, op string) {
	s := C.struct_shape{
		m: C.int64_t(k.n), n: C.int64_t(k.m), k: C.int64_t(k.k),
		lda: C.int64_t(k.ldb), ldb: C.int64_t(k.lda), ldc: C.int64_t(k.ldc),
		ta: operation(k.tb), tb: operation(k.ta),
		a: types[typeB(k.ab)], b: types[k.ab], c: types[k.c],
		align:     [4]C.int{1 << k.alignB, 1 << k.alignA, 1 << k.alignAdd, 1 << k.alignC},
		workspace: C.size_t(k.workspace),
		epilogue:  epilogues[k.epilogue],
		count:     C.int32_t(k.count),
	}
	if k.fast {
		s.fast = 1
	}
	var got C.int
	b := beside(x)
	code, op = took(C.plan_make(l, &s, &b, &found[0], C.int(len(found)), &got, &p))
	return p, int(got), code, op
}

// algorithm is an answer of the library's heuristic.
type algorithm = C.struct_heuristic

// epilogues are the library's numbers.
var epilogues = [...]C.int{
	NoEpilogue: C.EPILOGUE_DEFAULT, Bias: C.EPILOGUE_BIAS, GELU: C.EPILOGUE_GELU_AUX,
	BiasGELU: C.EPILOGUE_GELU_AUX_BIAS,
	DGELU:    C.EPILOGUE_DGELU,
}

// choiceOf returns the algorithm of an answer, sysSetAlgorithm gives it to a plan.
func choiceOf(a *algorithm) (c Choice) {
	for i, x := range a.algo.data {
		c.Algo[i] = uint64(x)
	}
	c.Workspace = int(a.workspace)
	return c
}

func sysSetAlgorithm(p plan, c Choice) {
	for i, x := range c.Algo {
		p.algo.data[i] = C.uint64_t(x)
	}
	p.workspace = C.size_t(c.Workspace)
}

func sysLtVersion() int { return int(C.lt_version()) }

func beside(x *Beside) C.struct_beside {
	return C.struct_beside{add: address(x.Add), bias: address(x.Bias), aux: address(x.Aux),
		scale_a: address(x.ScaleB), scale_b: address(x.ScaleA)}
}

func sysPlanFree(l light, p plan) (code int, op string) { return took(C.plan_free(l, p)) }

// operands is the device memory of a product.
type operands struct{ c, a, b, work unsafe.Pointer }

func sysMatmul(l light, p plan, s *cuda.Stream, g *Gemm, x *Beside, on operands) (code int, op string) {
	return took(C.lt_matmul(address(unsafe.Pointer(l)), address(unsafe.Pointer(p)), C.double(g.Alpha),
		address(on.b), address(on.a),
		C.double(g.Beta), address(on.c), beside(x), address(on.work), address(s.Handle())))
}

func sysLtScale(l light, s *cuda.Stream, g *Gemm, c unsafe.Pointer) (code int, op string) {
	return took(C.lt_scale(l, types[g.C], C.int64_t(g.N), C.int64_t(g.M*g.count()), C.int64_t(g.LdC),
		C.double(g.Beta), address(c), address(s.Handle())))
}

func sysCreate(b cuda.Bind) (h handle, code int) {
	h = (handle)(C.calloc(1, C.sizeof_struct_handle))
	h.d = cDevice(b)
	if code = int(C.handle_create(h)); code != 0 {
		C.free(unsafe.Pointer(h))
		return nil, code
	}
	return h, 0
}

func sysDestroy(h handle) int {
	defer C.free(unsafe.Pointer(h))
	return int(C.handle_destroy(h))
}

func sysWorkspace(h handle, p unsafe.Pointer, bytes int) int {
	return int(C.handle_workspace(h, address(p), C.size_t(bytes)))
}

// has64 reports whether the library has the entry points with 64-bit dimensions.
func has64() bool {
	t := &C.blas
	for i := range 2 {
		if t.gemm64[i] == nil || t.gemv64[i] == nil || t.geam64[i] == nil {
			return false
		}
	}
	return true
}

// wide reports whether a dimension or stride needs 64 bits.
func wide(dims ...int) C.int {
	for _, n := range dims {
		if n > math.MaxInt32 {
			return 1
		}
	}
	return 0
}

func sysGemm(h handle, s *cuda.Stream, g *Gemm, c, a, b unsafe.Pointer) (code int, op string) {
	return took(C.handle_gemm(address(unsafe.Pointer(h)), is64(g.C), wide(g.M, g.N, g.K, g.LdA, g.LdB, g.LdC),
		address(s.Handle()),
		operation(g.TransB), operation(g.TransA), C.int64_t(g.N), C.int64_t(g.M), C.int64_t(g.K),
		C.double(g.Alpha), address(b), C.int64_t(g.LdB), address(a), C.int64_t(g.LdA), C.double(g.Beta),
		address(c), C.int64_t(g.LdC)))
}

// sysGemv: a row-major matrix is the transpose of a column-major one of cols x rows.
func sysGemv(
	h handle, s *cuda.Stream, t elem.Type, trans bool, rows, cols int, alpha float64, a unsafe.Pointer,
	lda int, x unsafe.Pointer, beta float64, y unsafe.Pointer,
) (code int, op string) {
	return took(C.handle_gemv(address(unsafe.Pointer(h)), is64(t), wide(rows, cols, lda),
		address(s.Handle()), operation(!trans),
		C.int64_t(cols), C.int64_t(rows), C.double(alpha), address(a), C.int64_t(lda), address(x),
		C.double(beta), address(y)))
}

// sysScale is C = beta C for a row-major C(rows, cols).
func sysScale(
	h handle, s *cuda.Stream, t elem.Type, rows, cols, ld int, beta float64, c unsafe.Pointer,
) (code int, op string) {
	return took(C.handle_scale(address(unsafe.Pointer(h)), is64(t), wide(rows, cols, ld), address(s.Handle()),
		C.int64_t(cols), C.int64_t(rows), C.double(beta), address(c), C.int64_t(ld)))
}

// types are the libraries' numbers of the element types that a product may have.
var types = [elem.StoredTypes]C.int{elem.Float16: r16F, elem.BFloat16: r16BF, elem.Float32: r32F,
	elem.Float64: r64F, elem.Float8E4M3: r8F4, elem.Float8E5M2: r8F5}
