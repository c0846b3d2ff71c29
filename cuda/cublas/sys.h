// The calls of cuBLAS and cuBLASLt for sys.go. All is static: the file is included once. Every call
// below that does work makes the device's context current first. If the driver fails at that, its
// status is returned as a negative number.

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int (*enter_fn)(void *context);

struct device {
    enter_fn enter;
    void *context;
};

static inline int enter(const struct device *d) { return -d->enter(d->context); }

// Numbers of the headers: element types, compute types, operations, attributes.
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14, R_8F_E4M3 = 28, R_8F_E5M2 = 29, COMPUTE_32F = 68, COMPUTE_64F = 70,
    OP_N = 0, OP_T = 1 };
enum { DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8, DESC_AUX_POINTER = 11,
    DESC_AUX_LD = 12, DESC_BIAS_TYPE = 26 };
enum { DESC_A_SCALE_POINTER = 17, DESC_B_SCALE_POINTER = 18, DESC_FAST_ACCUM = 25 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4, EPILOGUE_GELU_AUX = 160, EPILOGUE_GELU_AUX_BIAS = 164,
    EPILOGUE_DGELU = 192 };
enum { LAYOUT_BATCH_COUNT = 5, LAYOUT_STRIDED_BATCH_OFFSET = 6 };
enum { PREF_MAX_WORKSPACE = 1, PREF_REDUCTION_MASK = 3, PREF_ALIGNMENT_A = 5 }; // B, C and D follow A
enum { REDUCTION_COMPUTE_TYPE = 2, NOT_SUPPORTED = 15, INVALID_VALUE = 7, ALLOC_FAILED = 3 };

// cuBLASLt

struct algo { uint64_t data[8]; };
struct heuristic {
    struct algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

struct {
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_destroy)(void *desc);
    int (*desc_set)(void *desc, int attr, const void *v, size_t size);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*layout_set)(void *layout, int attr, const void *v, size_t size);
    int (*pref_create)(void **pref);
    int (*pref_destroy)(void *pref);
    int (*pref_set)(void *pref, int attr, const void *v, size_t size);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int want,
                     struct heuristic *results, int *got);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb,
                  const void *beta, const void *c, void *lc, void *d, void *ld, const struct algo *algo,
                  void *workspace, size_t bytes, void *stream);
    int (*transform_create)(void **desc, int scale);
    int (*transform_destroy)(void *desc);
    int (*transform)(void *handle, void *desc, const void *alpha, const void *a, void *la, const void *beta,
                     const void *b, void *lb, void *c, void *lc, void *stream);
} lt;

// factor is alpha or beta as the library reads it: float, or double for COMPUTE_64F.
union factor {
    float f;
    double d;
};
static inline union factor factor(double v, int is64) {
    union factor u;
    if (is64) u.d = v;
    else u.f = (float)v;
    return u;
}

// shape is a product in cuBLAS's form, column-major: C(m,n) = op(A)(m,k) op(B)(k,n).
struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int ta, tb;       // OP_N, OP_T
    int a, b, c;      // element types
    int align[4];     // bytes, of A, B, C and D
    size_t workspace; // bytes
    int epilogue;
    int32_t count; // of products, whose matrices lie one behind the other
    int8_t fast; // sums of 8-bit floats in fewer bits
};

// beside is the operands of a product beside A, B and D, as numbers.
struct beside {
    uintptr_t add, bias, aux;   // C, the bias, the values before the GELU
    uintptr_t scale_a, scale_b; // of 8-bit floats; 0 is 1
};

// plan is a product made ready: its descriptors and the algorithm.
struct plan {
    void *desc, *a, *b, *c;
    struct algo algo;
    size_t workspace;
    int is64;
};

// outcome is a status and the call it came from.
struct outcome {
    int code;
    const char *what;
};

// light is a cublasLtHandle_t with its device.
struct light {
    struct device d;
    void *h;
};

static size_t lt_version(void) { return lt.version(); }
static int lt_create(struct light *l) {
    int rc = enter(&l->d);
    return rc ? rc : lt.create(&l->h);
}
static int lt_destroy(struct light *l) {
    int rc = enter(&l->d);
    return rc ? rc : lt.destroy(l->h);
}

