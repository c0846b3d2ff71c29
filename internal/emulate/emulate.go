// Package emulate runs kernels from their CUDA source on the processors of the host: a C++ compiler translates them behind
// a header in which the threads of a block are fibers. It is for tests, and slow.
package emulate

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unsafe"
)

//go:embed emulate.h
var header string

// Program is what one source and its flags have become.
type Program struct{ kernels map[string]unsafe.Pointer }

// Source is CUDA C++ and how it is compiled.
type Source struct {
	Text    string
	Flags   []string          // of NVRTC; definitions count
	Names   []string          // of kernels, and name expressions such as "scale<float>"
	Headers map[string]string // by the names under which they are included
}

// dynamic is shared memory whose size the launch says, of a function or of the whole source.
var dynamic = regexp.MustCompile(`extern\s+__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s+)?([\w ]*\w)\s+(\w+)\[\]\s*;`)

// Compile translates a source, or finds it in a folder where it was kept before.
func Compile(dir string, s Source) (*Program, error) {
	text := declared(s)
	for i, name := range s.Names {
		text += fmt.Sprintf("EMULATE(emulate_%d, (%s))\n", i, name)
	}
	lib, err := load(dir, "emulated-", text, s, "-O2", "-ffp-contract=off", "-fno-strict-aliasing")
	if err != nil {
		return nil, err
	}
	p := &Program{map[string]unsafe.Pointer{}}
	for i, name := range s.Names {
		if p.kernels[name], err = sysSymbol(lib, fmt.Sprintf("emulate_%d", i)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// declared is a source behind the header.
func declared(s Source) string {
	return "#include \"emulate.h\"\n#line 1 \"kernel.cu\"\n" + dynamic.ReplaceAllString(s.Text, "static const emulated::dynamic_shared<$1> $2;") + "\n"
}

// load opens the library that a text becomes, whose name begins with kind. It is compiled where dir does not have it.
func load(dir, kind, text string, s Source, flags ...string) (unsafe.Pointer, error) {
	cxx := strings.Fields(os.Getenv("CXX"))
	if len(cxx) == 0 {
		cxx = []string{"c++"}
	}
	cxx = append(append(cxx, "-std=c++14", "-w", "-shared", "-fPIC"), flags...)
	for _, f := range s.Flags {
		if strings.HasPrefix(f, "-D") {
			cxx = append(cxx, f)
		}
	}
	h := sha256.New()
	fmt.Fprintln(h, cxx, header, text)
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		fmt.Fprintln(h, name, s.Headers[name])
	}
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("lockstep-%d", os.Getuid()))
	}
	kept := filepath.Join(dir, kind+hex.EncodeToString(h.Sum(nil))[:32]+".so")
	if _, err := os.Stat(kept); err != nil {
		if err := build(cxx, kept, text, s.Headers); err != nil {
			return nil, err
		}
	}
	return sysOpen(kept)
}

// build calls the compiler, and puts what it makes in its place at once.
func build(cxx []string, kept, text string, headers map[string]string) (err error) {
	if _, err := exec.LookPath(cxx[0]); err != nil {
		return fmt.Errorf("emulation of GPUs needs a C++ compiler, %s or what CXX names: %w", cxx[0], err)
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o777); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(kept), "emulate-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	files := map[string]string{"emulate.h": header, "kernel.cc": text}
	maps.Copy(files, headers)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	cmd := exec.Command(cxx[0], append(cxx[1:], "-o", "kernel.so", "kernel.cc")...)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cxx[0], err, firstError(string(out)))
	}
	return os.Rename(filepath.Join(tmp, "kernel.so"), kept)
}

// firstError is the first line of a compiler's output that is an error.
func firstError(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(strings.ToLower(line), "error:") {
			return strings.TrimSpace(line)
		}
	}
	first, _, _ := strings.Cut(out, "\n")
	return first
}

// Launch runs blocks first to last-1 of a launch. words are the arguments one after the other, at where each begins.
func (p *Program) Launch(name string, blocks, threads [3]int, first, last, shared int, words []uint64, at []uint32) error {
	f := p.kernels[name]
	if f == nil {
		return fmt.Errorf("no kernel %s", name)
	}
	if n := threads[0] * threads[1] * threads[2]; n > 1024 {
		return fmt.Errorf("kernel %s: %d threads in a block, at most 1024", name, n)
	}
	if err := sysCall(f, blocks, threads, first, last, shared, words, at); err != nil {
		return fmt.Errorf("kernel %s: %w", name, err)
	}
	return nil
}

// Has says whether a kernel is in the program.
func (p *Program) Has(name string) bool { return p.kernels[name] != nil }
