package nvrtc

// The binding of NVRTC: prototypes, symbol table and trampolines.

/*
#include <stddef.h>
#include <stdlib.h>

typedef struct program *program; // opaque to callers of NVRTC

typedef int (*version_fn)(int *major, int *minor);
typedef int (*count_fn)(int *n);
typedef int (*create_fn)(program *p, const char *source, const char *name, int n, const char *const *headers,
	const char *const *names);
typedef int (*destroy_fn)(program *p);
typedef int (*compile_fn)(program p, int n, const char *const *options);
typedef int (*size_fn)(program p, size_t *size);
typedef int (*bytes_fn)(program p, char *bytes);
typedef int (*add_name_fn)(program p, const char *expression);
typedef int (*lowered_fn)(program p, const char *expression, const char **name);

static int version(void *f, int *major, int *minor) { return ((version_fn)f)(major, minor); }
static int ints(void *f, int *v) { return ((count_fn)f)(v); }
static int create(void *f, program *p, const char *source, const char *name, int n, char **headers, char **names) {
	return ((create_fn)f)(p, source, name, n, (const char *const *)headers, (const char *const *)names);
}
static int destroy(void *f, program *p) { return ((destroy_fn)f)(p); }
static int compile(void *f, program p, int n, char **options) {
	return ((compile_fn)f)(p, n, (const char *const *)options);
}
static int add_name(void *f, program p, const char *expression) { return ((add_name_fn)f)(p, expression); }
static int lowered(void *f, program p, const char *expression, const char **name) {
	return ((lowered_fn)f)(p, expression, name);
}
static int size_of(void *f, program p, size_t *size) { return ((size_fn)f)(p, size); }
static int bytes_of(void *f, program p, char *bytes) { return ((bytes_fn)f)(p, bytes); }
*/
import "C"

import (
	"unsafe"

	"lockstep/internal/dl"
)

// lib holds the entry points of NVRTC, valid once Load has returned nil.
var lib struct {
	version, numArchs, archs unsafe.Pointer
	create, destroy, compile unsafe.Pointer
	addName, lowered         unsafe.Pointer
	logSize, log             unsafe.Pointer
	cubinSize, cubin         unsafe.Pointer
	ptxSize, ptx             unsafe.Pointer
}

// open loads the first of files and returns its path.
func open(files []string) (string, error) {
	return dl.Open([]dl.Sym{
		{Name: "nvrtcVersion", Slot: &lib.version},
		{Name: "nvrtcGetNumSupportedArchs", Slot: &lib.numArchs},
		{Name: "nvrtcGetSupportedArchs", Slot: &lib.archs},
		{Name: "nvrtcCreateProgram", Slot: &lib.create},
		{Name: "nvrtcDestroyProgram", Slot: &lib.destroy},
		{Name: "nvrtcCompileProgram", Slot: &lib.compile},
		{Name: "nvrtcAddNameExpression", Slot: &lib.addName},
		{Name: "nvrtcGetLoweredName", Slot: &lib.lowered},
		{Name: "nvrtcGetProgramLogSize", Slot: &lib.logSize},
		{Name: "nvrtcGetProgramLog", Slot: &lib.log},
		{Name: "nvrtcGetCUBINSize", Slot: &lib.cubinSize},
		{Name: "nvrtcGetCUBIN", Slot: &lib.cubin},
		{Name: "nvrtcGetPTXSize", Slot: &lib.ptxSize},
		{Name: "nvrtcGetPTX", Slot: &lib.ptx},
	}, files...)
}

func sysVersion() (major, minor, code int) {
	var a, b C.int
	code = int(C.version(lib.version, &a, &b))
	return int(a), int(b), code
}

// sysArchs returns the capabilities that NVRTC compiles for, in ascending order.
func sysArchs() (archs []int, op string, code int) {
	var n C.int
	if code = int(C.ints(lib.numArchs, &n)); code != 0 || n == 0 {
		return nil, "nvrtcGetNumSupportedArchs", code
	}
	v := make([]C.int, n)
	if code = int(C.ints(lib.archs, &v[0])); code != 0 {
		return nil, "nvrtcGetSupportedArchs", code
	}
	for _, a := range v {
		archs = append(archs, int(a))
	}
	return archs, "", 0
}

// texts is an array of C strings in C's memory.
type texts struct {
	p unsafe.Pointer
	n int
}

func newTexts(s []string) texts {
	t := texts{C.malloc(C.size_t(max(1, len(s))) * C.size_t(unsafe.Sizeof(uintptr(0)))), len(s)}
	for i, p := range s {
		t.slice()[i] = C.CString(p)
	}
	return t
}

func (t texts) slice() []*C.char { return unsafe.Slice((**C.char)(t.p), t.n) }

func (t texts) free() {
	for _, p := range t.slice() {
		C.free(unsafe.Pointer(p))
	}
	C.free(t.p)
}

// program is an nvrtcProgram.
type program struct{ p C.program }

func sysCreate(name, source string, headers, names []string) (*program, int) {
	src, file := C.CString(source), C.CString(name)
	defer C.free(unsafe.Pointer(src))
	defer C.free(unsafe.Pointer(file))
	h, n := newTexts(headers), newTexts(names)
	defer h.free()
	defer n.free()
	var p program
	code := int(C.create(lib.create, &p.p, src, file, C.int(len(headers)), (**C.char)(h.p), (**C.char)(n.p)))
	return &p, code
}

func (p *program) destroy() int { return int(C.destroy(lib.destroy, &p.p)) }

func (p *program) compile(options []string) int {
	o := newTexts(options)
	defer o.free()
	return int(C.compile(lib.compile, p.p, C.int(len(options)), (**C.char)(o.p)))
}

// addName has the compiler instantiate a name expression.
func (p *program) addName(expression string) int {
	e := C.CString(expression)
	defer C.free(unsafe.Pointer(e))
	return int(C.add_name(lib.addName, p.p, e))
}

// lowered returns the name of an expression in the code. It belongs to the program.
func (p *program) lowered(expression string) (name string, code int) {
	e := C.CString(expression)
	defer C.free(unsafe.Pointer(e))
	var n *C.char
	if code = int(C.lowered(lib.lowered, p.p, e, &n)); code != 0 {
		return "", code
	}
	return C.GoString(n), 0
}

// bytes returns the result of the pair of entry points for the size and the bytes.
func (p *program) bytes(size, get unsafe.Pointer) (b []byte, code int) {
	var n C.size_t
	if code = int(C.size_of(size, p.p, &n)); code != 0 || n == 0 {
		return nil, code
	}
	b = make([]byte, n)
	code = int(C.bytes_of(get, p.p, (*C.char)(unsafe.Pointer(&b[0]))))
	return b, code
}