// plan_free gives back all that it can.
static struct outcome plan_free(const struct light *l, struct plan *p) {
    struct outcome o = {enter(&l->d), "cuCtxSetCurrent"};
    void *layouts[] = {p->a, p->b, p->c};
    for (int i = 0; i < 3; i++) {
        int rc = layouts[i] ? lt.layout_destroy(layouts[i]) : 0;
        if (rc && !o.code) o = (struct outcome){rc, "cublasLtMatrixLayoutDestroy"};
    }
    int rc = p->desc ? lt.desc_destroy(p->desc) : 0;
    if (rc && !o.code) o = (struct outcome){rc, "cublasLtMatmulDescDestroy"};
    free(p);
    return o;
}

#define TRY(name, call)           \
    if ((o.code = (call)) != 0) { \
        o.what = name;            \
        goto out;                 \
    }

// point tells the description the addresses of the operands beside A, B, C and D.
static struct outcome point(const struct plan *p, const struct beside *x) {
    struct outcome o = {0, NULL};
    if (x->bias) TRY("cublasLtMatmulDescSetAttribute",
        lt.desc_set(p->desc, DESC_BIAS_POINTER, &x->bias, sizeof x->bias))
    if (x->aux) TRY("cublasLtMatmulDescSetAttribute", lt.desc_set(p->desc, DESC_AUX_POINTER, &x->aux, sizeof x->aux))
    if (x->scale_a) TRY("cublasLtMatmulDescSetAttribute",
        lt.desc_set(p->desc, DESC_A_SCALE_POINTER, &x->scale_a, sizeof x->scale_a))
    if (x->scale_b) TRY("cublasLtMatmulDescSetAttribute",
        lt.desc_set(p->desc, DESC_B_SCALE_POINTER, &x->scale_b, sizeof x->scale_b))
out:
    return o;
}

// stack tells a layout that it has count matrices, so many elements apart.
static struct outcome stack(void *layout, int32_t count, int64_t apart) {
    struct outcome o = {0, NULL};
    TRY("cublasLtMatrixLayoutSetAttribute", lt.layout_set(layout, LAYOUT_BATCH_COUNT, &count, sizeof count))
    TRY("cublasLtMatrixLayoutSetAttribute", lt.layout_set(layout, LAYOUT_STRIDED_BATCH_OFFSET, &apart, sizeof apart))
out:
    return o;
}

