// Package cufft transforms arrays in device memory by NVIDIA's cuFFT.
//
// The library is looked for when it is first needed; a program that imports this package builds and
// runs without it. A failing call is a *ccall.Error whose status is a Result, or a cuda.Result if
// the device itself refused.
package cufft

import (
	"fmt"

	"lockstep/cuda"
	"lockstep/internal/ccall"
)

// Result is a failing cufftResult. It is comparable, as syscall.Errno is.
type Result int32

// names has the names of the statuses. Source: cufft.h, cufftResult.
var names = map[Result]string{1: "CUFFT_INVALID_PLAN", 2: "CUFFT_ALLOC_FAILED", 3: "CUFFT_INVALID_TYPE",
	4: "CUFFT_INVALID_VALUE",
	5: "CUFFT_INTERNAL_ERROR", 6: "CUFFT_EXEC_FAILED", 7: "CUFFT_SETUP_FAILED", 8: "CUFFT_INVALID_SIZE",
	9:  "CUFFT_UNALIGNED_DATA",
	11: "CUFFT_INVALID_DEVICE", 13: "CUFFT_NO_WORKSPACE", 14: "CUFFT_NOT_IMPLEMENTED", 16: "CUFFT_NOT_SUPPORTED"}

// Error returns the name of the status.
func (r Result) Error() string {
	if name := names[r]; name != "" {
		return name
	}
	return fmt.Sprintf("cufftResult %d", int32(r))
}

// check turns the code of a call into an error, nil for success. A negative code is the driver's:
// it was asked to make the device's context current before the call.
func check(op string, code int) error {
	switch {
	case code == 0:
		return nil
	case code < 0:
		return &ccall.Error{Op: "cuCtxSetCurrent", Rank: -1, At: ccall.At(), Err: cuda.Result(-code),
			Detail: "before " + op}
	default:
		return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: Result(code)}
	}
}
