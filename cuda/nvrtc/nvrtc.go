package nvrtc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"lockstep/internal/ccall"
	"lockstep/internal/dl"
)

// names are the files that may hold NVRTC. From CUDA 11.2 on a name holds to the end of a major
// release.
var names = []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"}

// loaded is the result of load.
type loaded struct {
	path         string
	major, minor int
	archs        []int // capabilities it compiles for, ascending
	err          error
}

var load = sync.OnceValue(func() loaded {
	l := loaded{}
	if l.path, l.err = open(files()); l.err != nil {
		// One line, though the loader has a reason for each file.
		l.err = errors.New("nvrtc: NVRTC, which compiles CUDA C++, cannot be used: " +
			strings.ReplaceAll(l.err.Error(), "\n", "; "))
		return l
	}
	var code int
	if l.major, l.minor, code = sysVersion(); code != 0 {
		l.err = failed("nvrtcVersion", code, "")
		return l
	}
	var op string
	if l.archs, op, code = sysArchs(); code != 0 {
		l.err = failed(op, code, "")
		return l
	}
	slices.Sort(l.archs)
	// NVRTC opens its second library by name, which is found in the loader's folders. Once the
	// library beside this one is loaded, that name finds it. If it is missing or not needed, the
	// compilation says the rest.
	builtins := fmt.Sprintf("libnvrtc-builtins.so.%d.%d", l.major, l.minor)
	_, _ = dl.Open(nil, filepath.Join(filepath.Dir(l.path), builtins))
	return l
})

// files returns the names for the loader to search, then the files in CUDA's own folders that
// exist.
func files() []string {
	all := slices.Clone(names)
	arch := map[string][]string{"amd64": {"x86_64"}, "arm64": {"sbsa", "aarch64"}}[runtime.GOARCH]
	for _, root := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda"} {
		if root == "" {
			continue
		}
		folders := []string{filepath.Join(root, "lib64")}
		for _, a := range arch {
			folders = append(folders, filepath.Join(root, "targets", a+"-linux", "lib"))
		}
		for _, folder := range folders {
			for _, name := range names {
				file := filepath.Join(folder, name)
				if _, err := os.Stat(file); err == nil && !slices.Contains(all, file) {
					all = append(all, file)
				}
			}
		}
	}
	return all
}

// Load loads NVRTC, once, and returns why it cannot be used, or nil. It looks for libnvrtc in the
// loader's folders, then in the lib64 and targets folders of $CUDA_HOME, $CUDA_PATH and
// /usr/local/cuda. CUDA 11.2 has the oldest version that serves.
func Load() error { return load().err }

// Version returns the version of NVRTC, which is its CUDA's version; 0, 0 if Load fails.
func Version() (major, minor int) {
	l := load()
	return l.major, l.minor
}

// Path returns the file in use, or "" if Load fails.
func Path() string { return load().path }

// Options says what to compile for. The zero value lacks the Capability, which must be given.
type Options struct {
	Capability int               // compute capability of the device, major*10 + minor: 90
	Flags      []string          // for the compiler, such as "--use_fast_math"; Compile chooses the architecture
	Headers    map[string]string // name to text, for #include "name"
	// Names are name expressions, such as "scale<float>", to be instantiated. Image.Kernel has
	// their names in the code.
	Names []string
	// ArchSpecific compiles for one architecture with all that only it has, such as sm_90a. It does
	// so if that is the device's own and this NVRTC knows such targets: from compute capability 9.0
	// and CUDA 12 on. Elsewhere it changes nothing.
	ArchSpecific bool
}

// CompileError reports a program that does not compile.
type CompileError struct {
	Name string // as given to Compile
	Log  string // of the compiler, one message a line or more, each with "name(line): "
}

// Error holds the whole log.
func (e *CompileError) Error() string {
	return fmt.Sprintf("nvrtc: %s does not compile:\n%s", e.Name, e.Log)
}

