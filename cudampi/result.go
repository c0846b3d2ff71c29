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

// Error returns the name and the meaning of the class, such as "MPI_ERR_TRUNCATE: message
// truncated".
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
