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
	"lockstep/internal/testkit"
)

func TestNames(t *testing.T) {
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
		ErrUnknown: "UNKNOWN",
	} {
		if r.name() != "CUDA_ERROR_"+want {
			t.Errorf("the constant for %s is %d, which is %s", want, r, r.name())
		}
		if got, want := r.Error(), fmt.Sprintf("CUDA_ERROR_%s (%d)", want, r); got != want &&
			!strings.HasPrefix(got, want+": ") {
			t.Errorf("%d prints as %q, want %q", r, got, want)
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

var must = testkit.Must

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
