package kernels

/*
#cgo linux LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include "guard.h"

struct launch {
	const uint64_t *words;
	const uint32_t *at;
	uint32_t blocks[3], threads[3], first, last;
	uint64_t shared;
	char *error;
};

static int call(void *f, void *out) { return ((int (*)(void *))f)(out); }

static int call_kernel(void *f, void *stop, struct launch *c, const uint64_t *words, const uint32_t *at,
		char *error, struct guard *g) {
	c->words = words;
	c->at = at;
	c->error = error;
	g->stop = (void (*)(void))stop;
	guard_set(g);
	int failed = ((int (*)(void *))f)(c);
	guard_set(NULL);
	return failed;
}

// place says how far behind the beginning of its library an address lies.
static uint64_t place(void *p) {
	Dl_info info;
	return dladdr(p, &info) ? (uint64_t)((char *)p - (char *)info.dli_fbase) : 0;
}
*/
import "C"

import (
	"errors"
	"unsafe"
)

// sysDescribe returns the text that a function of DESCRIBE writes.
func sysDescribe(f unsafe.Pointer) string {
	var text [16 << 10]byte // for some thousand parameters
	C.call(f, unsafe.Pointer(&text[0]))
	return C.GoString((*C.char)(unsafe.Pointer(&text[0])))
}

// sysCall runs a part of a launch. It keeps neither words nor at. After a failed access it returns
// the address, and the place in the library.
func sysCall(f, stop unsafe.Pointer, part Part, words []uint64, at []uint32) (address uintptr, place uint64,
	err error) {
	C.guard_install()
	c := C.struct_launch{first: C.uint32_t(part.First), last: C.uint32_t(part.Last),
		shared: C.uint64_t(part.Shared)}
	for i := range 3 {
		c.blocks[i], c.threads[i] = C.uint32_t(part.Blocks[i]), C.uint32_t(part.Threads[i])
	}
	var g C.struct_guard
	var text [256]byte
	if C.call_kernel(f, stop, &c, (*C.uint64_t)(unsafe.SliceData(words)), (*C.uint32_t)(unsafe.SliceData(at)),
		(*C.char)(unsafe.Pointer(&text[0])), &g) != 0 {
		err = errors.New(C.GoString((*C.char)(unsafe.Pointer(&text[0]))))
		if g.pc != nil {
			address, place = uintptr(g.address), uint64(C.place(g.pc))
		}
	}
	return address, place, err
}
