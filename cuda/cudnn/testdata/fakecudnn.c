// A test double of libcudnn.so.9, as far as package cudnn binds it: graphs of matrix products,
// pointwise operations, reductions and reshapes. It computes by plain loops in host memory from the
// descriptors alone: dimensions, strides, types, and the operands of each operation. It works as a
// host function of the stream, so that it keeps the stream's order and can be captured.
//
// It is strict where the real one may be. A context must be current. Every attribute must belong to
// its descriptor, with its type and number, before it is finalized. An operation's operands must be
// finalized and fit. An intermediate result is written once, before it is read. A pack names every
// tensor in memory and nothing else, aligned as was said. Nothing is used after its end.
//
// It has an engine only for the two graphs that are attention's, known by the sequence of their
// operations. The engine proposed first cannot be made ready. The results of the third differ
// between runs, as its note says. A run overwrites its workspace first.
//
// From the environment, read at every call:
//   FAKECUDNN_LOG      a file; every call is a line in it, "cudnnBackendFinalize kind=17 = 0"
//   FAKECUDNN_FAIL     "cudnnBackendExecute=5000", "cudnnBackendFinalize=4000@3": the status of
//                      every call, of the third
//   FAKECUDNN_VERSION  the result of cudnnGetVersion, 91400
//   FAKECUDNN_ENGINES  how many engines are proposed for a graph that is known, 2
//   FAKECUDNN_REFUSED  how many of them cannot be made ready, 1
//   FAKECUDNN_SLOW     the engine that takes a second more for a run, on the clock of events
//   FAKECUDNN_LIVE     a file; cudnnDestroy writes the number of descriptors that are left
// A symbol x is left out by -Dx=absent_x.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../testdata/half.h"

enum {
    OK = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NULL_POINTER = 2002, MISALIGNED = 2003, NOT_FINALIZED = 2004,
    SIZE = 2006, SHAPE = 2008, DUPLICATED = 2009, ATTRIBUTE_TYPE = 2010, DESCRIPTOR_TYPE = 2012, NOT_SUPPORTED = 3000,
    GRAPH_PATTERN = 3001
};
enum {
    POINTWISE = 0, ENGINE = 2, ENGINECFG = 3, ENGINEHEUR = 4, PLAN = 5, OP_POINTWISE = 13, GRAPH = 15,
    PACK = 16, TENSOR = 17,
    MATMUL = 18, OP_MATMUL = 19, REDUCTION = 21, OP_REDUCTION = 22, OP_RESHAPE = 31
};
enum { FLOAT = 0, HALF = 2, INT32 = 4, BFLOAT16 = 9, BOOLEAN = 11 };
enum { ADD = 0, MUL = 1, DIV = 6, SUB = 9, EXP = 13, LOG = 15, IDENTITY = 21, GE = 303, INDEX = 501, SELECT = 601 };

// The attributes: their kinds and types, their most elements, and whether they must be set.
static const struct rule { int kind, name, type, most, needed; } rules[] = {
    {POINTWISE, 0, 14, 1, 1}, {POINTWISE, 1, 1, 1, 1}, {POINTWISE, 9, 3, 1, 0},
    {ENGINEHEUR, 200, 8, 1, 1}, {ENGINEHEUR, 201, 15, 1, 1},
    {PLAN, 400, 0, 1, 1}, {PLAN, 401, 15, 1, 1},
    {OP_POINTWISE, 750, 15, 1, 1}, {OP_POINTWISE, 751, 15, 1, 1}, {OP_POINTWISE, 752, 15, 1, 0},
    {OP_POINTWISE, 753, 15, 1, 1},
    {OP_POINTWISE, 754, 4, 1, 0}, {OP_POINTWISE, 755, 4, 1, 0}, {OP_POINTWISE, 758, 15, 1, 0},
    {GRAPH, 800, 0, 1, 1}, {GRAPH, 801, 15, 64, 1},
    {TENSOR, 900, 3, 1, 1}, {TENSOR, 901, 1, 1, 1}, {TENSOR, 902, 3, 4, 1}, {TENSOR, 903, 3, 4, 1},
    {TENSOR, 906, 3, 1, 1}, {TENSOR, 907, 2, 1, 0}, {TENSOR, 908, 2, 1, 0},
    {PACK, 1000, 3, 32, 1}, {PACK, 1001, 6, 32, 1}, {PACK, 1003, 6, 1, 1},
    {MATMUL, 1500, 1, 1, 1},
    {OP_MATMUL, 1520, 15, 1, 1}, {OP_MATMUL, 1521, 15, 1, 1}, {OP_MATMUL, 1522, 15, 1, 1}, {OP_MATMUL, 1523, 15, 1, 1},
    {REDUCTION, 1600, 18, 1, 1}, {REDUCTION, 1601, 1, 1, 1},
    {OP_REDUCTION, 1610, 15, 1, 1}, {OP_REDUCTION, 1611, 15, 1, 1}, {OP_REDUCTION, 1612, 15, 1, 1},
    {OP_RESHAPE, 2200, 15, 1, 1}, {OP_RESHAPE, 2201, 15, 1, 1},
    {ENGINE, -1, 0, 0, 0}, {ENGINECFG, -1, 0, 0, 0},
};
enum { RULES = sizeof rules / sizeof *rules, MAGIC = 0x5eedc0de };

