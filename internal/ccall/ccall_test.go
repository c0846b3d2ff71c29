package ccall

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

func TestErrorLine(t *testing.T) {
	cause := errors.New("MPI_ERR_COUNT")
	e := &Error{Op: "MPI_Send", Rank: 3, At: "train/main.go:7", Err: cause, Detail: "count -1"}
	if got, want := e.Error(), "train/main.go:7: rank 3: MPI_Send: MPI_ERR_COUNT (count -1)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(e, cause) {
		t.Error("the status is not found by errors.Is")
	}
	bare := &Error{Op: "MPI_Init_thread", Rank: -1, Err: cause}
	if got, want := bare.Error(), "MPI_Init_thread: MPI_ERR_COUNT"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAtNamesTheTest(t *testing.T) {
	if at := At(); !strings.HasPrefix(at, "ccall/ccall_test.go:") {
		t.Errorf("At() = %q, want this file", at)
	}
	var s Site
	func() { s.Here(0) }()
	if at := s.String(); !strings.HasPrefix(at, "ccall/ccall_test.go:") {
		t.Errorf("Site = %q, want this file", at)
	}
}

func TestFrameworkFrames(t *testing.T) {
	for _, tc := range []struct {
		function, file string
		want           bool
	}{
		{"lockstep/spmd.AllReduce[...]", "/x/spmd/collective.go", true},
		{"lockstep/spmd.(*Stream).push", "/x/spmd/stream.go", true},
		{"lockstep/internal/ccall.At", "/x/ccall.go", true},
		{"lockstep/spmd/spmdtest.Run", "/x/spmdtest.go", true},
		{"lockstep/spmd_test.TestX", "/x/spmd/x_test.go", false},
		{"lockstep/apps/train.main", "/x/main.go", false},
		{"main.run", "/x/main.go", false},
		{"github.com/someone/app.Run[go.shape.float32]", "/x/a.go", false},
	} {
		if got := inFramework(tc.function, tc.file); got != tc.want {
			t.Errorf("inFramework(%q, %q) = %v", tc.function, tc.file, got)
		}
	}
}

func TestFrames(t *testing.T) {
	buf := make([]byte, 1<<16)
	_, body, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "\n")
	frames := Frames(body)
	if len(frames) < 2 || frames[0].Function != "lockstep/internal/ccall.TestFrames" || !frames[0].Program ||
		!strings.HasPrefix(frames[0].Place, "ccall/ccall_test.go:") {
		t.Errorf("%+v", frames)
	}
	if last := frames[len(frames)-1]; last.Function != "testing.(*T).Run" || last.Program {
		t.Errorf("the last frame is %+v, want testing's, which is none of the program's", last)
	}
}