// plan_make describes a product and asks for up to want algorithms, in the library's order; the
// plan takes the first. *out is NULL after a failure. Without an algorithm it is NULL and the code
// 0.
static struct outcome plan_make(const struct light *l, const struct shape *s, const struct beside *x,
    struct heuristic *found, int want, int *got, struct plan **out) {
    struct outcome o = {0, NULL};
    void *pref = NULL;
    struct plan *p = calloc(1, sizeof *p);
    int is64 = s->a == R_64F, usable = 0;
    uint32_t mask = REDUCTION_COMPUTE_TYPE;
    *out = NULL;
    *got = 0;
    if (!p) return (struct outcome){ALLOC_FAILED, "calloc"};
    p->is64 = is64;
    memset(found, 0, want * sizeof *found);
    TRY("cuCtxSetCurrent", enter(&l->d))
    TRY("cublasLtMatmulDescCreate", lt.desc_create(&p->desc, is64 ? COMPUTE_64F : COMPUTE_32F, is64 ? R_64F : R_32F))
    TRY("cublasLtMatmulDescSetAttribute", lt.desc_set(p->desc, DESC_TRANSA, &s->ta, sizeof s->ta))
    TRY("cublasLtMatmulDescSetAttribute", lt.desc_set(p->desc, DESC_TRANSB, &s->tb, sizeof s->tb))
    if (s->epilogue != EPILOGUE_DEFAULT) {
        TRY("cublasLtMatmulDescSetAttribute", lt.desc_set(p->desc, DESC_EPILOGUE, &s->epilogue, sizeof s->epilogue))
        if (x->bias) TRY("cublasLtMatmulDescSetAttribute", lt.desc_set(p->desc, DESC_BIAS_TYPE, &s->c, sizeof s->c))
        if (x->aux) TRY("cublasLtMatmulDescSetAttribute", lt.desc_set(p->desc, DESC_AUX_LD, &s->ldc, sizeof s->ldc))
    }
    if (s->fast) TRY("cublasLtMatmulDescSetAttribute", lt.desc_set(p->desc, DESC_FAST_ACCUM, &s->fast, sizeof s->fast))
    o = point(p, x);
    if (o.code) goto out;
    TRY("cublasLtMatrixLayoutCreate", lt.layout_create(&p->a, s->a, s->ta ? s->k : s->m, s->ta ? s->m : s->k, s->lda))
    TRY("cublasLtMatrixLayoutCreate", lt.layout_create(&p->b, s->b, s->tb ? s->n : s->k, s->tb ? s->k : s->n, s->ldb))
    TRY("cublasLtMatrixLayoutCreate", lt.layout_create(&p->c, s->c, s->m, s->n, s->ldc))
    if (s->count > 1) {
        o = stack(p->a, s->count, (s->ta ? s->m : s->k) * s->lda);
        if (!o.code) o = stack(p->b, s->count, (s->tb ? s->k : s->n) * s->ldb);
        if (!o.code) o = stack(p->c, s->count, s->n * s->ldc);
        if (o.code) goto out;
    }
    TRY("cublasLtMatmulPreferenceCreate", lt.pref_create(&pref))
    TRY("cublasLtMatmulPreferenceSetAttribute",
        lt.pref_set(pref, PREF_MAX_WORKSPACE, &s->workspace, sizeof s->workspace))
    // A sum split over blocks must not be rounded to 16 bits in between.
    if (s->c == R_16F || s->c == R_16BF) {
        TRY("cublasLtMatmulPreferenceSetAttribute", lt.pref_set(pref, PREF_REDUCTION_MASK, &mask, sizeof mask))
    }
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = (uint32_t)s->align[i];
        TRY("cublasLtMatmulPreferenceSetAttribute", lt.pref_set(pref, PREF_ALIGNMENT_A + i, &bytes, sizeof bytes))
    }
    o.code = lt.heuristic(l->h, p->desc, p->a, p->b, p->c, p->c, pref, want, found, got);
    if (o.code == NOT_SUPPORTED || (o.code == INVALID_VALUE && s->epilogue != EPILOGUE_DEFAULT)) *got = o.code = 0;
    TRY("cublasLtMatmulAlgoGetHeuristic", o.code)
    for (int i = 0; i < *got; i++) {
        if (found[i].state == 0) found[usable++] = found[i];
    }
    *got = usable;
    if (*got > 0) {
        p->algo = found[0].algo;
        p->workspace = found[0].workspace;
    }
out:
    if (pref) {
        int rc = lt.pref_destroy(pref);
        if (rc && !o.code) o = (struct outcome){rc, "cublasLtMatmulPreferenceDestroy"};
    }
    if (o.code || *got < 1) {
        struct outcome freed = plan_free(l, p);
        if (!o.code) o = freed;
    } else *out = p;
    return o;
}

// The addresses come as numbers: cgo looks up every pointer that it passes.
static struct outcome lt_matmul(uintptr_t light, uintptr_t plan, double alpha, uintptr_t a, uintptr_t b,
    double beta, uintptr_t d, struct beside x, uintptr_t workspace, uintptr_t stream) {
    const struct light *l = (const struct light *)light;
    const struct plan *p = (const struct plan *)plan;
    union factor fa = factor(alpha, p->is64), fb = factor(beta, p->is64);
    struct outcome o = {enter(&l->d), "cuCtxSetCurrent"};
    if (o.code) return o;
    o = point(p, &x);
    if (o.code) return o;
    o.what = "cublasLtMatmul";
    o.code = lt.matmul(l->h, p->desc, &fa, (void *)a, p->a, (void *)b, p->b, &fb, (void *)x.add, p->c, (void *)d, p->c,
                       &p->algo, (void *)workspace, p->workspace, (void *)stream);
    return o;
}

