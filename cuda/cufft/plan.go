package cufft

import (
	"fmt"
	"sync"
	"unsafe"

	"lockstep/cuda"
)

var files = []string{"libcufft.so.12", "libcufft.so.11"}

var load = sync.OnceValue(func() error {
	if err := openLibrary(files); err != nil {
		return fmt.Errorf("cuFFT cannot be used: %w", err)
	}
	return nil
})

// Kind is the kind of a plan's transforms. Source: cufft.h, cufftType.
type Kind int32

// The kinds: C and Z are complex numbers of floats and doubles, R and D real ones.
const (
	C2C Kind = 0x29
	R2C Kind = 0x2a
	C2R Kind = 0x2c
	Z2Z Kind = 0x69
	D2Z Kind = 0x6a
	Z2D Kind = 0x6c
)

// Plan is transforms of one shape. It serves one stream at a time, and one goroutine.
type Plan struct {
	p       plan // nil once closed
	kind    Kind
	bytes   int
	work    unsafe.Pointer // that the library was told of last
	started bool
}

// Open loads cuFFT (of CUDA 12 or 13) if that has not happened. It plans batch transforms of arrays
// that lie one behind the other. Their sizes are dims; the last dimension has neighbours in memory.
// Source: cufft.h, cufftMakePlanMany64.
func Open(d *cuda.Device, kind Kind, dims []int, batch int) (*Plan, error) {
	if err := load(); err != nil {
		return nil, err
	}
	p, bytes, code, op := sysOpen(d.Bind(), kind, dims, batch)
	if code != 0 {
		return nil, check(op, code)
	}
	return &Plan{p: p, kind: kind, bytes: bytes}, nil
}

// Workspace returns the bytes of device memory that Run needs.
func (p *Plan) Workspace() int { return p.bytes }

// The direction of Run.
const Forward, Inverse = false, true

// Run enqueues the transforms on s, with no factor. The sign of the exponent is -1 or, if inverse
// is Inverse, 1. work has Workspace bytes. dst may be src if both are complex. A transform to real
// numbers overwrites src. Source: cufft.h, cufftExecC2C and the like.
func (p *Plan) Run(s *cuda.Stream, dst, src, work unsafe.Pointer, inverse bool) error {
	if p.p == nil {
		return fmt.Errorf("cufft: the plan is closed")
	}
	told := p.started && work == p.work
	code, op := sysRun(p.p, p.kind, s, dst, src, work, inverse, !told)
	if code == 0 {
		p.work, p.started = work, true
	}
	return check(op, code)
}

// Close frees p. Further calls do nothing. Source: cufft.h, cufftDestroy.
func (p *Plan) Close() error {
	if p.p == nil {
		return nil
	}
	code := sysClose(p.p)
	p.p = nil
	return check("cufftDestroy", code)
}