// size returns the bytes of an element of an attribute's type.
static size_t size(int type) {
    return type == 2 ? 1 : type == 3 || type == 5 || type == 6 || type == 0 || type == 15 ? 8 : 4;
}

struct desc {
    int magic, kind, final;
    struct { int n; char *v; } at[RULES];
    struct desc *of; // an engine's configuration: its graph
    int number;      // of the engine, from 0
};
struct handle { int magic; void *stream; };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int live;
static __thread char words[256]; // why the last call failed

// fate returns the status that FAKECUDNN_FAIL sets, or the call's own.
static int fate(const char *fn, int own) {
    static int calls;
    static char last[128];
    const char *list = getenv("FAKECUDNN_FAIL");
    size_t n = strlen(fn);
    int rc = own, status, turn = 0;
    if (!list || strncmp(list, fn, n) != 0 || list[n] != '=') return own;
    pthread_mutex_lock(&mu);
    if (strncmp(last, list, sizeof last - 1) != 0) {
        strncpy(last, list, sizeof last - 1);
        calls = 0;
    }
    calls++;
    if (sscanf(list + n + 1, "%d@%d", &status, &turn) >= 1 && (turn == 0 || turn == calls)) rc = status;
    pthread_mutex_unlock(&mu);
    return rc;
}

static int setting(const char *name, int otherwise) {
    const char *v = getenv(name);
    return v ? atoi(v) : otherwise;
}

static int done(const char *fn, int rc, const char *format, ...) {
    const char *name = getenv("FAKECUDNN_LOG");
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (rc) snprintf(words, sizeof words, "%s %.200s\nas the double says", fn, line);
    FILE *f = name ? fopen(name, "a") : NULL;
    if (f) {
        fprintf(f, "%s %s = %d\n", fn, line, rc);
        fclose(f);
    }
    return rc;
}

static void *driver(const char *name) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return lib ? dlsym(lib, name) : NULL;
}

// context returns the driver's current context on this thread.
static void *context(void) {
    static int (*get)(void **);
    void *c = NULL;
    if (!get) *(void **)&get = driver("cuCtxGetCurrent");
    return get && get(&c) == 0 ? c : NULL;
}

#define BEGIN int rc = fate(__func__, context() ? OK : NOT_INITIALIZED)
#define END(...) return done(__func__, rc, __VA_ARGS__)
#define NEED(condition, status) \
    if (rc == OK && !(condition)) rc = status

// Attributes.

static int alive(const struct desc *d) { return d != NULL && d->magic == MAGIC; }
static int ready(const struct desc *d, int kind) { return alive(d) && d->kind == kind && d->final; }

static int rule(int kind, int name) {
    for (int i = 0; i < RULES; i++)
        if (rules[i].kind == kind && rules[i].name == name) return i;
    return -1;
}
static const void *attr(const struct desc *d, int name) { return d->at[rule(d->kind, name)].v; }
static int count(const struct desc *d, int name) { return d->at[rule(d->kind, name)].n; }
static int number(const struct desc *d, int name) { return *(const int *)attr(d, name); }
static const int64_t *longs(const struct desc *d, int name) { return attr(d, name); }
static struct desc *link(const struct desc *d, int name) {
    return attr(d, name) ? *(struct desc *const *)attr(d, name) : NULL;
}
static bool flag(const struct desc *d, int name) { return attr(d, name) && *(const bool *)attr(d, name); }

