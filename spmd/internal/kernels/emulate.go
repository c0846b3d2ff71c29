package kernels

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/dl"
)

//go:embed emulate.h
var header string

// Emulated is a compiled source.
type Emulated struct {
	kernels map[string]unsafe.Pointer
	stop    unsafe.Pointer // where a thread goes on whose access to memory has failed
	file    string         // the library
	text    string         // the source
}

// EmulatedSource is CUDA C++ and how it is compiled.
type EmulatedSource struct {
	Text    string
	Flags   []string          // of NVRTC; definitions count
	Names   []string          // of kernels, and name expressions such as "scale<float>"
	Headers map[string]string // by the names under which they are included
}

// dynamic matches shared memory whose size the launch gives, of a function or of the whole source.
var dynamic = regexp.MustCompile(`extern\s+__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s+)?([\w ]*\w)\s+(\w+)\[\]\s*;`)

// Emulate translates a source, or finds it in a folder where it was kept before.
func Emulate(dir string, s EmulatedSource) (*Emulated, error) {
	text := []byte(declared(s))
	for i, name := range s.Names {
		text = fmt.Appendf(text, "EMULATE(emulate_%d, (%s))\n", i, name)
	}
	// GCC 12 drops the rounding of two neighbouring doubles to float and back, once it has made a
	// vector of them.
	p := &Emulated{kernels: map[string]unsafe.Pointer{}, text: s.Text}
	functions, symbols := table("emulate_", s.Names)
	symbols = append(symbols, dl.Sym{Name: "emulate_fault", Slot: &p.stop})
	var err error
	if p.file, err = load(dir, "emulated", string(text), s, symbols, "-O2", "-g1", "-ffp-contract=off",
		"-fno-strict-aliasing", "-fno-tree-slp-vectorize"); err != nil {
		return nil, err
	}
	for i, name := range s.Names {
		p.kernels[name] = functions[i]
	}
	return p, nil
}

// table returns the rows for a function of each name, and where these will be. A function is called
// by the prefix and its number.
func table(prefix string, names []string) (functions []unsafe.Pointer, symbols []dl.Sym) {
	functions = make([]unsafe.Pointer, len(names))
	for i := range names {
		symbols = append(symbols, dl.Sym{Name: fmt.Sprint(prefix, i), Slot: &functions[i]})
	}
	return functions, symbols
}

// declared returns a source behind the header.
func declared(s EmulatedSource) string {
	return "#include \"emulate.h\"\n#line 1 \"kernel.cu\"\n" +
		dynamic.ReplaceAllString(s.Text, "static const emulated::dynamic_shared<$1> $2;") + "\n"
}

// load finds symbols in the library of a text, and returns its file, which is this process's own.
// It compiles the library if the cache in dir has none that is whole and this user's.
func load(dir, kind, text string, s EmulatedSource, symbols []dl.Sym, flags ...string) (file string, err error) {
	cxx := append(append(compiler(), "-std=c++14", "-w", "-shared", "-fPIC", "-Wl,-Bsymbolic"), flags...)
	for _, f := range s.Flags {
		if strings.HasPrefix(f, "-D") {
			cxx = append(cxx, f)
		}
	}
	name := fmt.Sprintln(kind, cxx, header, text)
	for _, header := range slices.Sorted(maps.Keys(s.Headers)) {
		name += fmt.Sprintln(header, s.Headers[header])
	}
	cache := nvrtc.Cache{Dir: dir, Own: true}
	library, ok := cache.Get(name)
	if !ok {
		defer cache.Making(strings.Join(s.Names[:min(1, len(s.Names))], "") + " for this processor")()
		if library, err = build(cxx, text, s.Headers); err != nil {
			return "", err
		}
		_ = cache.Put(name, library) // the next run compiles again
	}
	// It stays open: a loader takes a number that is used again for the same library.
	fd, err := unix.MemfdCreate(kind, unix.MFD_CLOEXEC)
	if err != nil {
		return "", os.NewSyscallError("memfd_create", err)
	}
	file = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	if err := os.WriteFile(file, library, 0); err != nil {
		return "", err
	}
	_, err = dl.Open(symbols, file)
	return file, err
}

