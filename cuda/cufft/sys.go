package cufft

/*
#cgo nocallback plan_run

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

func openLibrary(files []string) error {
	t := &C.cufft
	_, err := dl.Open([]dl.Sym{
		{Name: "cufftCreate", Slot: slot(&t.create)},
		{Name: "cufftDestroy", Slot: slot(&t.destroy)},
		{Name: "cufftSetAutoAllocation", Slot: slot(&t.auto_allocation)},
		{Name: "cufftMakePlanMany64", Slot: slot(&t.make)},
		{Name: "cufftSetWorkArea", Slot: slot(&t.work_area)},
		{Name: "cufftSetStream", Slot: slot(&t.stream)},
		{Name: "cufftExecC2C", Slot: slot(&t.c2c)},
		{Name: "cufftExecZ2Z", Slot: slot(&t.z2z)},
		{Name: "cufftExecR2C", Slot: slot(&t.r2c)},
		{Name: "cufftExecC2R", Slot: slot(&t.c2r)},
		{Name: "cufftExecD2Z", Slot: slot(&t.d2z)},
		{Name: "cufftExecZ2D", Slot: slot(&t.z2d)},
	}, files...)
	return err
}

// plan is a structure in C's memory.
type plan = *C.struct_plan

func took(o C.struct_outcome) (code int, op string) {
	if o.code == 0 {
		return 0, ""
	}
	return int(o.code), C.GoString(o.what)
}

func sysOpen(b cuda.Bind, kind Kind, dims []int, batch int) (p plan, bytes, code int, op string) {
	p = (plan)(C.calloc(1, C.sizeof_struct_plan))
	p.enter, p.context = C.enter_fn(b.Enter), b.Context
	var n [3]C.longlong
	for i, d := range dims {
		n[i] = C.longlong(d)
	}
	var work C.size_t
	code, op = took(C.plan_open(p, C.int(kind), C.int(len(dims)), &n[0], C.longlong(batch), &work))
	if code != 0 {
		C.free(unsafe.Pointer(p))
		return nil, 0, code, op
	}
	return p, int(work), 0, ""
}

func sysRun(
	p plan, kind Kind, s *cuda.Stream, dst, src, work unsafe.Pointer, inverse, tell bool,
) (code int, op string) {
	direction, told := C.int(-1), C.int(0)
	if inverse {
		direction = 1
	}
	if tell {
		told = 1
	}
	return took(C.plan_run(address(unsafe.Pointer(p)), C.int(kind), address(s.Handle()), address(dst),
		address(src), address(work), direction, told))
}

// address passes device memory, and memory of C.
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(ccall.Address(p)) }

func sysClose(p plan) int {
	defer C.free(unsafe.Pointer(p))
	return int(C.plan_close(p))
}
