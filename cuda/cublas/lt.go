package cublas

import (
	"errors"
	"fmt"
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

// unusable is the error of a library that does not load, in one line though the loader has a reason for each file.
func unusable(library string, err error) error {
	return fmt.Errorf("cublas: %s cannot be used: %s", library, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// Lt multiplies matrices by cuBLASLt. It may be used from several goroutines and with several streams at once.
type Lt struct {
	h     light        // nil once closed
	mu    sync.RWMutex // over plans
	plans map[planKey]plan
}

// OpenLt loads cuBLASLt (of CUDA 12 or 13) where that has not happened, and opens it for a device.
// Source: cublasLt.h, cublasLtCreate.
func OpenLt(d *cuda.Device) (*Lt, error) {
	if err := loadLt(); err != nil {
		return nil, err
	}
	h, code := sysLtCreate(d.Bind())
	if code != 0 {
		return nil, check("cublasLtCreate", code, "")
	}
	return &Lt{h: h, plans: map[planKey]plan{}}, nil
}

// Close gives back what l holds; no product of l may be running. Further calls do nothing.
// Source: cublasLt.h, cublasLtDestroy.
func (l *Lt) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		return nil
	}
	var errs []error
	for _, p := range l.plans {
		code, op := sysPlanFree(l.h, p)
		errs = append(errs, check(op, code, ""))
	}
	errs = append(errs, check("cublasLtDestroy", sysLtDestroy(l.h), ""))
	l.h, l.plans = nil, nil
	return errors.Join(errs...)
}

// Gemm enqueues the product g on s. The types of A and B, and of C, are float32, float64, bfloat16 or float16, or A and
// B are 16-bit floats and C is float32. Where there is nothing to add (K or Alpha is 0) C of 16-bit floats takes no Beta but 0 and 1.
// Where Beta is not 0 C of 16-bit floats may be rounded twice.
//
// workspace is device memory of workspaceBytes bytes, aligned to 256, that the product may overwrite; products that may
// run at the same time need one each. More of it allows faster algorithms: 32 MiB is what NVIDIA asks for on Hopper.
// The first product of a shape chooses its algorithm, which takes a fraction of a millisecond and may load code onto the
// device; later ones with the same shape, strides, types, workspace size and alignments allocate nothing.
// Source: cublasLt.h, cublasLtMatmul, cublasLtMatmulAlgoGetHeuristic, cublasLtMatrixTransform.
func (l *Lt) Gemm(s *cuda.Stream, g *Gemm, c, a, b, workspace unsafe.Pointer, workspaceBytes int) error {
	if !supported(g.AB, g.C) {
		return fmt.Errorf("cublas: Lt.Gemm: no product of %v with a result of %v", g.AB, g.C)
	}
	if err := g.check(c, a, b); err != nil {
		return err
	}
	if workspaceBytes < 0 || workspace == nil && workspaceBytes > 0 {
		return fmt.Errorf("cublas: Lt.Gemm: workspace of %d bytes at %p", workspaceBytes, workspace)
	}
	if g.empty() {
		return nil
	}
	if g.scales() {
		return l.scale(s, g, c)
	}
	key := planKey{
		m: g.M, n: g.N, k: g.K, lda: g.LdA, ldb: g.LdB, ldc: g.LdC, workspace: workspaceBytes, ab: g.AB, c: g.C,
		ta: g.TransA, tb: g.TransB, alignA: alignment(a), alignB: alignment(b), alignC: alignment(c),
	}
	l.mu.RLock()
	p := l.plans[key]
	l.mu.RUnlock()
	if p == nil {
		var err error
		if p, err = l.newPlan(key, g); err != nil {
			return err
		}
	}
	if code := sysMatmul(l.h, p, s, g, c, a, b, workspace); code != 0 {
		return check("cublasLtMatmul", code, g.String())
	}
	return nil
}

// newPlan returns the plan of a key, which another goroutine may have made in the meantime.
func (l *Lt) newPlan(key planKey, g *Gemm) (plan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		return nil, errClosed
	}
	if p := l.plans[key]; p != nil {
		return p, nil
	}
	p, code, op := sysPlan(l.h, &key)
	if code != 0 {
		return nil, check(op, code, g.String())
	}
	l.plans[key] = p
	return p, nil
}

// scale is C = Beta C.
func (l *Lt) scale(s *cuda.Stream, g *Gemm, c unsafe.Pointer) error {
	switch {
	case l.h == nil:
		return errClosed
	case g.Beta == 1:
		return nil
	case g.Beta != 0 && g.C.Half():
		return fmt.Errorf("cublas: Lt.Gemm: %v: cuBLASLt cannot multiply 16-bit floats by Beta %v where there is no product to add", g, g.Beta)
	case g.Beta != 0:
		code, op := sysLtScale(l.h, s, g, c)
		if code != 0 {
			return check(op, code, g.String())
		}
		return nil
	}
	// A product with zero would keep the NaNs of C.
	size := g.C.Size()
	rows, n := g.M, g.N
	if g.LdC == g.N {
		rows, n = 1, g.M*g.N
	}
	for i := range rows {
		if err := s.Fill(unsafe.Add(c, i*g.LdC*size), 1, 0, n*size); err != nil {
			return err
		}
	}
	return nil
}

var (
	errClosed = errors.New("cublas: used after Close")
	errNarrow = errors.New("a size beyond 32 bits, which this libcublas, older than CUDA 12, does not take")
)
