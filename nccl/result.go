package nccl

import (
	"fmt"
	"strings"

	"lockstep/cuda"
	"lockstep/internal/ccall"
)

// Result is a failing status of NCCL. It is comparable, as syscall.Errno is.
// Source: nccl.h, ncclResult_t.
type Result int32

// The statuses of NCCL.
const (
	ErrUnhandledCUDA   Result = 1
	ErrSystem          Result = 2
	ErrInternal        Result = 3
	ErrInvalidArgument Result = 4
	ErrInvalidUsage    Result = 5
	ErrRemote          Result = 6
	InProgress         Result = 7 // no failure: a call of a non-blocking communicator goes on
)

var results = [...]struct{ name, text string }{
	0:                  {"ncclSuccess", "no error"},
	ErrUnhandledCUDA:   {"ncclUnhandledCudaError", "a call to CUDA failed"},
	ErrSystem:          {"ncclSystemError", "a call to the system failed, such as one on a socket"},
	ErrInternal:        {"ncclInternalError", "an internal check failed"},
	ErrInvalidArgument: {"ncclInvalidArgument", "invalid argument"},
	ErrInvalidUsage:    {"ncclInvalidUsage", "invalid usage, or the ranks disagree"},
	ErrRemote:          {"ncclRemoteError", "a remote process exited or the network failed"},
	InProgress:         {"ncclInProgress", "the call is still in progress"},
}

// Error returns name, number and meaning, such as "ncclSystemError (2): a call to the system
// failed, ...".
func (r Result) Error() string {
	if r < 0 || int(r) >= len(results) {
		return fmt.Sprintf("NCCL result %d", int32(r))
	}
	return fmt.Sprintf("%s (%d): %s", results[r].name, int32(r), results[r].text)
}

// VersionError means that the NCCL at hand is too old for a call or a setting.
type VersionError struct {
	What string // such as "ncclCommWindowRegister"
	Need int    // the first version that has it, as Version returns it
	Have int    // the version at hand
}

// Error returns a line such as "ncclCommWindowRegister needs NCCL 2.27, this is 2.20.5".
func (e *VersionError) Error() string {
	need := strings.TrimSuffix(versionString(e.Need), ".0")
	return fmt.Sprintf("%s needs NCCL %s, this is %s", e.What, need, versionString(e.Have))
}

// versionString turns a version code into text. The code had one digit less before 2.9.
func versionString(v int) string {
	if v < 10000 {
		return fmt.Sprintf("%d.%d.%d", v/1000, v/100%10, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

// failed turns the outcome of a call into an error, and marks a communicator that cannot end in
// order any more. op is the C function; detail stands before the library's own text.
func (c *Comm) failed(op string, status int, detail string) error {
	switch Result(status) {
	case ErrUnhandledCUDA, ErrSystem, ErrInternal, ErrRemote:
		c.broken.Store(true)
	}
	return statusError(&c.link, c.rank, op, status, detail)
}

func statusError(l *link, rank int, op string, status int, detail string) error {
	e := &ccall.Error{Op: op, Rank: rank, At: ccall.At()}
	var text string
	switch {
	case status == statusClosed:
		e.Err, text = ErrInvalidUsage, "the communicator is closed"
	case status < 0: // the context could not be made current
		e.Op, e.Err = "cuCtxSetCurrent", cuda.Result(-status)
	default:
		e.Err, text = Result(status), sysLastError(l)
	}
	e.Detail = joinDetail(detail, text)
	return e
}

func joinDetail(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ": " + b
}

// refused returns the error of an argument that NCCL does not get to see.
func (c *Comm) refused(op, format string, args ...any) error {
	return &ccall.Error{Op: op, Rank: c.rank, At: ccall.At(), Err: ErrInvalidArgument,
		Detail: fmt.Sprintf(format, args...)}
}