// compiler returns the C++ compiler, with its first flags.
func compiler() []string {
	if cxx := strings.Fields(os.Getenv("CXX")); len(cxx) > 0 {
		return cxx
	}
	return []string{"c++"}
}

// HostCompiler says why there is no C++ compiler.
func HostCompiler() error {
	cxx := compiler()
	if _, err := exec.LookPath(cxx[0]); err != nil {
		return fmt.Errorf("emulation of GPUs needs a C++ compiler, %s or what CXX names: %w", cxx[0], err)
	}
	return nil
}

// build calls the compiler, and returns the library.
func build(cxx []string, text string, headers map[string]string) (library []byte, err error) {
	if err := HostCompiler(); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "emulate-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	files := map[string]string{"emulate.h": header, "kernel.cc": text}
	maps.Copy(files, headers)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o666); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(cxx[0], append(cxx[1:], "-o", "kernel.so", "kernel.cc")...)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cxx[0], err, firstError(string(out)))
	}
	return os.ReadFile(filepath.Join(tmp, "kernel.so"))
}

// firstError returns the first line of a compiler's output that is an error.
func firstError(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(strings.ToLower(line), "error:") {
			return strings.TrimSpace(line)
		}
	}
	first, _, _ := strings.Cut(out, "\n")
	return first
}

// Part is some blocks of a launch.
type Part struct {
	Blocks, Threads [3]int // of the whole launch, and of a block
	First, Last     int    // the blocks from First to Last-1
	Shared          int    // bytes of dynamic shared memory
}

// Launch runs a part of a launch. words are the arguments one after the other; at says where each
// begins.
func (p *Emulated) Launch(name string, part Part, words []uint64, at []uint32) error {
	f := p.kernels[name]
	if f == nil {
		return fmt.Errorf("no kernel %s", name)
	}
	if n := part.Threads[0] * part.Threads[1] * part.Threads[2]; n > 1024 {
		return fmt.Errorf("kernel %s: %d threads in a block, at most 1024", name, n)
	}
	address, place, err := sysCall(f, p.stop, part, words, at)
	switch {
	case place != 0:
		return &Fault{Kernel: name, Line: p.line(place), Thread: strings.TrimSuffix(err.Error(), ": trap"),
			Address: address}
	case err != nil:
		return fmt.Errorf("kernel %s: %w", name, err)
	}
	return nil
}

// Fault is an access to memory that does not exist.
type Fault struct {
	Kernel  string
	Line    string // of the source, with its text; "" if unknown
	Thread  string // and its block
	Address uintptr
}

func (f *Fault) Error() string { return f.Describe(fmt.Sprintf("no memory at %#x", f.Address)) }

// Describe says what has happened, with the known memory.
func (f *Fault) Describe(what string) string {
	line := f.Line
	if line != "" {
		line += ": "
	}
	return fmt.Sprintf("kernel %s: %s%s: %s", f.Kernel, line, f.Thread, what)
}

// line returns the line of the source for a place in the library, and its text. A tool of the
// compiler knows it.
func (p *Emulated) line(place uint64) string {
	out, err := exec.Command("addr2line", "-i", "-e", p.file, fmt.Sprintf("%#x", place)).Output()
	if err != nil {
		return ""
	}
	for frame := range strings.Lines(string(out)) { // the innermost first
		_, number, ok := strings.Cut(strings.TrimSpace(frame), "kernel.cu:")
		number, _, _ = strings.Cut(number, " ")
		n, err := strconv.Atoi(number)
		if lines := strings.Split(p.text, "\n"); ok && err == nil && n >= 1 && n <= len(lines) {
			return fmt.Sprintf("kernel.cu:%d: %s", n, strings.TrimSpace(lines[n-1]))
		}
	}
	return ""
}

// Has reports whether a kernel is in the program.
func (p *Emulated) Has(name string) bool { return p.kernels[name] != nil }
