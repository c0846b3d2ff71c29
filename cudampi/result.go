package cudampi

import (
	"fmt"
	"strings"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Result is the class of a failing MPI code. It is comparable, as syscall.Errno is, and the same whatever the library
// adds to its codes; its number is the library's own.
type Result int32

// The classes that calls of this package can give.
const (
	ErrBuffer   Result = errBuffer
	ErrCount    Result = errCount
	ErrType     Result = errType
	ErrTag      Result = errTag
	ErrComm     Result = errComm
	ErrRank     Result = errRank
	ErrRequest  Result = errRequest
	ErrRoot     Result = errRoot
	ErrOp       Result = errOp
	ErrArg      Result = errArg
	ErrTruncate Result = errTruncate
	ErrOther    Result = errOther
	ErrIntern   Result = errIntern
	ErrInStatus Result = errInStatus
	ErrPending  Result = errPending
	ErrNoMem    Result = errNoMem
	ErrUnknown  Result = errUnknown
)

// Error returns the name and the meaning of the class, such as "MPI_ERR_TRUNCATE: message truncated".
func (r Result) Error() string {
	switch r {
	case ErrBuffer:
		return "MPI_ERR_BUFFER: invalid buffer pointer"
	case ErrCount:
		return "MPI_ERR_COUNT: invalid count argument"
	case ErrType:
		return "MPI_ERR_TYPE: invalid datatype"
	case ErrTag:
		return "MPI_ERR_TAG: invalid tag"
	case ErrComm:
		return "MPI_ERR_COMM: invalid communicator"
	case ErrRank:
		return "MPI_ERR_RANK: invalid rank"
	case ErrRequest:
		return "MPI_ERR_REQUEST: invalid request"
	case ErrRoot:
		return "MPI_ERR_ROOT: invalid root"
	case ErrOp:
		return "MPI_ERR_OP: invalid reduce operation"
	case ErrArg:
		return "MPI_ERR_ARG: invalid argument of some other kind"
	case ErrTruncate:
		return "MPI_ERR_TRUNCATE: message truncated"
	case ErrOther:
		return "MPI_ERR_OTHER: known error not in list"
	case ErrIntern:
		return "MPI_ERR_INTERN: internal error"
	case ErrInStatus:
		return "MPI_ERR_IN_STATUS: error code in status"
	case ErrPending:
		return "MPI_ERR_PENDING: pending request"
	case ErrNoMem:
		return "MPI_ERR_NO_MEM: out of memory"
	case ErrUnknown:
		return "MPI_ERR_UNKNOWN: unknown error"
	default:
		return fmt.Sprintf("MPI error class %d", int32(r))
	}
}

// check turns the code of a call into an error, nil for success.
func (c *Comm) check(op string, code int) error {
	if code == success {
		return nil
	}
	return c.failed(op, code, "")
}

// failed is the error of a failing code. detail replaces the library's text, which is left out where it says no more
// than the class does.
func (c *Comm) failed(op string, code int, detail string) error {
	class, text := sysError(code)
	r := Result(class)
	if detail == "" {
		if text = strings.Join(strings.Fields(text), " "); text != r.Error() {
			detail = text
		}
	}
	return c.errorf(op, r, "%s", detail)
}

func (c *Comm) errorf(op string, r Result, format string, args ...any) error {
	return &ccall.Error{Op: op, Rank: c.rank, At: ccall.At(), Err: r, Detail: fmt.Sprintf(format, args...)}
}

// checkMessage is check for a call that received: the message must have had exactly n elements. got is in bytes.
func (c *Comm) checkMessage(op string, code, got, n int, t elem.Type, from int) error {
	size := t.Size()
	switch {
	case code == success && got == n*size:
		return nil
	case code != success && Result(code) != ErrTruncate:
		if class, _ := sysError(code); Result(class) != ErrTruncate {
			return c.failed(op, code, "")
		}
	}
	r := ErrCount
	if code != success {
		r = ErrTruncate
	}
	switch {
	case code != success && got <= n*size: // the library cuts the length as well
		return c.errorf(op, r, "message from rank %d has more than the %d %v elements expected", from, n, t)
	case got%size != 0:
		return c.errorf(op, r, "message from rank %d has %d bytes, %d (%d %v elements) expected", from, got, n*size, n, t)
	default:
		return c.errorf(op, r, "message from rank %d has %d %v elements, %d expected", from, got/size, t, n)
	}
}
