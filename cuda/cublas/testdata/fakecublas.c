// A test double of libcublas.so.13 and libcublasLt.so.13, as far as package cublas binds them. It
// computes by plain loops in host memory, column-major as the real ones. It is strict where they
// may be: a context must be current, and sizes of 0 are refused. A product must fit its operands,
// the workspace and the alignments that its algorithm was chosen for. 0 times infinity is NaN. Like
// the real one, cublasSetStream_v2 forgets the workspace.
//
// From the environment, read at every call:
//   FAKECUBLAS_LOG   a file; every call is a line in it, "cublasSgemv_v2 t=1 m=3 n=2 lda=3 ... = 0"
//   FAKECUBLAS_FAIL  "cublasLtMatmul=13": the status of every call of that function
//   FAKECUBLAS_NONE  a list of epilogues without an algorithm, "1,164" (1 is none at all)
//   FAKECUBLAS_SLOW  seconds that a product takes by each algorithm on the clock of events,
//                    "3,0,2"; as many algorithms as numbers, else one
// A symbol x is left out by -Dx=absent_x.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../testdata/half.h"

enum { OK = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { F32 = 0, F64 = 1, F16 = 2, BF16 = 14, E4M3 = 28, E5M2 = 29 };

// fate returns the status that FAKECUBLAS_FAIL sets, or the call's own.
static int fate(const char *fn, int own) {
    const char *list = getenv("FAKECUBLAS_FAIL");
    size_t n = strlen(fn);
    const char *at = list;
    while (at && (at = strstr(at, fn)) != NULL) {
        if ((at == list || at[-1] == ',') && at[n] == '=') return atoi(at + n + 1);
        at += n;
    }
    return own;
}

static int done(const char *fn, int rc, const char *format, ...) {
    const char *name = getenv("FAKECUBLAS_LOG");
    FILE *f = name ? fopen(name, "a") : NULL;
    if (f) {
        va_list args;
        va_start(args, format);
        fprintf(f, "%s ", fn);
        vfprintf(f, format, args);
        fprintf(f, " = %d\n", rc);
        va_end(args);
        fclose(f);
    }
    return rc;
}

// Every function begins by asking for its fate.
#define BEGIN int rc = fate(__func__, context() ? OK : NOT_INITIALIZED)
#define END(...) return done(__func__, rc, __VA_ARGS__)
#define NEED(condition, status) if (rc == OK && !(condition)) rc = status

// context returns the driver's current context on this thread.
static void *context(void) {
    static int (*get)(void **);
    void *c = NULL;
    if (!get) {
        void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (lib) *(void **)&get = dlsym(lib, "cuCtxGetCurrent");
    }
    return get && get(&c) == 0 ? c : NULL;
}

// pass lets time pass on the clock of the driver's double.
static void pass(int seconds) {
    static void (*fn)(int);
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (lib) *(void **)&fn = dlsym(lib, "fakeSeconds");
    if (fn) fn(seconds);
}

// from8 are the values of 8-bit floats with 4 bits of exponent and 3 of fraction, without
// infinities.
static double from8[256];
__attribute__((constructor)) static void fill_from8(void) {
    for (int x = 0; x < 256; x++) {
        int e = x >> 3 & 15, f = x & 7;
        double v = (x & 127) == 127 ? NAN : e ? ldexp(8 + f, e - 10) : ldexp(f, -9);
        from8[x] = x & 128 ? -v : v;
    }
}

static int bytes_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : type == E4M3 || type == E5M2 ? 1 : 2; }
static double get(int type, const void *p, int64_t i) {
    switch (type) {
    case F32: return ((const float *)p)[i];
    case F64: return ((const double *)p)[i];
    case F16: return from16(((const uint16_t *)p)[i]);
    case E4M3: return from8[((const uint8_t *)p)[i]];
    case E5M2: return from16(((const uint8_t *)p)[i] << 8);
    default: return frombf(((const uint16_t *)p)[i]);
    }
}
static void put(int type, void *p, int64_t i, double v) {
    switch (type) {
    case F32: ((float *)p)[i] = (float)v; break;
    case F64: ((double *)p)[i] = v; break;
    case F16: ((uint16_t *)p)[i] = to16((float)v); break;
    default: ((uint16_t *)p)[i] = tobf((float)v);
    }
}

