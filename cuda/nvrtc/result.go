package nvrtc

import "fmt"

// Result is a failing nvrtcResult. It is comparable, as syscall.Errno is.
type Result int32

// The statuses that a program may want to tell apart.
const (
	ErrOutOfMemory    Result = 1
	ErrInvalidInput   Result = 3
	ErrInvalidOption  Result = 5
	ErrCompilation    Result = 6
	ErrBuiltinFailure Result = 7
	ErrInternal       Result = 11
)

var resultNames = map[Result]string{
	1:  "NVRTC_ERROR_OUT_OF_MEMORY: out of memory",
	2:  "NVRTC_ERROR_PROGRAM_CREATION_FAILURE: the program could not be created",
	3:  "NVRTC_ERROR_INVALID_INPUT: invalid argument",
	4:  "NVRTC_ERROR_INVALID_PROGRAM: invalid program handle",
	5:  "NVRTC_ERROR_INVALID_OPTION: the compiler refuses an option",
	6:  "NVRTC_ERROR_COMPILATION: the program does not compile",
	7:  "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: libnvrtc-builtins could not be used",
	10: "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID: invalid name expression",
	11: "NVRTC_ERROR_INTERNAL_ERROR: internal error",
	12: "NVRTC_ERROR_TIME_FILE_WRITE_FAILED: the file of times could not be written",
	13: "NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED: no precompiled header was made",
	14: "NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED: no room for the precompiled header",
	15: "NVRTC_ERROR_PCH_CREATE: the precompiled header could not be made",
	16: "NVRTC_ERROR_CANCELLED: cancelled",
	17: "NVRTC_ERROR_TIME_TRACE_FILE_WRITE_FAILED: the trace of times could not be written",
}

// Error returns the name and the meaning of the status, such as "NVRTC_ERROR_INVALID_OPTION: the
// compiler refuses an option".
func (r Result) Error() string {
	if name, ok := resultNames[r]; ok {
		return name
	}
	return fmt.Sprintf("nvrtcResult %d", int32(r))
}
