package cudampi

import "fmt"

// Result is the class of a failing MPI code. It is comparable, as syscall.Errno is, and the same
// whatever the library adds to its codes; its number is the library's own.
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

var texts = map[Result]string{
	ErrBuffer:   "MPI_ERR_BUFFER: invalid buffer pointer",
	ErrCount:    "MPI_ERR_COUNT: invalid count argument",
	ErrType:     "MPI_ERR_TYPE: invalid datatype",
	ErrTag:      "MPI_ERR_TAG: invalid tag",
	ErrComm:     "MPI_ERR_COMM: invalid communicator",
	ErrRank:     "MPI_ERR_RANK: invalid rank",
	ErrRequest:  "MPI_ERR_REQUEST: invalid request",
	ErrRoot:     "MPI_ERR_ROOT: invalid root",
	ErrOp:       "MPI_ERR_OP: invalid reduce operation",
	ErrArg:      "MPI_ERR_ARG: invalid argument of some other kind",
	ErrTruncate: "MPI_ERR_TRUNCATE: message truncated",
	ErrOther:    "MPI_ERR_OTHER: known error not in list",
	ErrIntern:   "MPI_ERR_INTERN: internal error",
	ErrInStatus: "MPI_ERR_IN_STATUS: error code in status",
	ErrPending:  "MPI_ERR_PENDING: pending request",
	ErrNoMem:    "MPI_ERR_NO_MEM: out of memory",
	ErrUnknown:  "MPI_ERR_UNKNOWN: unknown error",
}

// Error returns the name and the meaning of the class, such as "MPI_ERR_TRUNCATE: message
// truncated".
func (r Result) Error() string {
	if text, ok := texts[r]; ok {
		return text
	}
	return fmt.Sprintf("MPI error class %d", int32(r))
}
