package cuda

import (
	"fmt"
	"strconv"
	"strings"

	"lockstep/internal/ccall"
)

// Result is a failing CUresult. It is comparable, as syscall.Errno is.
type Result int32

// The results that programs test for; the driver can give every other one too. After
// ErrIllegalAddress, ErrAssert, ErrMisalignedAddress, ErrLaunchFailed and their kind the process
// cannot use the device any more: every further call gives the same result.
const (
	ErrInvalidValue          Result = 1
	ErrOutOfMemory           Result = 2
	ErrNotInitialized        Result = 3
	ErrDeinitialized         Result = 4
	ErrStubLibrary           Result = 34
	ErrDeviceUnavailable     Result = 46
	ErrNoDevice              Result = 100
	ErrInvalidDevice         Result = 101
	ErrInvalidImage          Result = 200
	ErrInvalidContext        Result = 201
	ErrNoBinaryForGPU        Result = 209
	ErrECCUncorrectable      Result = 214
	ErrPeerAccessUnsupported Result = 217
	ErrInvalidPTX            Result = 218
	ErrUnsupportedPTXVersion Result = 222
	ErrInvalidHandle         Result = 400
	ErrIllegalState          Result = 401
	ErrNotFound              Result = 500
	ErrNotReady              Result = 600
	ErrIllegalAddress        Result = 700
	ErrLaunchOutOfResources  Result = 701
	ErrLaunchTimeout         Result = 702
	ErrContextIsDestroyed    Result = 709
	ErrAssert                Result = 710
	ErrIllegalInstruction    Result = 715
	ErrMisalignedAddress     Result = 716
	ErrLaunchFailed          Result = 719
	ErrNotPermitted          Result = 800
	ErrNotSupported          Result = 801
	ErrSystemNotReady        Result = 802
	ErrDriverMismatch        Result = 803
	ErrCaptureUnsupported    Result = 900
	ErrCaptureInvalidated    Result = 901
	ErrCaptureUnmatched      Result = 903
	ErrCaptureUnjoined       Result = 904
	ErrCaptureIsolation      Result = 905
	ErrCaptureImplicit       Result = 906
	ErrCapturedEvent         Result = 907
	ErrCaptureWrongThread    Result = 908
	ErrUnknown               Result = 999
)

