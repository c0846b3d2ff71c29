// Package kernels lists the CUDA sources of the program, and runs them without a GPU.
//
// Declarations in package variables are known before main starts. So all sources are compiled once,
// at start, and a test can compile them without a GPU.
//
// Emulate runs kernels from their source on the processors of the host. A C++ compiler translates
// them behind a header in which the threads of a block are fibers. It is for tests, and slow.
package kernels

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"lockstep/cuda/nvrtc"
)

// Source is CUDA C++, how it is compiled, and the kernels declared from it.
type Source struct {
	Text         string
	Flags        []string // of NVRTC, definitions among them
	ArchSpecific bool     // for one architecture with what only it has
	Names        []string // extern "C" functions, and name expressions such as "scale<float>"
	declared     []string // packages that did

	// Tolerance is how much a kernel's results may differ from its host function's, as a part of
	// them. Scratch has its arguments whose contents mean nothing to others, as bits. They belong
	// to one kernel, and not to the program.
	Tolerance float64
	Scratch   uint64
	// Indices is how many of its first arguments are extents of indices, if it touches one element
	// of a buffer for each index, else 0. It also belongs to one kernel.
	Indices int
}

// Key is the same for sources that differ only in their kernels: these are one program.
func (s *Source) Key() string {
	if len(s.Flags) == 0 && !s.ArchSpecific {
		return s.Text
	}
	key := strings.Join(append([]string{s.Text}, s.Flags...), "\x00")
	if s.ArchSpecific {
		key += "\x00\x00"
	}
	return key
}

// Options returns the compiler's options for a compute capability.
func (s *Source) Options(capability int) nvrtc.Options {
	expressions := slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return !IsExpression(n) })
	return nvrtc.Options{Capability: capability, Headers: Headers, Flags: s.AllFlags(), ArchSpecific: s.ArchSpecific,
		Names: expressions}
}

// bounds says whether kernels in Go compare their indices with lengths.
var bounds atomic.Bool

// CheckBounds makes kernels in Go that are compiled from now on compare their indices with lengths.
func CheckBounds() { bounds.Store(true) }

// Bounds reports whether CheckBounds was called.
func Bounds() bool { return bounds.Load() }

// comparing says whether launches on the host are compared with the parameters of the CUDA source.
var comparing atomic.Bool

// CompareLaunches makes launches on the host compare their arguments with the parameters of the
// CUDA source, as a GPU does. It is for tests, since it takes a C++ compiler.
func CompareLaunches() { comparing.Store(true) }

// Comparing reports whether CompareLaunches was called.
func Comparing() bool { return comparing.Load() }

// both counts the callers who want launches on the host to run both ways.
var both atomic.Int32

// RunBoth makes launches on the host also run their CUDA source, emulated on copies. They fail if
// the results differ. It holds until done is called.
func RunBoth() (done func()) {
	both.Add(1)
	return sync.OnceFunc(func() { both.Add(-1) })
}

// RunningBoth reports whether RunBoth is in force.
func RunningBoth() bool { return both.Load() > 0 }

func (s *Source) AllFlags() []string {
	if Bounds() && strings.Contains(s.Text, "\"spmd_go.cuh\"") {
		return append(slices.Clone(s.Flags), "-DSPMD_BOUNDS")
	}
	return s.Flags
}

// IsExpression reports whether the name of a kernel is a name expression of NVRTC.
func IsExpression(name string) bool { return strings.Contains(name, "<") }

// Headers are what any source may include, by name. Package spmd sets them.
var Headers = map[string]string{}

var (
	mu   sync.Mutex
	list []Source
)

// between is the package that declares kernels for those that call it.
const between = "lockstep/spmd/gokernel"

// Add notes the kernels of a source, as declared by the caller of its caller. If that declares
// kernels for others, its own caller counts. Without text there is nothing to compile.
func Add(s Source) {
	if s.Text == "" {
		return
	}
	by := packageOf(2)
	for skip := 3; by == between; skip++ {
		by = packageOf(skip)
	}
	by = strings.TrimSuffix(by, "_test")
	mu.Lock()
	defer mu.Unlock()
	for i := range list {
		if list[i].Key() == s.Key() {
			for _, name := range s.Names {
				if !slices.Contains(list[i].Names, name) { // declared in a function, it comes again
					list[i].Names = append(list[i].Names, name)
				}
			}
			if !slices.Contains(list[i].declared, by) {
				list[i].declared = append(list[i].declared, by)
			}
			return
		}
	}
	s.Names, s.declared = slices.Clone(s.Names), []string{by}
	list = append(list, s)
}

// Package returns the import path of the package of the caller's caller (skip 1), or of one further
// away. A package of tests, such as spmd_test, counts as the one that it tests.
func Package(skip int) string { return strings.TrimSuffix(packageOf(skip+1), "_test") }

func packageOf(skip int) string {
	var pc [1]uintptr
	runtime.Callers(skip+2, pc[:])
	frame, _ := runtime.CallersFrames(pc[:]).Next()
	folder := strings.LastIndex(frame.Function, "/") + 1
	name, _, _ := strings.Cut(frame.Function[folder:], ".")
	return frame.Function[:folder] + name
}

// DeclaredBy returns the sources of All with a kernel that a package has declared.
func DeclaredBy(pkg string) []Source {
	return slices.DeleteFunc(All(), func(s Source) bool { return !slices.Contains(s.declared, pkg) })
}

// All returns the sources in the order of their first kernel.
func All() []Source {
	mu.Lock()
	defer mu.Unlock()
	all := slices.Clone(list)
	for i := range all {
		// Add may go on meanwhile
		all[i].Names, all[i].declared = slices.Clone(all[i].Names), slices.Clone(all[i].declared)
	}
	return all
}

// Fill puts the kernels of the program's package variables into a cache folder, compiled for a
// capability.
func Fill(dir string, capability int) error {
	for _, s := range All() {
		if s.ArchSpecific && capability != 90 { // which is one architecture's
			continue
		}
		if err := CompileInto(dir, s.Names[0], s.Text, s.Options(capability)); err != nil {
			return err
		}
	}
	return nil
}

// compiled is the cache of kernels that programs use, unless a test says other.
var compiled = sync.OnceValue(nvrtc.DefaultCache)

// CompileInto puts a program into a cache folder, from the cache that programs use if it has it.
func CompileInto(dir, name, source string, o nvrtc.Options) error {
	image, _, err := compiled().Compile(name, source, o)
	if err != nil {
		return err
	}
	return nvrtc.Cache{Dir: dir}.Keep(name, source, o, image)
}