// epilogue is the other work of a product; its values are cublasLtEpilogue_t's.
enum { DEFAULT = 1, BIAS = 4, GELU_AUX = 160, GELU_AUX_BIAS = 164, DGELU = 192 };
struct epilogue { int kind, type; void *bias, *aux; int64_t ldaux; };

static double gelu(double x) { return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double dgelu(double x) {
    double k = sqrt(2 / M_PI), t = tanh(k * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

// after turns v, the plain D(i, j), into the result.
static double after(const struct epilogue *e, int ct, int64_t i, int64_t j, double v) {
    if (e->kind == BIAS || e->kind == GELU_AUX_BIAS) v += get(e->type, e->bias, i);
    if (e->kind == GELU_AUX || e->kind == GELU_AUX_BIAS) {
        put(ct, e->aux, i + j * e->ldaux, v);
        v = gelu(v);
    }
    if (e->kind == DGELU) v *= dgelu(get(ct, e->aux, i + j * e->ldaux));
    return v;
}

static void gemm(int at, int bt, int ct, int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha,
    const void *a, int64_t lda, const void *b, int64_t ldb, double beta, const void *c, void *d, int64_t ldc,
    const struct epilogue *e) {
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += get(at, a, ta ? l + i * lda : i + l * lda) * get(bt, b, tb ? j + l * ldb : l + j * ldb);
            put(ct, d, i + j * ldc, after(e, ct, i, j, alpha * sum + (beta == 0 ? 0 : beta * get(ct, c, i + j * ldc))));
        }
}
static const struct epilogue nothing = {DEFAULT, 0, NULL, NULL, 0};

// cuBLASLt

struct handle { void *stream, *workspace; size_t bytes; int alive; };
struct desc { int compute, scale, ta, tb; struct epilogue e; int fast; const float *scale_a, *scale_b; };
struct layout { int type; uint64_t rows, cols; int64_t ld; int32_t count; int64_t apart; };
struct pref { size_t workspace; uint32_t mask, align[4]; };
struct algo { uint32_t magic, align[4], number; uint64_t workspace, spare[4]; };
struct heuristic { struct algo algo; size_t workspace; int state; float waves; int reserved[4]; };
_Static_assert(sizeof(struct algo) == 64 && sizeof(struct heuristic) == 96, "of cublasLt.h");

// Source: cublasLt.h, cublasLtMatmulDescAttributes_t.
enum { DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8, DESC_AUX_POINTER = 11,
    DESC_AUX_LD = 12, DESC_A_SCALE_POINTER = 17, DESC_B_SCALE_POINTER = 18, DESC_FAST_ACCUM = 25, DESC_BIAS_TYPE = 26 };

size_t cublasLtGetVersion(void) { return 130000; }
int cublasLtCreate(void **out) {
    BEGIN;
    *out = rc == OK ? calloc(1, sizeof(struct handle)) : NULL;
    END("");
}
int cublasLtDestroy(void *h) {
    BEGIN;
    free(h);
    END("");
}
int cublasLtMatmulDescCreate(struct desc **out, int compute, int scale) {
    BEGIN;
    NEED((compute == 68 && scale == F32) || (compute == 70 && scale == F64), NOT_SUPPORTED);
    *out = NULL;
    if (rc == OK) {
        *out = calloc(1, sizeof **out);
        **out = (struct desc){compute, scale, 0, 0, nothing, 0, NULL, NULL};
    }
    END("compute=%d scale=%d", compute, scale);
}
int cublasLtMatmulDescDestroy(struct desc *d) {
    BEGIN;
    free(d);
    END("");
}
int cublasLtMatmulDescSetAttribute(struct desc *d, int attr, const void *v, size_t size) {
    BEGIN;
    int wide = attr == DESC_BIAS_POINTER || attr == DESC_AUX_POINTER || attr == DESC_AUX_LD ||
        attr == DESC_A_SCALE_POINTER || attr == DESC_B_SCALE_POINTER;
    NEED(size == (wide ? 8 : attr == DESC_FAST_ACCUM ? 1 : 4) &&
        (wide || attr == DESC_FAST_ACCUM || attr == DESC_TRANSA || attr == DESC_TRANSB || attr == DESC_EPILOGUE ||
            attr == DESC_BIAS_TYPE), INVALID_VALUE);
    if (rc == OK) {
        switch (attr) {
        case DESC_TRANSA: d->ta = *(const int *)v; break;
        case DESC_TRANSB: d->tb = *(const int *)v; break;
        case DESC_EPILOGUE: d->e.kind = *(const int *)v; break;
        case DESC_BIAS_POINTER: d->e.bias = *(void *const *)v; break;
        case DESC_AUX_POINTER: d->e.aux = *(void *const *)v; break;
        case DESC_AUX_LD: d->e.ldaux = *(const int64_t *)v; break;
        case DESC_A_SCALE_POINTER: d->scale_a = *(float *const *)v; break;
        case DESC_B_SCALE_POINTER: d->scale_b = *(float *const *)v; break;
        case DESC_FAST_ACCUM: d->fast = *(const int8_t *)v; break;
        case DESC_BIAS_TYPE: d->e.type = *(const int *)v; break;
        }
    }
    END("attr=%d", attr);
}
int cublasLtMatrixLayoutCreate(struct layout **out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    BEGIN;
    NEED(rows > 0 && cols > 0 && ld >= (int64_t)rows, INVALID_VALUE);
    *out = NULL;
    if (rc == OK) {
        *out = calloc(1, sizeof **out);
        **out = (struct layout){type, rows, cols, ld, 1, 0};
    }
    END("type=%d rows=%ld cols=%ld ld=%ld", type, (long)rows, (long)cols, (long)ld);
}
int cublasLtMatrixLayoutSetAttribute(struct layout *l, int attr, const void *v, size_t size) {
    BEGIN;
    NEED((attr == 5 && size == 4) || (attr == 6 && size == 8), INVALID_VALUE);
    if (rc == OK && attr == 5) l->count = *(const int32_t *)v;
    if (rc == OK && attr == 6) l->apart = *(const int64_t *)v;
    END("attr=%d", attr);
}
int cublasLtMatrixLayoutDestroy(struct layout *l) {
    BEGIN;
    free(l);
    END("");
}
int cublasLtMatmulPreferenceCreate(struct pref **out) {
    BEGIN;
    *out = NULL;
    if (rc == OK) {
        *out = calloc(1, sizeof **out);
        **out = (struct pref){0, 7, {256, 256, 256, 256}};
    }
    END("");
}
int cublasLtMatmulPreferenceDestroy(struct pref *p) {
    BEGIN;
    free(p);
    END("");
}
int cublasLtMatmulPreferenceSetAttribute(struct pref *p, int attr, const void *v, size_t size) {
    BEGIN;
    NEED(attr == 1 ? size == 8 : size == 4 && (attr == 3 || (attr >= 5 && attr <= 8)), INVALID_VALUE);
    uint64_t shown = size == 8 ? *(const uint64_t *)v : *(const uint32_t *)v;
    if (rc == OK && attr == 1) p->workspace = shown;
    if (rc == OK && attr == 3) p->mask = (uint32_t)shown;
    if (rc == OK && attr >= 5) p->align[attr - 5] = (uint32_t)shown;
    END("attr=%d value=%ld", attr, (long)shown);
}

static int fits(const struct desc *d, const struct layout *a, const struct layout *b, const struct layout *c) {
    uint64_t k = d->ta ? a->rows : a->cols;
    int half = a->type == F16 || a->type == BF16;
    if (a->count != b->count || a->count != c->count) return 0;
    if (a->type == E4M3 || a->type == E5M2) // as tensor cores have it
        return (b->type == E4M3 || b->type == E5M2) && (a->type == E4M3 || b->type == E4M3) && c->type == BF16 &&
            d->ta && !d->tb && a->rows == b->rows && a->cols == c->rows && b->cols == c->cols &&
               d->compute == 68 && (a->rows | a->cols | a->ld | b->ld | c->ld) % 16 == 0;
    if (d->fast || d->scale_a || d->scale_b) return 0;
    return (d->ta ? a->cols : a->rows) == c->rows && (d->tb ? b->rows : b->cols) == c->cols &&
        (d->tb ? b->cols : b->rows) == k &&
           a->type == b->type && (c->type == a->type || (half && c->type == F32)) &&
           (d->compute == 70) == (a->type == F64);
}

static int aligned(const void *p, uint32_t to) { return (uintptr_t)p % to == 0; }

// known says whether an epilogue exists, with all its operands.
static int known(const struct epilogue *e, int ct, uint64_t rows) {
    int bias = e->kind == BIAS || e->kind == GELU_AUX_BIAS;
    int aux = e->kind == GELU_AUX || e->kind == GELU_AUX_BIAS || e->kind == DGELU;
    if (!bias && !aux) return e->kind == DEFAULT;
    if (ct == F64 || (bias && (e->type != ct || !e->bias || !aligned(e->bias, 16)))) return 0;
    return !aux || (e->aux && aligned(e->aux, 16) && e->ldaux >= (int64_t)rows && e->ldaux % 8 == 0);
}

// listed says whether a number is in a list of them.
static int listed(const char *list, int number) {
    for (; list && *list; list += strcspn(list, ","), list += *list == ',')
        if (atoi(list) == number) return 1;
    return 0;
}

// slow returns how many algorithms there are, and in *seconds how long number takes.
static int slow(int number, int *seconds) {
    const char *list = getenv("FAKECUBLAS_SLOW");
    int n = 0;
    *seconds = 0;
    for (; list && *list; list += strcspn(list, ","), list += *list == ',')
        if (n++ == number) *seconds = atoi(list);
    return n > 0 ? n : 1;
}

// The double asks for half of the workspace that it may have.
int cublasLtMatmulAlgoGetHeuristic(void *h, struct desc *d, struct layout *a, struct layout *b, struct layout *c,
    struct layout *e, struct pref *p, int want, struct heuristic *r, int *got) {
    BEGIN;
    (void)h;
    *got = 0;
    NEED(want >= 1 && c->rows == e->rows && c->cols == e->cols, INVALID_VALUE);
    NEED(fits(d, a, b, c), INVALID_VALUE);
    int seconds, n = slow(0, &seconds);
    if (rc == OK && known(&d->e, e->type, e->rows) && !listed(getenv("FAKECUBLAS_NONE"), d->e.kind)) {
        for (*got = 0; *got < n && *got < want; ++*got) {
            memset(r + *got, 0, sizeof *r);
            r[*got].algo.magic = 0xb1a5;
            r[*got].algo.number = (uint32_t)*got;
            r[*got].algo.workspace = r[*got].workspace = p->workspace / 2;
            memcpy(r[*got].algo.align, p->align, sizeof p->align);
        }
    }
    END("mask=%u workspace=%ld align=%u,%u,%u,%u epilogue=%d want=%d got=%d", p->mask, (long)p->workspace, p->align[0],
        p->align[1], p->align[2], p->align[3], d->e.kind, want, *got);
}

int cublasLtMatmul(void *h, struct desc *d, const void *alpha, const void *a, struct layout *la, const void *b,
    struct layout *lb, const void *beta, const void *c, struct layout *lc, void *out, struct layout *lo,
    const struct algo *algo, void *workspace, size_t bytes, void *stream) {
    BEGIN;
    (void)h;
    double fa = get(d->scale, alpha, 0), fb = get(d->scale, beta, 0);
    int seconds = 0;
    NEED(fits(d, la, lb, lc) && lo == lc && algo->magic == 0xb1a5 && known(&d->e, lo->type, lo->rows), INVALID_VALUE);
    NEED(bytes >= algo->workspace && (bytes == 0 || workspace != NULL), INVALID_VALUE);
    NEED(aligned(a, algo->align[0]) && aligned(b, algo->align[1]) && aligned(c, algo->align[2]) &&
        aligned(out, algo->align[3]), INVALID_VALUE);
    NEED(aligned(d->scale_a, 16) && aligned(d->scale_b, 16), NOT_SUPPORTED);
    NEED((int)algo->number < slow((int)algo->number, &seconds) && seconds >= 0, EXECUTION_FAILED);
    if (rc == OK) {
        if (bytes) memset(workspace, 0xff, bytes);
        pass(seconds);
        for (int64_t i = 0; i < lc->count; i++)
            gemm(la->type, lb->type, lc->type, d->ta, d->tb, lc->rows, lc->cols, d->ta ? la->rows : la->cols,
             fa * (d->scale_a ? *d->scale_a : 1) * (d->scale_b ? *d->scale_b : 1),
                 (const char *)a + i * la->apart * bytes_of(la->type), la->ld,
                 (const char *)b + i * lb->apart * bytes_of(lb->type), lb->ld, fb,
                 (const char *)c + i * lc->apart * bytes_of(lc->type), (char *)out + i * lc->apart * bytes_of(lc->type),
                 lc->ld, &d->e);
    }
    END("fast=%d scales=%p,%p epilogue=%d bias=%p of %d aux=%p ldaux=%ld algo=%u "
        "D=%p ta=%d tb=%d m=%ld n=%ld k=%ld lda=%ld ldb=%ld ldc=%ld ab=%d c=%d "
        "compute=%d alpha=%g beta=%g bytes=%ld A=%p B=%p C=%p stream=%p",
        d->fast, (const void *)d->scale_a, (const void *)d->scale_b, d->e.kind, d->e.bias, d->e.type, d->e.aux,
        (long)d->e.ldaux, algo->number, out, d->ta, d->tb, (long)lc->rows, (long)lc->cols,
        (long)(d->ta ? la->rows : la->cols), (long)la->ld, (long)lb->ld, (long)lc->ld, la->type, lc->type, d->compute,
        fa, fb, (long)bytes, a, b, c, stream);
}

int cublasLtMatrixTransformDescCreate(struct desc **out, int scale) {
    BEGIN;
    *out = NULL;
    if (rc == OK) {
        *out = calloc(1, sizeof **out);
        **out = (struct desc){0, scale, 0, 0, nothing, 0, NULL, NULL};
    }
    END("scale=%d", scale);
}
int cublasLtMatrixTransformDescDestroy(struct desc *d) {
    BEGIN;
    free(d);
    END("");
}
int cublasLtMatrixTransform(void *h, struct desc *d, const void *alpha, const void *a, struct layout *la,
    const void *beta, const void *b, struct layout *lb, void *c, struct layout *lc, void *stream) {
    BEGIN;
    (void)h;
    NEED(a == c && la == lc && b == NULL && lb == NULL && get(d->scale, beta, 0) == 0, NOT_SUPPORTED);
    for (uint64_t j = 0; rc == OK && j < lc->cols; j++)
        for (uint64_t i = 0; i < lc->rows; i++)
            put(lc->type, c, i + j * lc->ld, get(d->scale, alpha, 0) * get(lc->type, c, i + j * lc->ld));
    END("type=%d rows=%ld cols=%ld ld=%ld alpha=%g C=%p stream=%p", lc->type, (long)lc->rows,
        (long)lc->cols, (long)lc->ld, get(d->scale, alpha, 0), c, stream);
}

// cuBLAS

int cublasCreate_v2(struct handle **out) {
    BEGIN;
    *out = rc == OK ? calloc(1, sizeof **out) : NULL;
    END("");
}
int cublasDestroy_v2(struct handle *h) {
    BEGIN;
    free(h);
    END("");
}
int cublasSetStream_v2(struct handle *h, void *stream) {
    BEGIN;
    if (rc == OK) *h = (struct handle){stream, NULL, 0, 1};
    END("stream=%p", stream);
}
int cublasSetWorkspace_v2(struct handle *h, void *p, size_t bytes) {
    BEGIN;
    if (rc == OK) h->workspace = p, h->bytes = bytes;
    END("bytes=%ld", (long)bytes);
}

#define GEMM(name, T, I, type)                                                                                     \
    int name(struct handle *h, int ta, int tb, I m, I n, I k, const T *alpha, const T *a, I lda, const T *b,       \
        I ldb, const T *beta, T *c, I ldc) {                                                                       \
        BEGIN;                                                                                                     \
        NEED(m > 0 && n > 0 && k > 0 && lda >= (ta ? k : m) && ldb >= (tb ? n : k) && ldc >= m, INVALID_VALUE);    \
        if (rc == OK) gemm(type, type, type, ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, c, ldc, &nothing); \
        END("ta=%d tb=%d m=%ld n=%ld k=%ld lda=%ld ldb=%ld ldc=%ld alpha=%g beta=%g A=%p B=%p C=%p "               \
            "stream=%p workspace=%ld", ta, tb, (long)m, (long)n, (long)k, (long)lda, (long)ldb, (long)ldc,         \
            (double)*alpha, (double)*beta, (void *)a, (void *)b, (void *)c, h->stream, (long)h->bytes);            \
    }
GEMM(cublasSgemm_v2, float, int, F32)
GEMM(cublasDgemm_v2, double, int, F64)
GEMM(cublasSgemm_v2_64, float, int64_t, F32)
GEMM(cublasDgemm_v2_64, double, int64_t, F64)

#define GEMV(name, T, I, type)                                                                                        \
    int name(struct handle *h, int t, I m, I n, const T *alpha, const T *a, I lda, const T *x, I incx, const T *beta, \
        T *y, I incy) {                                                                                               \
        BEGIN;                                                                                                        \
        NEED(m > 0 && n > 0 && lda >= m && incx == 1 && incy == 1, INVALID_VALUE);                                    \
        if (rc == OK) gemm(type, type, type, t, 0, t ? n : m, 1, t ? m : n, *alpha, a, lda, x, t ? m : n, *beta,      \
            y, y, t ? n : m, &nothing);                                                                               \
        END("t=%d m=%ld n=%ld lda=%ld alpha=%g beta=%g A=%p x=%p y=%p stream=%p workspace=%ld", t, (long)m,           \
            (long)n, (long)lda,                                                                                       \
            (double)*alpha, (double)*beta, (void *)a, (void *)x, (void *)y, h->stream, (long)h->bytes);               \
    }
GEMV(cublasSgemv_v2, float, int, F32)
GEMV(cublasDgemv_v2, double, int, F64)
GEMV(cublasSgemv_v2_64, float, int64_t, F32)
GEMV(cublasDgemv_v2_64, double, int64_t, F64)

#define GEAM(name, T, I)                                                                                    \
    int name(struct handle *h, int ta, int tb, I m, I n, const T *alpha, const T *a, I lda, const T *beta,  \
        const T *b, I ldb, T *c,                                                                            \
             I ldc) {                                                                                       \
        BEGIN;                                                                                              \
        NEED(m > 0 && n > 0 && !ta && !tb && lda >= m && ldb >= m && ldc >= m && (a != c || lda == ldc),    \
            INVALID_VALUE);                                                                                 \
        for (I j = 0; rc == OK && j < n; j++)                                                               \
            for (I i = 0; i < m; i++)                                                                       \
                c[i + j * ldc] = (*alpha == 0 ? 0 : *alpha * a[i + j * lda]) +                              \
                    (*beta == 0 ? 0 : *beta * b[i + j * ldb]);                                              \
        END("m=%ld n=%ld alpha=%g beta=%g C=%p stream=%p", (long)m, (long)n, (double)*alpha, (double)*beta, \
            (void *)c, h->stream);                                                                          \
    }
GEAM(cublasSgeam, float, int)
GEAM(cublasDgeam, double, int)
GEAM(cublasSgeam_64, float, int64_t)
GEAM(cublasDgeam_64, double, int64_t)
