package cublas

import (
	"fmt"

	"lockstep/cuda"
	"lockstep/internal/ccall"
)

// Result is a failing cublasStatus_t. It is comparable, as syscall.Errno is.
type Result int32

// The statuses of cuBLAS and cuBLASLt.
const (
	ErrNotInitialized  Result = 1
	ErrAllocFailed     Result = 3
	ErrInvalidValue    Result = 7
	ErrArchMismatch    Result = 8
	ErrMapping         Result = 11
	ErrExecutionFailed Result = 13
	ErrInternal        Result = 14
	ErrNotSupported    Result = 15
	ErrLicense         Result = 16
)

var texts = map[Result]string{
	ErrNotInitialized:  "CUBLAS_STATUS_NOT_INITIALIZED: not initialized, often for lack of device memory",
	ErrAllocFailed:     "CUBLAS_STATUS_ALLOC_FAILED: out of memory",
	ErrInvalidValue:    "CUBLAS_STATUS_INVALID_VALUE: invalid argument",
	ErrArchMismatch:    "CUBLAS_STATUS_ARCH_MISMATCH: the device lacks what the operation needs",
	ErrMapping:         "CUBLAS_STATUS_MAPPING_ERROR: device memory could not be accessed",
	ErrExecutionFailed: "CUBLAS_STATUS_EXECUTION_FAILED: the kernel could not be launched",
	ErrInternal:        "CUBLAS_STATUS_INTERNAL_ERROR: internal error",
	ErrNotSupported:    "CUBLAS_STATUS_NOT_SUPPORTED: no algorithm for these types, shapes and alignments",
	ErrLicense:         "CUBLAS_STATUS_LICENSE_ERROR: no licence",
}

// Error returns the name and the meaning of the status, such as "CUBLAS_STATUS_NOT_SUPPORTED: ...".
func (r Result) Error() string {
	if text, ok := texts[r]; ok {
		return text
	}
	return fmt.Sprintf("cublasStatus_t %d", int32(r))
}

// check turns the code of a call into an error, nil for success. A negative code is the driver's:
// it was asked to make the device's context current before the call.
func check(op string, code int, detail string) error {
	switch {
	case code == 0:
		return nil
	case code < 0:
		return &ccall.Error{Op: "cuCtxSetCurrent", Rank: -1, At: ccall.At(), Err: cuda.Result(-code),
			Detail: "before " + op}
	default:
		return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: Result(code), Detail: detail}
	}
}