// Compile compiles CUDA C++ and returns an image, whose Code is for cuModuleLoadData.
//
// The code is machine code (an ELF file, "cubin") for o.Capability. An NVRTC that is older than the
// device may not know it. Then the code is PTX for the highest capability below it that NVRTC
// knows. The driver then compiles it when it loads the module. name stands for a file name in
// messages. A program in error gives a *CompileError.
//
// An image is deterministic: the same arguments and NVRTC give the same bytes. Source: nvrtc.h,
// nvrtcCompileProgram, nvrtcAddNameExpression, nvrtcGetLoweredName, nvrtcGetCUBIN, nvrtcGetPTX.
func Compile(name, source string, o Options) (image Image, err error) {
	l := load()
	if l.err != nil {
		return nil, l.err
	}
	arch, native, err := choose(l, o.Capability)
	if err != nil {
		return nil, err
	}
	headers, err := o.headers()
	if err != nil {
		return nil, err
	}
	texts, includes := make([]string, len(headers)), make([]string, len(headers))
	for i, h := range headers {
		includes[i], texts[i] = h.name, h.text
	}
	for _, s := range slices.Concat([]string{name, source}, o.Flags, o.Names) {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("nvrtc: %s: a zero byte in the name, the source, a flag or a name expression", name)
		}
	}
	p, code := sysCreate(name, source, texts, includes)
	if code != 0 {
		return nil, failed("nvrtcCreateProgram", code, name)
	}
	defer func() {
		if code := p.destroy(); code != 0 && err == nil {
			image, err = nil, failed("nvrtcDestroyProgram", code, name)
		}
	}()

	for _, n := range o.Names {
		if code := p.addName(n); code != 0 {
			return nil, failed("nvrtcAddNameExpression", code, name+": "+n)
		}
	}
	kind, specific := "compute", ""
	if native {
		kind = "sm"
		if o.ArchSpecific && arch >= 90 && l.major >= 12 {
			specific = "a"
		}
	}
	flags := append(slices.Clone(o.Flags), fmt.Sprintf("--gpu-architecture=%s_%d%s", kind, arch, specific))
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.Contains(f, "-std=") }) {
		flags = append(flags, "--std=c++14") // the default differs between versions
	}
	if code := p.compile(flags); code != 0 {
		log, logCode := p.bytes(lib.logSize, lib.log)
		switch text := text(log); {
		case logCode != 0:
			return nil, failed("nvrtcGetProgramLog", logCode,
				fmt.Sprintf("after nvrtcCompileProgram of %s: %v", name, Result(code)))
		case Result(code) == ErrCompilation:
			return nil, &CompileError{Name: name, Log: text}
		default:
			return nil, failed("nvrtcCompileProgram", code, strings.TrimSpace(name+": "+text))
		}
	}
	var names [][2]string
	for _, n := range o.Names {
		low, code := p.lowered(n)
		if code != 0 {
			return nil, failed("nvrtcGetLoweredName", code, name+": "+n)
		}
		names = append(names, [2]string{n, low})
	}
	// which keeps its final zero byte: the driver knows its end by that
	op, size, get := "nvrtcGetPTX", lib.ptxSize, lib.ptx
	if native {
		op, size, get = "nvrtcGetCUBIN", lib.cubinSize, lib.cubin
	}
	machine, code := p.bytes(size, get)
	if code != 0 {
		return nil, failed(op, code, name)
	}
	return withNames(names, machine), nil
}

// choose returns the architecture to compile for, and whether it is the device's own.
func choose(l loaded, capability int) (arch int, native bool, err error) {
	if capability <= 0 {
		return 0, false, fmt.Errorf("nvrtc: compute capability %d", capability)
	}
	for _, a := range l.archs {
		if a <= capability {
			arch = a
		}
	}
	if arch == 0 {
		return 0, false, fmt.Errorf("nvrtc: NVRTC %d.%d compiles for compute capabilities %v, the device has %d",
			l.major, l.minor, l.archs, capability)
	}
	return arch, arch == capability, nil
}

type header struct{ name, text string }

// headers returns the headers in the order of their names: neither the image nor the key of the
// cache may depend on the order of a map.
func (o Options) headers() ([]header, error) {
	all := make([]header, 0, len(o.Headers))
	for name, text := range o.Headers {
		if strings.IndexByte(name, 0) >= 0 || strings.IndexByte(text, 0) >= 0 {
			return nil, fmt.Errorf("nvrtc: a zero byte in header %q", name)
		}
		all = append(all, header{name, text})
	}
	slices.SortFunc(all, func(a, b header) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// text returns a log without C's end and without the last line's end.
func text(log []byte) string {
	if i := bytes.IndexByte(log, 0); i >= 0 {
		log = log[:i]
	}
	return strings.TrimSpace(string(log))
}

func failed(op string, code int, detail string) error {
	return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: Result(code), Detail: detail}
}