// lt_scale is C = beta C, in place, for rows x cols column-major.
static struct outcome lt_scale(const struct light *l, int type, int64_t rows, int64_t cols, int64_t ld, double beta,
                               uintptr_t c, uintptr_t stream) {
    struct outcome o = {0, NULL};
    void *desc = NULL, *layout = NULL;
    int is64 = type == R_64F;
    union factor fb = factor(beta, is64), zero = factor(0, is64);
    TRY("cuCtxSetCurrent", enter(&l->d))
    TRY("cublasLtMatrixTransformDescCreate", lt.transform_create(&desc, is64 ? R_64F : R_32F))
    TRY("cublasLtMatrixLayoutCreate", lt.layout_create(&layout, type, rows, cols, ld))
    TRY("cublasLtMatrixTransform", lt.transform(l->h, desc, &fb, (void *)c, layout, &zero, NULL, NULL, (void *)c,
        layout, (void *)stream))
out:
    if (layout) {
        int rc = lt.layout_destroy(layout);
        if (rc && !o.code) o = (struct outcome){rc, "cublasLtMatrixLayoutDestroy"};
    }
    if (desc) {
        int rc = lt.transform_destroy(desc);
        if (rc && !o.code) o = (struct outcome){rc, "cublasLtMatrixTransformDescDestroy"};
    }
    return o;
}

// cuBLAS. Each routine has a form for float and one for double. Each of these has one with 64-bit
// dimensions, which libraries before CUDA 12.0 lack.

#define GEMM(T, I) int (*)(void *h, int ta, int tb, I m, I n, I k, const T *alpha, const T *a, I lda, const T *b, \
    I ldb, const T *beta, T *c, I ldc)
#define GEMV(T, I) int (*)(void *h, int t, I m, I n, const T *alpha, const T *a, I lda, const T *x, I incx, \
    const T *beta, T *y, I incy)
#define GEAM(T, I) int (*)(void *h, int ta, int tb, I m, I n, const T *alpha, const T *a, I lda, const T *beta, \
    const T *b, I ldb, T *c, I ldc)

struct {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*set_workspace)(void *handle, void *p, size_t bytes);
    void *gemm[2], *gemm64[2], *gemv[2], *gemv64[2], *geam[2], *geam64[2]; // float, double
} blas;

// handle is a cublasHandle_t with its last settings.
struct handle {
    struct device d;
    void *h;
    void *stream;
    void *workspace; // NULL for the library's own
    size_t bytes;
};

static int handle_create(struct handle *h) {
    int rc = enter(&h->d);
    return rc ? rc : blas.create(&h->h);
}
static int handle_destroy(struct handle *h) {
    int rc = enter(&h->d);
    return rc ? rc : blas.destroy(h->h);
}
static int handle_workspace(struct handle *h, uintptr_t p, size_t bytes) {
    int rc = enter(&h->d);
    if (!rc) rc = blas.set_workspace(h->h, (void *)p, bytes);
    if (!rc) {
        h->workspace = (void *)p;
        h->bytes = bytes;
    }
    return rc;
}

// use prepares the handle for a call on stream. A change of stream makes the library forget the
// workspace.
static inline struct outcome use(struct handle *h, uintptr_t stream) {
    int rc = enter(&h->d);
    if (rc) return (struct outcome){rc, "cuCtxSetCurrent"};
    if ((void *)stream == h->stream) return (struct outcome){0, NULL};
    h->stream = NULL; // until both calls have succeeded
    rc = blas.set_stream(h->h, (void *)stream);
    if (rc) return (struct outcome){rc, "cublasSetStream_v2"};
    if (h->workspace) rc = blas.set_workspace(h->h, h->workspace, h->bytes);
    if (rc) return (struct outcome){rc, "cublasSetWorkspace_v2"};
    h->stream = (void *)stream;
    return (struct outcome){0, NULL};
}

