// Package ccall holds what every binding of a C library shares: the error of a failing status, and
// the place in the application that caused it.
package ccall

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
)

// Error reports a C call that returned a failing status. Err is that status, so errors.Is(err,
// cudampi.ErrTruncate) holds through any further wrapping.
type Error struct {
	Op     string // C function, such as "MPI_Allreduce"
	Rank   int    // rank in the communicator of the call; -1 outside one
	At     string // file:line of the application, as At returns it
	Err    error  // the library's status, a comparable value
	Detail string // the library's own text for this failure, if it keeps one
}

// ErrMismatch is spmd.ErrContract, whichever package finds it.
var ErrMismatch = errors.New("the ranks called different collectives")

// Error returns one line with the place first: sorted logs of 64 ranks then group the causes.
func (e *Error) Error() string {
	var b strings.Builder
	if e.At != "" {
		fmt.Fprintf(&b, "%s: ", e.At)
	}
	if e.Rank >= 0 {
		fmt.Fprintf(&b, "rank %d: ", e.Rank)
	}
	fmt.Fprintf(&b, "%s: %v", e.Op, e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, " (%s)", e.Detail)
	}
	return b.String()
}

// Unwrap returns the status.
func (e *Error) Unwrap() error { return e.Err }

// Site is a call site, kept as program counters. Taking it costs a walk of a few stack frames. Only
// a failure turns it into text.
type Site [10]uintptr

// Here stores the caller's stack, without skip frames above the function that calls Here.
func (s *Site) Here(skip int) {
	n := runtime.Callers(skip+3, s[:])
	clear(s[n:])
}

// String returns the first place of the site outside the framework, as At does.
func (s *Site) String() string {
	n := 0
	for n < len(s) && s[n] != 0 {
		n++
	}
	return place(s[:n])
}

// At returns "folder/file.go:line" of the first frame of the calling goroutine outside the
// framework, or "". It walks the stack, so call it only after a failure.
func At() string {
	var pcs [64]uintptr
	return place(pcs[:runtime.Callers(2, pcs[:])])
}

func place(pcs []uintptr) string {
	if len(pcs) == 0 {
		return ""
	}
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.File != "" && !inFramework(f.Function, f.File) {
			dir, file := filepath.Split(f.File)
			return fmt.Sprintf("%s/%s:%d", filepath.Base(dir), file, f.Line)
		}
		if !more {
			return ""
		}
	}
}

// inFramework reports whether a frame belongs to the framework itself. What spmdgen writes beside
// an application's kernels does. The framework's tests do not: they are its first applications.
func inFramework(function, file string) bool {
	if base := filepath.Base(file); base == "kernels_spmd.go" || base == "kernels_spmd_test.go" {
		return true
	}
	if strings.HasSuffix(file, "_test.go") {
		return false
	}
	path, pkg := "", function
	if i := strings.LastIndexByte(strings.SplitN(function, "[", 2)[0], '/'); i >= 0 {
		path, pkg = function[:i+1], function[i+1:]
	}
	pkg, _, _ = strings.Cut(pkg, ".")
	top, below, _ := strings.Cut(strings.TrimPrefix(path+pkg, "lockstep/"), "/")
	switch top {
	case "runtime", "reflect", "iter", "sync":
		return below == ""
	case "host", "cudampi", "nccl", "cuda", "spmd", "internal":
		return strings.HasPrefix(path, "lockstep/")
	}
	return false
}

// Frame is one line of a goroutine's stack.
type Frame struct {
	Function string // with its package, without arguments
	Place    string // folder/file.go:line
	Program  bool   // neither the framework's nor Go's own
}

// Frames reads one goroutine's part of a stack dump, without its head. Source: runtime.Stack.
func Frames(body string) []Frame {
	var frames []Frame
	lines := strings.Split(body, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		function, _, _ := strings.Cut(strings.TrimPrefix(lines[i], "created by "), " in goroutine ")
		if at := strings.LastIndexByte(function, '('); at > 0 && strings.HasSuffix(function, ")") &&
			!strings.HasSuffix(function[:at], ".") {
			function = function[:at] // without arguments
		}
		place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
		at := strings.LastIndexByte(place, ':')
		if at < 0 {
			continue
		}
		file := place[:at]
		frames = append(frames, Frame{function, filepath.Base(filepath.Dir(file)) + "/" + filepath.Base(place),
			// go test makes _testmain.go
			!ofGo(function, file) && file != "_testmain.go" && !inFramework(function, file)})
	}
	return frames
}

// ofGo reports whether a function belongs to one of Go's own packages. go build -trimpath leaves
// only the package's path of a file's folder. Paths of modules have a dot or a version before the
// first slash, or the name of the program's module.
func ofGo(function, file string) bool {
	if goSources != "" {
		return strings.HasPrefix(file, goSources)
	}
	first, _, _ := strings.Cut(file, "/")
	return !strings.ContainsAny(first, ".@") && first != programModule && !strings.HasPrefix(function, "main.")
}

// goSources is the folder of Go's own packages, as the compiler noted it, or "" with -trimpath.
var goSources = func() string {
	file, _ := runtime.FuncForPC(reflect.ValueOf(strings.Cut).Pointer()).FileLine(0)
	return strings.TrimSuffix(file, "strings/strings.go")
}()

// programModule is the path of the program's module up to its first slash.
var programModule = func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(info.Main.Path, "/")
	return first
}()
