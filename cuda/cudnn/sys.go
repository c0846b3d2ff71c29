package cudnn

/*
#cgo nocallback run

#include "sys.h"
*/
import "C"

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/dl"
)

// slot returns the place of an entry point in C's table, whose fields are pointers to functions.
func slot[T any](p *T) *unsafe.Pointer { return (*unsafe.Pointer)(unsafe.Pointer(p)) }

func openLibrary(files []string) (string, error) {
	t := &C.dnn
	return dl.Open([]dl.Sym{
		{Name: "cudnnGetVersion", Slot: slot(&t.version)},
		{Name: "cudnnGetLastErrorString", Slot: slot(&t.last_error)},
		{Name: "cudnnCreate", Slot: slot(&t.create)},
		{Name: "cudnnDestroy", Slot: slot(&t.destroy)},
		{Name: "cudnnSetStream", Slot: slot(&t.set_stream)},
		{Name: "cudnnBackendCreateDescriptor", Slot: slot(&t.desc_create)},
		{Name: "cudnnBackendDestroyDescriptor", Slot: slot(&t.desc_destroy)},
		{Name: "cudnnBackendSetAttribute", Slot: slot(&t.set)},
		{Name: "cudnnBackendGetAttribute", Slot: slot(&t.get)},
		{Name: "cudnnBackendFinalize", Slot: slot(&t.finalize)},
		{Name: "cudnnBackendExecute", Slot: slot(&t.execute)},
	}, files...)
}

func sysVersion() int { return int(C.version()) }

// took turns the outcome of a call into an error, nil for success.
func took(o C.struct_outcome) error {
	if o.code == 0 {
		return nil
	}
	detail := ""
	if o.detail != nil {
		detail = C.GoString(o.detail)
		C.free(unsafe.Pointer(o.detail))
	}
	return failed(C.GoString(o.what), int(o.code), detail)
}

// handle and plan are structures in C's memory, descriptor is one of the library's.
type (
	handle     = *C.struct_handle
	plan       = *C.struct_plan
	descriptor unsafe.Pointer
)

func sysCreate(b cuda.Bind) (handle, error) {
	h := (handle)(C.calloc(1, C.sizeof_struct_handle))
	h.enter, h.context = C.enter_fn(b.Enter), b.Context
	if err := took(C.handle_create(h)); err != nil {
		C.free(unsafe.Pointer(h))
		return nil, err
	}
	return h, nil
}

func sysDestroy(h handle) error {
	defer C.free(unsafe.Pointer(h))
	return took(C.handle_destroy(h))
}

func sysDescriptor(h handle, kind int) (d descriptor, err error) {
	var p unsafe.Pointer
	err = took(C.desc_create(h, C.int(kind), &p))
	return descriptor(p), err
}

func sysDestroyDescriptor(h handle, d descriptor) error {
	return took(C.desc_destroy(h, unsafe.Pointer(d)))
}

func sysSet(h handle, d descriptor, name, typ, n int, values unsafe.Pointer) error {
	return took(C.desc_set(h, unsafe.Pointer(d), C.int(name), C.int(typ), C.int64_t(n), values))
}

// sysGet reads up to n values and returns how many there are.
func sysGet(h handle, d descriptor, name, typ, n int, values unsafe.Pointer) (int, error) {
	var got C.int64_t
	err := took(C.desc_get(h, unsafe.Pointer(d), C.int(name), C.int(typ), C.int64_t(n), &got, values))
	return int(got), err
}

func sysFinalize(h handle, d descriptor) error { return took(C.desc_finalize(h, unsafe.Pointer(d))) }

const (
	mostOperands = C.MOST_OPERANDS
	mostScalars  = C.MOST_SCALARS
)

// sysPlan makes an execution plan ready to run. operands are the ids of the tensors whose addresses
// a run is given, in that order; scalars are the ids of those with the given values.
func sysPlan(h handle, d descriptor, operands, scalars []int64, values []float32) plan {
	p := (plan)(C.calloc(1, C.sizeof_struct_plan))
	p.handle, p.plan = h, unsafe.Pointer(d)
	p.operands, p.scalars = C.int(len(operands)), C.int(len(scalars))
	for i, id := range operands {
		p.uids[i] = C.int64_t(id)
	}
	for i, id := range scalars {
		p.uids[len(operands)+i], p.values[i] = C.int64_t(id), C.float(values[i])
	}
	return p
}

func sysFreePlan(p plan) { C.free(unsafe.Pointer(p)) }

// address passes device memory.
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(ccall.Address(p)) }

func sysRun(p plan, s *cuda.Stream, operands [mostOperands]unsafe.Pointer, workspace unsafe.Pointer) error {
	var at C.struct_operands
	for i, o := range operands {
		at.p[i] = address(o)
	}
	return took(C.run(address(unsafe.Pointer(p)), address(s.Handle()), at, address(workspace)))
}