size_t cudnnGetVersion(void) {
    return (size_t)setting("FAKECUDNN_VERSION", 91400);
}
void cudnnGetLastErrorString(char *message, size_t most) { snprintf(message, most, "%s", words); }

int cudnnCreate(struct handle **out) {
    BEGIN;
    *out = NULL;
    if (rc == OK) {
        *out = calloc(1, sizeof **out);
        (*out)->magic = MAGIC;
    }
    END("");
}
int cudnnDestroy(struct handle *h) {
    BEGIN;
    const char *name = getenv("FAKECUDNN_LIVE");
    FILE *f = name ? fopen(name, "w") : NULL;
    if (f) {
        fprintf(f, "%d\n", live);
        fclose(f);
    }
    h->magic = 0;
    END("");
}
int cudnnSetStream(struct handle *h, void *stream) {
    BEGIN;
    NEED(h->magic == MAGIC, NOT_INITIALIZED);
    if (rc == OK) h->stream = stream;
    END("");
}

int cudnnBackendCreateDescriptor(int kind, struct desc **out) {
    BEGIN;
    int known = 0;
    for (int i = 0; i < RULES; i++) known |= rules[i].kind == kind;
    NEED(known, NOT_SUPPORTED);
    *out = NULL;
    if (rc == OK) {
        *out = calloc(1, sizeof **out);
        (*out)->magic = MAGIC;
        (*out)->kind = kind;
        __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    }
    END("kind=%d", kind);
}
// A destroyed descriptor is kept, so that its later use is noticed.
int cudnnBackendDestroyDescriptor(struct desc *d) {
    BEGIN;
    NEED(alive(d), BAD_PARAM);
    if (alive(d)) {
        for (int i = 0; i < RULES; i++) free(d->at[i].v);
        d->magic = 0;
        __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
    }
    END("kind=%d", d->kind);
}
int cudnnBackendSetAttribute(struct desc *d, int name, int type, int64_t n, const void *values) {
    BEGIN;
    int i = alive(d) ? rule(d->kind, name) : -1;
    NEED(alive(d) && !d->final && i >= 0, BAD_PARAM);
    NEED(values != NULL, NULL_POINTER);
    NEED(type == rules[i].type, ATTRIBUTE_TYPE);
    NEED(n >= 1 && n <= rules[i].most, SIZE);
    if (rc == OK) {
        free(d->at[i].v);
        d->at[i].v = malloc(n * size(type));
        memcpy(d->at[i].v, values, n * size(type));
        d->at[i].n = (int)n;
    }
    END("kind=%d name=%d type=%d n=%d", alive(d) ? d->kind : -1, name, type, (int)n);
}

// Shapes.

static const int64_t *dims(const struct desc *t) { return longs(t, 902); }
static const int64_t *strides(const struct desc *t) { return longs(t, 903); }
static int type(const struct desc *t) { return number(t, 901); }
static int64_t extent(const struct desc *t) {
    int64_t n = 1;
    for (int i = 0; i < 4; i++) n += (dims(t)[i] - 1) * strides(t)[i];
    return n;
}
// over says whether x can be read at y's places: equal dimensions, or 1.
static int over(const struct desc *x, const struct desc *y) {
    for (int i = 0; i < 4; i++)
        if (dims(x)[i] != dims(y)[i] && dims(x)[i] != 1) return 0;
    return 1;
}

static int operands(int mode) {
    switch (mode) {
    case EXP: case LOG: case IDENTITY: case INDEX: return 1;
    case SELECT: return 3;
    default: return 2;
    }
}