// names serves while no driver is loaded, and for results that the driver at hand does not know.
// Source: cuda.h of CUDA 13.0, CUresult, without CUDA_ERROR_.
const names = `
1:INVALID_VALUE 2:OUT_OF_MEMORY 3:NOT_INITIALIZED 4:DEINITIALIZED 5:PROFILER_DISABLED 6:PROFILER_NOT_INITIALIZED
7:PROFILER_ALREADY_STARTED 8:PROFILER_ALREADY_STOPPED 34:STUB_LIBRARY 36:CALL_REQUIRES_NEWER_DRIVER
46:DEVICE_UNAVAILABLE 100:NO_DEVICE 101:INVALID_DEVICE 102:DEVICE_NOT_LICENSED 200:INVALID_IMAGE 201:INVALID_CONTEXT
202:CONTEXT_ALREADY_CURRENT 205:MAP_FAILED 206:UNMAP_FAILED 207:ARRAY_IS_MAPPED 208:ALREADY_MAPPED
209:NO_BINARY_FOR_GPU 210:ALREADY_ACQUIRED 211:NOT_MAPPED 212:NOT_MAPPED_AS_ARRAY 213:NOT_MAPPED_AS_POINTER
214:ECC_UNCORRECTABLE 215:UNSUPPORTED_LIMIT 216:CONTEXT_ALREADY_IN_USE 217:PEER_ACCESS_UNSUPPORTED 218:INVALID_PTX
219:INVALID_GRAPHICS_CONTEXT 220:NVLINK_UNCORRECTABLE 221:JIT_COMPILER_NOT_FOUND 222:UNSUPPORTED_PTX_VERSION
223:JIT_COMPILATION_DISABLED 224:UNSUPPORTED_EXEC_AFFINITY 225:UNSUPPORTED_DEVSIDE_SYNC 226:CONTAINED
300:INVALID_SOURCE 301:FILE_NOT_FOUND 302:SHARED_OBJECT_SYMBOL_NOT_FOUND 303:SHARED_OBJECT_INIT_FAILED
304:OPERATING_SYSTEM 400:INVALID_HANDLE 401:ILLEGAL_STATE 402:LOSSY_QUERY 500:NOT_FOUND 600:NOT_READY
700:ILLEGAL_ADDRESS 701:LAUNCH_OUT_OF_RESOURCES 702:LAUNCH_TIMEOUT 703:LAUNCH_INCOMPATIBLE_TEXTURING
704:PEER_ACCESS_ALREADY_ENABLED 705:PEER_ACCESS_NOT_ENABLED 708:PRIMARY_CONTEXT_ACTIVE 709:CONTEXT_IS_DESTROYED
710:ASSERT 711:TOO_MANY_PEERS 712:HOST_MEMORY_ALREADY_REGISTERED 713:HOST_MEMORY_NOT_REGISTERED
714:HARDWARE_STACK_ERROR 715:ILLEGAL_INSTRUCTION 716:MISALIGNED_ADDRESS 717:INVALID_ADDRESS_SPACE 718:INVALID_PC
719:LAUNCH_FAILED 720:COOPERATIVE_LAUNCH_TOO_LARGE 721:TENSOR_MEMORY_LEAK 800:NOT_PERMITTED 801:NOT_SUPPORTED
802:SYSTEM_NOT_READY 803:SYSTEM_DRIVER_MISMATCH 804:COMPAT_NOT_SUPPORTED_ON_DEVICE 805:MPS_CONNECTION_FAILED
806:MPS_RPC_FAILURE 807:MPS_SERVER_NOT_READY 808:MPS_MAX_CLIENTS_REACHED 809:MPS_MAX_CONNECTIONS_REACHED
810:MPS_CLIENT_TERMINATED 811:CDP_NOT_SUPPORTED 812:CDP_VERSION_MISMATCH 900:STREAM_CAPTURE_UNSUPPORTED
901:STREAM_CAPTURE_INVALIDATED 902:STREAM_CAPTURE_MERGE 903:STREAM_CAPTURE_UNMATCHED 904:STREAM_CAPTURE_UNJOINED
905:STREAM_CAPTURE_ISOLATION 906:STREAM_CAPTURE_IMPLICIT 907:CAPTURED_EVENT 908:STREAM_CAPTURE_WRONG_THREAD
909:TIMEOUT 910:GRAPH_EXEC_UPDATE_FAILURE 911:EXTERNAL_DEVICE 912:INVALID_CLUSTER_SIZE 913:FUNCTION_NOT_LOADED
914:INVALID_RESOURCE_TYPE 915:INVALID_RESOURCE_CONFIGURATION 916:KEY_ROTATION 999:UNKNOWN
`

// name returns the name in names, or "".
func (r Result) name() string {
	number := strconv.Itoa(int(r))
	for entry := range strings.FieldsSeq(names) {
		if n, name, _ := strings.Cut(entry, ":"); n == number {
			return "CUDA_ERROR_" + name
		}
	}
	return ""
}

// Error returns name, number and meaning, such as "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
// The meaning is the driver's, and is left out if no driver is loaded.
func (r Result) Error() string {
	var name, text string
	if loaded.Load() {
		name, text = sysErrorText(r)
	}
	if name == "" {
		name = r.name()
	}
	switch {
	case name == "":
		return fmt.Sprintf("CUDA error %d", int32(r))
	case text == "":
		return fmt.Sprintf("%s (%d)", name, int32(r))
	default:
		return fmt.Sprintf("%s (%d): %s", name, int32(r), text)
	}
}

// check turns the status of a call into an error, nil for success.
func check(op string, status int) error {
	if status == 0 {
		return nil
	}
	return failed(op, status, "")
}

// failed returns the error of a failing status. op is the function as cuda.h documents it, without
// the version in the library's symbol. The status may say that not op failed, but making the
// context current.
func failed(op string, status int, detail string) error {
	switch {
	case status&fromGetCurrent != 0:
		op = "cuCtxGetCurrent"
	case status&fromSetCurrent != 0:
		op = "cuCtxSetCurrent"
	}
	return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: Result(status &^ (fromGetCurrent | fromSetCurrent)),
		Detail: detail}
}

// refused returns the error of an argument that is not handed to the driver.
func refused(op, format string, args ...any) error {
	return failed(op, int(ErrInvalidValue), fmt.Sprintf(format, args...))
}
