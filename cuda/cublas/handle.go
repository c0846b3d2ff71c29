package cublas

import (
	"fmt"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

var files = []string{"libcublas.so.13", "libcublas.so.12"}

var load = sync.OnceValue(func() error {
	if _, err := openLibrary(files); err != nil {
		return unusable("cuBLAS", err)
	}
	return nil
})

// Handle multiplies by cuBLAS. It serves one stream at a time, and one goroutine. Calls with
// different streams share the handle's workspace: they must not be in flight together.
type Handle struct {
	h handle // nil once closed
}

// Open loads cuBLAS (of CUDA 12 or 13) if that has not happened, and opens it for a device. It
// allocates device memory for the library's own workspace. Source: cublas_api.h, cublasCreate_v2.
func Open(d *cuda.Device) (*Handle, error) {
	if err := load(); err != nil {
		return nil, err
	}
	h, code := sysCreate(d.Bind())
	if code != 0 {
		return nil, check("cublasCreate_v2", code, "")
	}
	return &Handle{h: h}, nil
}

// Close frees h. It waits for the device. Further calls do nothing. Source: cublas_api.h,
// cublasDestroy_v2.
func (h *Handle) Close() error {
	if h.h == nil {
		return nil
	}
	code := sysDestroy(h.h)
	h.h = nil
	return check("cublasDestroy_v2", code, "")
}

// SetWorkspace gives the library bytes bytes of device memory, aligned to 256, to use in place of
// its own. They must stay until Close or the next SetWorkspace. With p nil the library goes back to
// its own. A graph that captures calls of h needs this: it keeps the address. Source: cublas_api.h,
// cublasSetWorkspace_v2.
func (h *Handle) SetWorkspace(p unsafe.Pointer, bytes int) error {
	if h.h == nil {
		return errClosed
	}
	if bytes < 0 || p == nil && bytes > 0 {
		return fmt.Errorf("cublas: SetWorkspace: %d bytes at %p", bytes, p)
	}
	return check("cublasSetWorkspace_v2", sysWorkspace(h.h, p, bytes), "")
}

// Gemv enqueues on s
//
//	y = alpha * A * x + beta * y
//
// for a row-major A(rows, cols) with lda elements from one row to the next; x has cols elements, y
// rows. With transA it is A', x has rows elements and y cols. t, the type of all, is float32 or
// float64. y is not read if beta is 0. A and x are not read if alpha is 0. Source: cublas_api.h,
// cublasSgemv_v2, cublasDgemv_v2.
func (h *Handle) Gemv(
	s *cuda.Stream, t elem.Type, transA bool, rows, cols int, alpha float64, a unsafe.Pointer, lda int,
	x unsafe.Pointer, beta float64, y unsafe.Pointer,
) error {
	nx, ny := cols, rows
	if transA {
		nx, ny = rows, cols
	}
	scales := nx == 0 || alpha == 0
	switch {
	case h.h == nil:
		return errClosed
	case t != elem.Float32 && t != elem.Float64:
		return fmt.Errorf("cublas: Gemv: no product of %v", t)
	case rows < 0 || cols < 0 || lda < cols:
		return fmt.Errorf("cublas: Gemv: A(%d, %d) with a stride of %d", rows, cols, lda)
	case ny == 0:
		return nil
	case y == nil || !scales && (a == nil || x == nil):
		return fmt.Errorf("cublas: Gemv: nil address: y %p, A(%d, %d) %p, x %p", y, rows, cols, a, x)
	case wide(rows, cols, lda) != 0 && !has64():
		return fmt.Errorf("cublas: Gemv: A(%d, %d) with a stride of %d: %w", rows, cols, lda, errNarrow)
	case scales:
		return h.scale(s, t, 1, ny, ny, beta, y)
	}
	if code, op := sysGemv(h.h, s, t, transA, rows, cols, alpha, a, lda, x, beta, y); code != 0 {
		return check(op, code, fmt.Sprintf("%v A(%d, %d), stride %d, transposed %v", t, rows, cols, lda, transA))
	}
	return nil
}

// Gemm enqueues the product g on s. All types are float32, or all float64.
// Source: cublas_api.h, cublasSgemm_v2, cublasDgemm_v2.
func (h *Handle) Gemm(s *cuda.Stream, g *Gemm, c, a, b unsafe.Pointer) error {
	if h.h == nil {
		return errClosed
	}
	if g.Epilogue != NoEpilogue {
		return fmt.Errorf("cublas: Handle.Gemm: %v: an epilogue is cuBLASLt's", g)
	}
	if g.AB != g.C || g.C != elem.Float32 && g.C != elem.Float64 {
		return fmt.Errorf("cublas: Handle.Gemm: no product of %v with a result of %v", g.AB, g.C)
	}
	if err := g.check(c, a, b); err != nil {
		return err
	}
	switch {
	case g.empty():
		return nil
	case wide(g.M, g.N, g.K, g.LdA, g.LdB, g.LdC) != 0 && !has64():
		return fmt.Errorf("cublas: Handle.Gemm: %v: %w", g, errNarrow)
	case g.scales():
		return h.scale(s, g.C, g.M, g.N, g.LdC, g.Beta, c)
	}
	if code, op := sysGemm(h.h, s, g, c, a, b); code != 0 {
		return check(op, code, g.String())
	}
	return nil
}

// scale is C = beta C for a row-major C(rows, cols).
func (h *Handle) scale(s *cuda.Stream, t elem.Type, rows, cols, ld int, beta float64, c unsafe.Pointer) error {
	if beta == 1 {
		return nil
	}
	if code, op := sysScale(h.h, s, t, rows, cols, ld, beta, c); code != 0 {
		return check(op, code, fmt.Sprintf("%v C(%d, %d), stride %d", t, rows, cols, ld))
	}
	return nil
}