static int check_pointwise(const struct desc *d) {
    struct desc *p = link(d, 750), *x = link(d, 751), *b = link(d, 752), *y = link(d, 753), *t = link(d, 758);
    if (!ready(p, POINTWISE) || !ready(x, TENSOR) || !ready(y, TENSOR)) return NOT_FINALIZED;
    int mode = number(p, 0), n = operands(mode), math = number(p, 1);
    if ((b != NULL) != (n > 1) || (t != NULL) != (n > 2)) return BAD_PARAM;
    if ((b && !ready(b, TENSOR)) || (t && !ready(t, TENSOR))) return NOT_FINALIZED;
    if (!over(x, y) || (b && !over(b, y)) || (t && !over(t, y))) return SHAPE;
    if (mode == GE ? math != BOOLEAN || type(y) != BOOLEAN || type(x) != INT32 || type(b) != INT32 : math != FLOAT)
        return BAD_PARAM;
    if (mode == INDEX && (type(y) != INT32 || attr(p, 9) == NULL)) return BAD_PARAM;
    if (mode == SELECT && type(t) != BOOLEAN) return BAD_PARAM;
    const float *a1 = attr(d, 754), *a2 = attr(d, 755);
    return (a1 && *a1 != 1) || (a2 && *a2 != 1) ? NOT_SUPPORTED : OK;
}
static int check_matmul(const struct desc *d) {
    struct desc *a = link(d, 1520), *b = link(d, 1521), *c = link(d, 1522);
    if (!ready(a, TENSOR) || !ready(b, TENSOR) || !ready(c, TENSOR) || !ready(link(d, 1523), MATMUL))
        return NOT_FINALIZED;
    for (int i = 0; i < 2; i++)
        if (dims(a)[i] != dims(c)[i] || dims(b)[i] != dims(c)[i]) return SHAPE;
    if (dims(a)[2] != dims(c)[2] || dims(b)[3] != dims(c)[3] || dims(a)[3] != dims(b)[2]) return SHAPE;
    return number(link(d, 1523), 1500) != FLOAT ? NOT_SUPPORTED : OK;
}
static int check_reduction(const struct desc *d) {
    struct desc *x = link(d, 1610), *y = link(d, 1611);
    if (!ready(x, TENSOR) || !ready(y, TENSOR) || !ready(link(d, 1612), REDUCTION)) return NOT_FINALIZED;
    return over(y, x) ? OK : SHAPE;
}
static int check_reshape(const struct desc *d) {
    struct desc *x = link(d, 2200), *y = link(d, 2201);
    if (!ready(x, TENSOR) || !ready(y, TENSOR)) return NOT_FINALIZED;
    return extent(x) == extent(y) && flag(y, 907) ? OK : SHAPE;
}

// reads lists the operands that an operation reads, and returns the one that it writes.
static struct desc *reads(const struct desc *op, struct desc *in[3]) {
    memset(in, 0, 3 * sizeof *in);
    switch (op->kind) {
    case OP_MATMUL: in[0] = link(op, 1520), in[1] = link(op, 1521); return link(op, 1522);
    case OP_REDUCTION: in[0] = link(op, 1610); return link(op, 1611);
    case OP_RESHAPE: in[0] = link(op, 2200); return link(op, 2201);
    default: in[0] = link(op, 751), in[1] = link(op, 752), in[2] = link(op, 758); return link(op, 753);
    }
}

static struct desc *op(const struct desc *graph, int i) { return ((struct desc *const *)attr(graph, 801))[i]; }

static int check_graph(const struct desc *d) {
    struct desc *written[64], *in[3];
    int n = count(d, 801);
    for (int i = 0; i < n; i++) {
        if (!alive(op(d, i)) || !op(d, i)->final) return NOT_FINALIZED;
        written[i] = reads(op(d, i), in);
        for (int k = 0; k < 3; k++) {
            int found = 0;
            for (int j = 0; j < i; j++) found |= in[k] && written[j] == in[k];
            if (in[k] && flag(in[k], 907) && !found) return BAD_PARAM; // read before it is written
        }
        if (flag(written[i], 908)) return BAD_PARAM;
        for (int j = 0; j < i; j++)
            if (written[j] == written[i]) return DUPLICATED;
    }
    return OK;
}

// form writes the sequence of operations: a letter each.
static void form(const struct desc *d, char *s) {
    int n = count(d, 801);
    for (int i = 0; i < n; i++) {
        const struct desc *o = op(d, i);
        switch (o->kind) {
        case OP_MATMUL: s[i] = 'M'; break;
        case OP_REDUCTION: s[i] = number(link(o, 1612), 1600) == 3 ? 'X' : 'S'; break;
        case OP_RESHAPE: s[i] = 'R'; break;
        default:
            switch (number(link(o, 750), 0)) {
            case ADD: s[i] = '+'; break;
            case MUL: s[i] = '*'; break;
            case DIV: s[i] = '/'; break;
            case SUB: s[i] = '-'; break;
            case EXP: s[i] = 'e'; break;
            case LOG: s[i] = 'l'; break;
            case IDENTITY: s[i] = '='; break;
            case GE: s[i] = '>'; break;
            case INDEX: s[i] = 'i'; break;
            default: s[i] = '?';
            }
        }
    }
    s[n] = 0;
}
static int known(const struct desc *graph) {
    char s[65];
    form(graph, s);
    return strcmp(s, "M*ii>?X-eSl+/M") == 0 || strcmp(s, "*S*M*-ii>?eRMM-**RMRM=") == 0 ||
        strcmp(s, "*S*M*-ii>?eRMM-**RMRM") == 0;
}

