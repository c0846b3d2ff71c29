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
		{"main.launchStep", "/x/kernels_spmd.go", true},
		{"main_test.launchStep", "/x/kernels_spmd_test.go", true},
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
	if main := Frames("main.main()\n\t_testmain.go:54 +0x9b\n"); len(main) != 1 || main[0].Program {
		t.Errorf("%+v, want no frame of the program: go test made it", main)
	}
	if last := frames[len(frames)-1]; last.Function != "testing.(*T).Run" || last.Program {
		t.Errorf("the last frame is %+v, want testing's, which is none of the program's", last)
	}
}

// A program that was built with -trimpath has no folders before its files' packages, and
// neither has Go.
func TestFramesWithoutFolders(t *testing.T) {
	defer func(sources, module string) { goSources, programModule = sources, module }(goSources, programModule)
	goSources, programModule = "", "hello"
	for _, tc := range []struct {
		frame   string
		program bool
	}{
		{"main.main()\n\thello/main.go:5 +0x9b", true},
		{"main.main()\n\tcommand-line-arguments/main.go:5 +0x9b", true},
		{"hello/field.(*Grid).Step(0x1)\n\thello/field/step.go:7 +0x9b", true},
		{"github.com/someone/app.Run(...)\n\tgithub.com/someone/app@v1.2.3/run.go:9 +0x9b", true},
		{"runtime.gopark(0x1)\n\truntime/proc.go:402 +0xce", false},
		{"created by net/http.(*Server).Serve in goroutine 1\n\tnet/http/server.go:3285 +0x4b4", false},
		{"lockstep/spmd.AllReduce[...](0x1)\n\tlockstep@v0.0.0/spmd/collective.go:40 +0x9b", false},
	} {
		if got := Frames(tc.frame + "\n"); len(got) != 1 || got[0].Program != tc.program {
			t.Errorf("%q: %+v, want of the program: %v", tc.frame, got, tc.program)
		}
	}
}

//go:noinline
func nearOf(s *Site, deeper int) {
	if deeper > 0 {
		nearOf(s, deeper-1)
		return
	}
	s.Near()
}

// Near finds what runtime.Callers finds.
func TestNear(t *testing.T) {
	for deeper := range 12 {
		var near, here Site
		nearOf(&near, deeper)
		hereOf(&here, deeper)
		if near.frames() != here.frames() || deeper < 5 && !strings.HasPrefix(near.String(), "ccall/ccall_test.go:") {
			t.Errorf("%d deeper: %s at %q, want %s", deeper, near.frames(), near.String(), here.frames())
		}
	}
	done := make(chan Site)
	go func() { // whose stack ends soon
		var s Site
		nearOf(&s, 0)
		done <- s
	}()
	s := <-done
	if at := s.String(); !strings.HasPrefix(at, "ccall/ccall_test.go:") {
		t.Errorf("in a goroutine of its own: %q", at)
	}
}

//go:noinline
func hereOf(s *Site, deeper int) {
	if deeper > 0 {
		hereOf(s, deeper-1)
		return
	}
	s.Here(0)
}

// frames returns this package's functions in a site. nearOf and hereOf count as equal.
func (s *Site) frames() string {
	var names []string
	for _, pc := range s {
		if f := runtime.FuncForPC(pc - 1); pc != 0 && f != nil {
			if name, ok := strings.CutPrefix(f.Name(), "lockstep/internal/ccall."); ok {
				names = append(names, strings.TrimPrefix(strings.TrimPrefix(name, "near"), "here"))
			}
		}
	}
	return strings.Join(names, " ")
}

func BenchmarkNear(b *testing.B) {
	var s Site
	for range b.N {
		s.Near()
	}
}
