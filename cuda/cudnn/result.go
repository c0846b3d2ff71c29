package cudnn

import (
	"fmt"
	"strings"

	"lockstep/cuda"
	"lockstep/internal/ccall"
)

// Result is a failing cudnnStatus_t of cuDNN 9. It is comparable, as syscall.Errno is. Thousands
// are kinds of failure.
type Result int32

// The kinds of failure.
const (
	ErrNotInitialized  Result = 1001
	ErrBadParam        Result = 2000
	ErrNotSupported    Result = 3000
	ErrInternal        Result = 4000
	ErrExecutionFailed Result = 5000
)

// names are the statuses by number. Source: cudnn_graph.h, cudnnStatus_t.
var names = map[Result]string{
	1001: "NOT_INITIALIZED", 1002: "SUBLIBRARY_VERSION_MISMATCH", 1003: "SERIALIZATION_VERSION_MISMATCH",
	1004: "DEPRECATED",
	1005: "LICENSE_ERROR", 1006: "RUNTIME_IN_PROGRESS", 1007: "RUNTIME_FP_OVERFLOW", 1008: "SUBLIBRARY_LOADING_FAILED",
	2000: "BAD_PARAM", 2002: "BAD_PARAM_NULL_POINTER", 2003: "BAD_PARAM_MISALIGNED_POINTER",
	2004: "BAD_PARAM_NOT_FINALIZED",
	2005: "BAD_PARAM_OUT_OF_BOUND", 2006: "BAD_PARAM_SIZE_INSUFFICIENT", 2007: "BAD_PARAM_STREAM_MISMATCH",
	2008: "BAD_PARAM_SHAPE_MISMATCH", 2009: "BAD_PARAM_DUPLICATED_ENTRIES", 2010: "BAD_PARAM_ATTRIBUTE_TYPE",
	2011: "BAD_PARAM_CUDA_GRAPH_MISMATCH", 2012: "BAD_PARAM_DESCRIPTOR_TYPE",
	3000: "NOT_SUPPORTED", 3001: "NOT_SUPPORTED_GRAPH_PATTERN", 3002: "NOT_SUPPORTED_SHAPE",
	3003: "NOT_SUPPORTED_DATA_TYPE",
	3004: "NOT_SUPPORTED_LAYOUT", 3005: "NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER",
	3006: "NOT_SUPPORTED_INCOMPATIBLE_CUDART",
	3007: "NOT_SUPPORTED_ARCH_MISMATCH", 3008: "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING",
	3009: "NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE", 3010: "NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT",
	3011: "NOT_SUPPORTED_PADDING",
	3012: "NOT_SUPPORTED_BAD_LAUNCH_PARAM", 3013: "NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API",
	4000: "INTERNAL_ERROR", 4001: "INTERNAL_ERROR_COMPILATION_FAILED", 4002: "INTERNAL_ERROR_UNEXPECTED_VALUE",
	4003: "INTERNAL_ERROR_HOST_ALLOCATION_FAILED", 4004: "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
	4005: "INTERNAL_ERROR_BAD_LAUNCH_PARAM", 4006: "INTERNAL_ERROR_TEXTURE_CREATION_FAILED",
	5000: "EXECUTION_FAILED", 5001: "EXECUTION_FAILED_CUDA_DRIVER", 5002: "EXECUTION_FAILED_CUBLAS",
	5003: "EXECUTION_FAILED_CUDART", 5004: "EXECUTION_FAILED_CURAND",
}

// Error returns the name of the status, such as "CUDNN_STATUS_NOT_SUPPORTED_SHAPE".
func (r Result) Error() string {
	if name, ok := names[r]; ok {
		return "CUDNN_STATUS_" + name
	}
	return fmt.Sprintf("cudnnStatus_t %d", int32(r))
}

// Is reports whether target is the status itself or its kind: NOT_SUPPORTED_SHAPE is NOT_SUPPORTED.
func (r Result) Is(target error) bool {
	kind, ok := target.(Result)
	return ok && (r == kind || kind >= 2000 && kind%1000 == 0 && r/1000 == kind/1000)
}

// failed returns the error of a call with a code other than 0. A negative one is the driver's: it
// was asked to make the device's context current before the call. The library's words may be
// several lines.
func failed(op string, code int, detail string) error {
	if code < 0 {
		return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: cuda.Result(-code)}
	}
	detail = strings.Join(strings.FieldsFunc(detail, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: Result(code), Detail: strings.TrimSpace(detail)}
}