int cudnnBackendFinalize(struct desc *d) {
    BEGIN;
    NEED(alive(d) && !d->final, BAD_PARAM);
    for (int i = 0; i < RULES; i++)
        if (rules[i].kind == d->kind && rules[i].needed) NEED(d->at[i].v != NULL, BAD_PARAM);
    if (rc == OK) switch (d->kind) {
    case TENSOR:
        NEED(count(d, 902) == 4 && count(d, 903) == 4 && !(flag(d, 907) && flag(d, 908)), BAD_PARAM);
        for (int i = 0; rc == OK && i < 4; i++) NEED(dims(d)[i] > 0 && strides(d)[i] > 0, BAD_PARAM);
        break;
    case OP_POINTWISE: rc = check_pointwise(d); break;
    case OP_MATMUL: rc = check_matmul(d); break;
    case OP_REDUCTION: rc = check_reduction(d); break;
    case OP_RESHAPE: rc = check_reshape(d); break;
    case GRAPH:
        NEED(((struct handle *)*(void *const *)attr(d, 800))->magic == MAGIC, NOT_INITIALIZED);
        if (rc == OK) rc = check_graph(d);
        break;
    case ENGINEHEUR:
        NEED(ready(link(d, 201), GRAPH), NOT_FINALIZED);
        NEED(number(d, 200) == 3, NOT_SUPPORTED);
        NEED(known(link(d, 201)), GRAPH_PATTERN);
        break;
    case PLAN:
        NEED(((struct handle *)*(void *const *)attr(d, 400))->magic == MAGIC, NOT_INITIALIZED);
        NEED(ready(link(d, 401), ENGINECFG), NOT_FINALIZED);
        NEED(link(d, 401)->number >= setting("FAKECUDNN_REFUSED", 1), NOT_SUPPORTED);
        break;
    case PACK:
        NEED(count(d, 1000) == count(d, 1001), BAD_PARAM);
        break;
    case ENGINE: case ENGINECFG: rc = BAD_PARAM; break;
    }
    if (rc == OK) d->final = 1;
    END("kind=%d", alive(d) ? d->kind : -1);
}

enum { WORKSPACE = 4096 };

int cudnnBackendGetAttribute(const struct desc *d, int name, int type, int64_t n, int64_t *got, void *values) {
    BEGIN;
    NEED(alive(d) && d->final, NOT_FINALIZED);
    if (rc != OK) {
    } else if (d->kind == ENGINEHEUR && name == 202 && type == 15) {
        *got = setting("FAKECUDNN_ENGINES", 2);
        for (int i = 0; i < n && i < *got; i++) {
            struct desc *c = ((struct desc **)values)[i];
            NEED(alive(c) && c->kind == ENGINECFG, DESCRIPTOR_TYPE);
            if (rc == OK) c->of = link(d, 201), c->number = i, c->final = 1;
        }
    } else if (d->kind == ENGINECFG && name == 300 && type == 15) {
        struct desc *c = *(struct desc **)values;
        NEED(n == 1 && alive(c) && c->kind == ENGINE, DESCRIPTOR_TYPE);
        if (rc == OK) c->number = d->number, c->final = 1, *got = 1;
    } else if (d->kind == ENGINE && name == 1301 && type == 3 && n == 1) {
        *(int64_t *)values = d->number;
        *got = 1;
    } else if (d->kind == ENGINE && name == 1303 && type == 11 && n >= 2) {
        ((int *)values)[0] = 0;
        ((int *)values)[1] = 4;
        *got = d->number == 2 ? 2 : 1;
    } else if (d->kind == PLAN && name == 402 && type == 3 && n == 1) {
        *(int64_t *)values = WORKSPACE;
        *got = 1;
    } else rc = BAD_PARAM;
    END("kind=%d name=%d n=%d", alive(d) ? d->kind : -1, name, (int)n);
}

#include "fakecudnn_execute.h"
