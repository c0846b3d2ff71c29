package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/ccall"
)

// codes are the numbers and names of CUresult in cuda.h of CUDA 13.0.
const codes = `
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

func TestNames(t *testing.T) {
	list := strings.Fields(codes)
	for _, c := range list {
		var n Result
		var name string
		if _, err := fmt.Sscanf(strings.Replace(c, ":", " ", 1), "%d %s", &n, &name); err != nil {
			t.Fatal(err)
		}
		if got, want := names[n], "CUDA_ERROR_"+name; got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
		if got, want := n.Error(), fmt.Sprintf("CUDA_ERROR_%s (%d)", name, n); got != want &&
			!strings.HasPrefix(got, want+": ") {
			t.Errorf("%d prints as %q, want %q", n, got, want)
		}
	}
	if len(names) != len(list) {
		t.Errorf("%d names, want %d", len(names), len(list))
	}
	for r, want := range map[Result]string{
		ErrInvalidValue: "INVALID_VALUE", ErrOutOfMemory: "OUT_OF_MEMORY", ErrNotInitialized: "NOT_INITIALIZED",
		ErrDeinitialized: "DEINITIALIZED", ErrStubLibrary: "STUB_LIBRARY", ErrDeviceUnavailable: "DEVICE_UNAVAILABLE",
		ErrNoDevice: "NO_DEVICE", ErrInvalidDevice: "INVALID_DEVICE", ErrInvalidImage: "INVALID_IMAGE",
		ErrInvalidContext: "INVALID_CONTEXT", ErrNoBinaryForGPU: "NO_BINARY_FOR_GPU",
		ErrECCUncorrectable: "ECC_UNCORRECTABLE",
		ErrInvalidPTX:       "INVALID_PTX", ErrUnsupportedPTXVersion: "UNSUPPORTED_PTX_VERSION",
		ErrInvalidHandle: "INVALID_HANDLE",
		ErrIllegalState:  "ILLEGAL_STATE", ErrNotFound: "NOT_FOUND", ErrNotReady: "NOT_READY",
		ErrIllegalAddress:       "ILLEGAL_ADDRESS",
		ErrLaunchOutOfResources: "LAUNCH_OUT_OF_RESOURCES", ErrLaunchTimeout: "LAUNCH_TIMEOUT",
		ErrContextIsDestroyed: "CONTEXT_IS_DESTROYED", ErrAssert: "ASSERT",
		ErrIllegalInstruction: "ILLEGAL_INSTRUCTION",
		ErrMisalignedAddress:  "MISALIGNED_ADDRESS", ErrLaunchFailed: "LAUNCH_FAILED", ErrNotPermitted: "NOT_PERMITTED",
		ErrNotSupported: "NOT_SUPPORTED", ErrSystemNotReady: "SYSTEM_NOT_READY",
		ErrDriverMismatch:     "SYSTEM_DRIVER_MISMATCH",
		ErrCaptureUnsupported: "STREAM_CAPTURE_UNSUPPORTED", ErrCaptureInvalidated: "STREAM_CAPTURE_INVALIDATED",
		ErrCaptureUnmatched: "STREAM_CAPTURE_UNMATCHED", ErrCaptureUnjoined: "STREAM_CAPTURE_UNJOINED",
		ErrCaptureIsolation: "STREAM_CAPTURE_ISOLATION", ErrCaptureImplicit: "STREAM_CAPTURE_IMPLICIT",
		ErrCapturedEvent: "CAPTURED_EVENT", ErrCaptureWrongThread: "STREAM_CAPTURE_WRONG_THREAD",
		ErrGraphUpdate: "GRAPH_EXEC_UPDATE_FAILURE", ErrUnknown: "UNKNOWN",
	} {
		if names[r] != "CUDA_ERROR_"+want {
			t.Errorf("the constant for %s is %d, which is %s", want, r, names[r])
		}
	}
	if got := Result(12345).Error(); got != "CUDA error 12345" {
		t.Errorf("an unknown result prints as %q", got)
	}
}

// wantError checks that err is r, blamed on the C function op and on a line of this folder's tests.
func wantError(t *testing.T, err error, op string, r Result) *ccall.Error {
	t.Helper()
	var e *ccall.Error
	if !errors.As(err, &e) {
		t.Fatalf("the error is %v, want one of %s", err, op)
	}
	if e.Op != op || e.Err != r || !errors.Is(err, r) {
		t.Errorf("the error is of %s: %v; want %s: %v", e.Op, e.Err, op, r)
	}
	if !strings.HasPrefix(e.At, "cuda/") || !strings.Contains(e.At, "_test.go:") || e.Rank != -1 {
		t.Errorf("the error is at %q, rank %d; want a line of the test, rank -1", e.At, e.Rank)
	}
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// try returns v; with an error the test ends.
func try[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// onFreshThread runs fn on a thread that has run nothing else, and so has no context. The thread
// ends with fn.
func onFreshThread(fn func() error) error {
	used := make(map[int]bool)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		used[id] = true
	}
	release := make(chan bool)
	defer close(release)
	for {
		fresh, done := make(chan bool), make(chan error, 1)
		go func() {
			runtime.LockOSThread() // not unlocked on a fresh one: the thread ends, too
			if used[syscall.Gettid()] {
				fresh <- false
				<-release // a used thread is kept busy, until there is a new one
				runtime.UnlockOSThread()
				return
			}
			fresh <- true
			done <- fn()
		}()
		if <-fresh {
			return <-done
		}
	}
}
