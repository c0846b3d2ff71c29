package host

// The binding of OpenBLAS: prototypes, symbol table and trampolines.

/*
#cgo noescape call_sgemm
#cgo nocallback call_sgemm
#cgo noescape call_dgemm
#cgo nocallback call_dgemm
#cgo noescape call_dgemv
#cgo nocallback call_dgemv

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; // of cblas.h

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);
typedef void (*dgemm_fn)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                         const double *b, int ldb, double beta, double *c, int ldc);
typedef void (*dgemv_fn)(int order, int t, int m, int n, double alpha, const double *a, int lda,
                         const double *x, int incx, double beta, double *y, int incy);
typedef void (*set_num_threads_fn)(int);
typedef char *(*text_fn)(void);

static int op(int trans) { return trans ? TRANS : NO_TRANS; }

static void call_sgemm(void *f, int ta, int tb, int m, int n, int k, double alpha, const void *a, int lda,
                       const void *b, int ldb, double beta, void *c, int ldc) {
	((sgemm_fn)f)(ROW_MAJOR, op(ta), op(tb), m, n, k, (float)alpha, a, lda, b, ldb, (float)beta, c, ldc);
}

static void call_dgemm(void *f, int ta, int tb, int m, int n, int k, double alpha, const void *a, int lda,
                       const void *b, int ldb, double beta, void *c, int ldc) {
	((dgemm_fn)f)(ROW_MAJOR, op(ta), op(tb), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static void call_dgemv(void *f, int t, int m, int n, double alpha, const void *a, int lda,
                       const void *x, double beta, void *y) {
	((dgemv_fn)f)(ROW_MAJOR, op(t), m, n, alpha, a, lda, x, 1, beta, y, 1);
}

typedef void *(*memory_alloc_fn)(int);
typedef void (*memory_free_fn)(void *);

// take_buffers has OpenBLAS map n buffers, at most 256, which it keeps.
static void take_buffers(void *alloc, void *give, int n) {
	void *got[256];
	if (n > 256) n = 256;
	for (int i = 0; i < n; i++) got[i] = ((memory_alloc_fn)alloc)(0);
	for (int i = 0; i < n; i++) ((memory_free_fn)give)(got[i]);
}

static void set_num_threads(void *f, int n) { ((set_num_threads_fn)f)(n); }
static char *text(void *f) { return ((text_fn)f)(); }
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/cpu"

	"lockstep/internal/dl"
)

// openBLASFiles are tried in order. If a distribution has several builds, several threads may
// safely call the one with threads at once.
var openBLASFiles = []string{"libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so"}

// openblas holds the entry points of OpenBLAS, valid once openOpenBLAS has returned without error.
var openblas struct {
	sgemm, dgemm, dgemv    unsafe.Pointer
	setNumThreads          unsafe.Pointer
	getConfig, getCorename unsafe.Pointer
	memAlloc, memFree      unsafe.Pointer // not in every build
}

// openOpenBLAS loads OpenBLAS and returns its name, version and kernels: "OpenBLAS 0.3.21
// SkylakeX". It says so if the user chose the kernels.
func openOpenBLAS() (string, error) {
	// OpenBLAS reads its environment while it is being loaded. It needs no threads of its own,
	// which would spin on the cores that Parallel uses. If it does not know a CPU (0.3.21 and Zen
	// 5) it falls back to Haswell's kernels, although the CPU has AVX-512. This costs a third of
	// the speed.
	defer setenv("OPENBLAS_NUM_THREADS", "1")()
	chosen := ""
	if os.Getenv("OPENBLAS_CORETYPE") != "" {
		chosen = " (by OPENBLAS_CORETYPE)"
	} else if x := cpu.X86; x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL {
		defer setenv("OPENBLAS_CORETYPE", "SkylakeX")()
	}
	path, err := dl.Open([]dl.Sym{
		{Name: "cblas_sgemm", Slot: &openblas.sgemm},
		{Name: "cblas_dgemm", Slot: &openblas.dgemm},
		{Name: "cblas_dgemv", Slot: &openblas.dgemv},
		{Name: "openblas_set_num_threads", Slot: &openblas.setNumThreads},
		{Name: "openblas_get_config", Slot: &openblas.getConfig},
		{Name: "openblas_get_corename", Slot: &openblas.getCorename},
		{Name: "blas_memory_alloc", Slot: &openblas.memAlloc, Optional: true},
		{Name: "blas_memory_free", Slot: &openblas.memFree, Optional: true},
	}, openBLASFiles...)
	if err != nil {
		return "", err
	}
	C.set_num_threads(openblas.setNumThreads, 1)
	config := C.GoString(C.text(openblas.getConfig)) // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
	if strings.Contains(config, "USE64BITINT") {
		return "", fmt.Errorf("%s is built for 64-bit integers", path)
	}
	words := strings.Fields(config)
	name := strings.Join(words[:min(2, len(words))], " ")
	return name + " " + C.GoString(C.text(openblas.getCorename)) + chosen, nil
}

func takeBuffers(n int) {
	if openblas.memAlloc != nil && openblas.memFree != nil {
		C.take_buffers(openblas.memAlloc, openblas.memFree, C.int(n))
	}
}

// setenv sets a variable, for C too, and returns a function that restores it.
func setenv(name, value string) (restore func()) {
	old, was := os.LookupEnv(name)
	os.Setenv(name, value)
	return func() {
		if was {
			os.Setenv(name, old)
		} else {
			os.Unsetenv(name)
		}
	}
}

// openGemm is one call of cblas_sgemm or cblas_dgemm. Gemm has checked the matrices.
func openGemm[T float](
	transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int,
) {
	ta, tb := flag(transA), flag(transB)
	al, be := C.double(alpha), C.double(beta)
	if isFloat32[T]() {
		C.call_sgemm(openblas.sgemm, ta, tb, C.int(m), C.int(n), C.int(k), al, ptr(a), C.int(lda), ptr(b),
			C.int(ldb), be, ptr(c), C.int(ldc))
		return
	}
	C.call_dgemm(openblas.dgemm, ta, tb, C.int(m), C.int(n), C.int(k), al, ptr(a), C.int(lda), ptr(b),
		C.int(ldb), be, ptr(c), C.int(ldc))
}

// openGemv is one call of cblas_dgemv. Gemv has checked the operands.
func openGemv(trans bool, m, n int, alpha float64, a []float64, lda int, x []float64, beta float64, y []float64) {
	C.call_dgemv(openblas.dgemv, flag(trans), C.int(m), C.int(n), C.double(alpha), ptr(a), C.int(lda),
		ptr(x), C.double(beta), ptr(y))
}

func ptr[T float](x []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(x)) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