static struct outcome handle_gemm(uintptr_t handle, int is64, int wide, uintptr_t stream, int ta, int tb,
    int64_t m, int64_t n, int64_t k, double alpha, uintptr_t a, int64_t lda, uintptr_t b, int64_t ldb,
    double beta, uintptr_t c, int64_t ldc) {
    struct handle *h = (struct handle *)handle;
    struct outcome o = use(h, stream);
    float fa = (float)alpha, fb = (float)beta;
    if (o.code) return o;
    o.what = is64 ? "cublasDgemm_v2" : "cublasSgemm_v2";
    if (wide && is64)
        o.code = ((GEMM(double, int64_t))blas.gemm64[1])(h->h, ta, tb, m, n, k, &alpha, (void *)a, lda, (void *)b,
            ldb, &beta, (void *)c, ldc);
    else if (wide)
        o.code = ((GEMM(float, int64_t))blas.gemm64[0])(h->h, ta, tb, m, n, k, &fa, (void *)a, lda, (void *)b,
            ldb, &fb, (void *)c, ldc);
    else if (is64)
        o.code = ((GEMM(double, int))blas.gemm[1])(h->h, ta, tb, (int)m, (int)n, (int)k, &alpha, (void *)a, (int)lda,
            (void *)b, (int)ldb, &beta, (void *)c, (int)ldc);
    else
        o.code = ((GEMM(float, int))blas.gemm[0])(h->h, ta, tb, (int)m, (int)n, (int)k, &fa, (void *)a, (int)lda,
            (void *)b, (int)ldb, &fb, (void *)c, (int)ldc);
    return o;
}

static struct outcome handle_gemv(uintptr_t handle, int is64, int wide, uintptr_t stream, int t, int64_t m, int64_t n,
                                  double alpha, uintptr_t a, int64_t lda, uintptr_t x, double beta, uintptr_t y) {
    struct handle *h = (struct handle *)handle;
    struct outcome o = use(h, stream);
    float fa = (float)alpha, fb = (float)beta;
    if (o.code) return o;
    o.what = is64 ? "cublasDgemv_v2" : "cublasSgemv_v2";
    if (wide && is64)
        o.code = ((GEMV(double, int64_t))blas.gemv64[1])(h->h, t, m, n, &alpha, (void *)a, lda, (void *)x, 1,
            &beta, (void *)y, 1);
    else if (wide)
        o.code = ((GEMV(float, int64_t))blas.gemv64[0])(h->h, t, m, n, &fa, (void *)a, lda, (void *)x, 1, &fb,
            (void *)y, 1);
    else if (is64)
        o.code = ((GEMV(double, int))blas.gemv[1])(h->h, t, (int)m, (int)n, &alpha, (void *)a, (int)lda, (void *)x,
            1, &beta, (void *)y, 1);
    else
        o.code = ((GEMV(float, int))blas.gemv[0])(h->h, t, (int)m, (int)n, &fa, (void *)a, (int)lda, (void *)x,
            1, &fb, (void *)y, 1);
    return o;
}

// handle_scale is C = beta C, in place, for m x n column-major: C = beta C + 0 C, which for beta 0
// reads nothing.
static struct outcome handle_scale(uintptr_t handle, int is64, int wide, uintptr_t stream, int64_t m,
    int64_t n, double beta, uintptr_t c, int64_t ldc) {
    struct handle *h = (struct handle *)handle;
    struct outcome o = use(h, stream);
    float fb = (float)beta, fz = 0;
    double dz = 0;
    void *p = (void *)c;
    if (o.code) return o;
    o.what = is64 ? "cublasDgeam" : "cublasSgeam";
    if (wide && is64)
        o.code = ((GEAM(double, int64_t))blas.geam64[1])(h->h, OP_N, OP_N, m, n, &beta, p, ldc, &dz, p, ldc, p, ldc);
    else if (wide)
        o.code = ((GEAM(float, int64_t))blas.geam64[0])(h->h, OP_N, OP_N, m, n, &fb, p, ldc, &fz, p, ldc, p, ldc);
    else if (is64)
        o.code = ((GEAM(double, int))blas.geam[1])(h->h, OP_N, OP_N, (int)m, (int)n, &beta, p, (int)ldc, &dz,
            p, (int)ldc, p, (int)ldc);
    else
        o.code = ((GEAM(float, int))blas.geam[0])(h->h, OP_N, OP_N, (int)m, (int)n, &fb, p, (int)ldc, &fz, p,
            (int)ldc, p, (int)ldc);
    return o;
}
