package nvrtc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"lockstep/internal/ccall"
	"lockstep/internal/testkit"
)

// A test that needs another process runs this binary again with childEnv naming one of children.
const childEnv = "NVRTC_TEST_CHILD"

var children = map[string]func() error{
	"absent":   childAbsent,
	"cudahome": childCUDAHome,
	"cache":    childCache,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(name string, env ...string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(append(os.Environ(), childEnv+"="+name), env...)
	return c
}

func runChild(t *testing.T, name string, env ...string) {
	t.Helper()
	if out, err := child(name, env...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func needNVRTC(t *testing.T) {
	t.Helper()
	if err := Load(); err != nil {
		t.Skip(err)
	}
}

const scale = `
extern "C" __global__ void scale(float *x, float by, long long n) {
	long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
	if (i < n) x[i] *= by;
}
`

func TestVersionAndArchitectures(t *testing.T) {
	needNVRTC(t)
	l := load()
	if major, minor := Version(); major < 11 || minor < 0 {
		t.Errorf("version %d.%d", major, minor)
	}
	if !slices.Contains(l.archs, 80) || !slices.Contains(l.archs, 90) && l.major >= 12 || !slices.IsSorted(l.archs) {
		t.Errorf("NVRTC %d.%d says that it compiles for %v", l.major, l.minor, l.archs)
	}
	if _, err := os.Stat(Path()); err != nil {
		t.Errorf("path: %v", err)
	}
}

func TestCompileMakesMachineCode(t *testing.T) {
	needNVRTC(t)
	var images [][]byte
	for _, capability := range []int{80, 90} {
		image, err := Compile("scale.cu", scale, Options{Capability: capability})
		testkit.Must(t, err)
		plain := bytes.Clone(image)
		binary.LittleEndian.PutUint32(plain[20:], 1) // NVIDIA puts its own number into e_version
		f, err := elf.NewFile(bytes.NewReader(plain))
		if err != nil {
			t.Fatalf("%d: %v", capability, err)
		}
		const emCUDA = 190
		if f.Machine != emCUDA || f.Class != elf.ELFCLASS64 {
			t.Errorf("%d: machine %v, class %v", capability, f.Machine, f.Class)
		}
		symbols, err := f.Symbols()
		testkit.Must(t, err)
		if !slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == "scale" }) {
			t.Errorf("%d: no symbol scale in %v", capability, symbols)
		}
		if f.Section(".text.scale") == nil {
			t.Errorf("%d: no code of scale", capability)
		}
		again, err := Compile("scale.cu", scale, Options{Capability: capability})
		if err != nil || !bytes.Equal(image, again) {
			t.Errorf("%d: a second compilation differs (error %v)", capability, err)
		}
		images = append(images, image)
	}
	if bytes.Equal(images[0], images[1]) {
		t.Error("the image is the same for 80 and 90")
	}
}

func TestCompileFallsBackToPTX(t *testing.T) {
	needNVRTC(t)
	newest := slices.Max(load().archs)
	image, err := Compile("scale.cu", scale, Options{Capability: newest + 1})
	testkit.Must(t, err)
	for _, want := range []string{fmt.Sprintf(".target sm_%d", newest), ".entry scale("} {
		if !bytes.Contains(image, []byte(want)) {
			t.Errorf("no %q in\n%s", want, image)
		}
	}
	if image[len(image)-1] != 0 {
		t.Error("PTX without its final zero byte")
	}
}

func TestChoose(t *testing.T) {
	l := loaded{major: 11, minor: 8, archs: []int{50, 80, 86, 90}}
	for _, tc := range []struct {
		capability, arch int
		native           bool
	}{{50, 50, true}, {90, 90, true}, {89, 86, false}, {75, 50, false}, {103, 90, false}} {
		arch, native, err := choose(l, tc.capability)
		if arch != tc.arch || native != tc.native || err != nil {
			t.Errorf("%d: %d, %v, %v", tc.capability, arch, native, err)
		}
	}
	for _, capability := range []int{37, 0, -1} {
		if arch, _, err := choose(l, capability); err == nil {
			t.Errorf("%d: %d without an error", capability, arch)
		}
	}
	_, _, err := choose(l, 37)
	for _, want := range []string{"11.8", "[50 80 86 90]", "37"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %q", want, err)
		}
	}
}

func TestCompileErrorNamesTheLine(t *testing.T) {
	needNVRTC(t)
	_, err := Compile("broken.cu", "extern \"C\" __global__ void f(int *x) {\n\tint a = 1;\n\t*x = a + nowhere;\n}\n",
		Options{Capability: 80})
	var e *CompileError
	if !errors.As(err, &e) {
		t.Fatalf("%T %v", err, err)
	}
	if e.Name != "broken.cu" || !strings.Contains(e.Log, "broken.cu(3)") || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("%v", err)
	}
}

func TestHeaders(t *testing.T) {
	needNVRTC(t)
	source := "#include \"outer.cuh\"\nextern \"C\" __global__ void f(int *x) { *x = twice(VALUE); }\n"
	o := Options{Capability: 80, Flags: []string{"-DVALUE=21"}, Headers: map[string]string{
		"outer.cuh": "#include \"sub/inner.cuh\"\n__device__ int twice(int a) { return add(a, a); }\n",
		// NVRTC has no files, and so no folders of these names.
		"sub/inner.cuh": "__device__ int add(int a, int b) { return a + b; }\n",
	}}
	if _, err := Compile("f.cu", source, o); err != nil {
		t.Fatal(err)
	}
	delete(o.Headers, "sub/inner.cuh")
	var e *CompileError
	if _, err := Compile("f.cu", source, o); !errors.As(err, &e) || !strings.Contains(e.Log, "inner.cuh") {
		t.Errorf("a header is missing: %v", err)
	}
	o.Headers["sub/inner.cuh"] = "__device__ int add(int a, int b) {\n\treturn a + c;\n}\n"
	if _, err := Compile("f.cu", source, o); !errors.As(err, &e) || !strings.Contains(e.Log, "inner.cuh(2)") {
		t.Errorf("an error in a header: %v", err)
	}
}

func TestRefusedFlag(t *testing.T) {
	needNVRTC(t)
	_, err := Compile("scale.cu", scale, Options{Capability: 80, Flags: []string{"--no-such-flag"}})
	var e *ccall.Error
	if !errors.Is(err, ErrInvalidOption) || !errors.As(err, &e) || e.Op != "nvrtcCompileProgram" ||
		!strings.Contains(e.Detail, "no-such-flag") {
		t.Errorf("%v", err)
	}
}

func TestZeroByteIsRefused(t *testing.T) {
	needNVRTC(t)
	good := Options{Capability: 80}
	for what, call := range map[string]func() ([]byte, error){
		"source": func() ([]byte, error) { return Compile("a.cu", scale+"\x00#error", good) },
		"name":   func() ([]byte, error) { return Compile("a\x00.cu", scale, good) },
		"flag": func() ([]byte, error) {
			return Compile("a.cu", scale, Options{Capability: 80, Flags: []string{"-DA\x00B"}})
		},
		"header": func() ([]byte, error) {
			return Compile("a.cu", scale, Options{Capability: 80, Headers: map[string]string{"h": "\x00"}})
		},
	} {
		if _, err := call(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestCompileFromSeveralGoroutines(t *testing.T) {
	needNVRTC(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			name := fmt.Sprintf("scale%d", i)
			image, err := Compile(name+".cu", strings.Replace(scale, "void scale(", "void "+name+"(", 1),
				Options{Capability: 80})
			if err != nil || !bytes.Contains(image, []byte(name)) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
}

func TestResultNames(t *testing.T) {
	if got := ErrInvalidOption.Error(); !strings.HasPrefix(got, "NVRTC_ERROR_INVALID_OPTION: ") {
		t.Error(got)
	}
	if got := Result(4711).Error(); got != "nvrtcResult 4711" {
		t.Error(got)
	}
}

func TestWithoutNVRTC(t *testing.T) {
	runChild(t, "absent", "LOCKSTEP_CACHE="+t.TempDir())
}

func childAbsent() error {
	names = []string{"libnvrtc-nowhere.so.1"}
	if major, minor := Version(); Load() == nil || major != 0 || minor != 0 || Path() != "" {
		return fmt.Errorf("error %v, version %d.%d, path %q", Load(), major, minor, Path())
	}
	if !strings.Contains(Load().Error(), "libnvrtc-nowhere.so.1") {
		return fmt.Errorf("the error does not name the file: %w", Load())
	}
	if _, err := Compile("scale.cu", scale, Options{Capability: 80}); err != Load() {
		return fmt.Errorf("Compile: %w", err)
	}
	if _, _, err := DefaultCache().Compile("scale.cu", scale, Options{Capability: 80}); err != Load() {
		return fmt.Errorf("Cache.Compile: %w", err)
	}
	return nil
}

// A CUDA in a folder of its own is found by CUDA_HOME or CUDA_PATH.
func TestCUDAHome(t *testing.T) {
	needNVRTC(t)
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		root := t.TempDir()
		lib := filepath.Join(root, "lib64")
		testkit.Must(t, os.Mkdir(lib, 0o755))
		testkit.Must(t, os.Symlink(Path(), filepath.Join(lib, "libnvrtc-here.so")))
		runChild(t, "cudahome", "CUDA_HOME=", "CUDA_PATH=", name+"="+root,
			"WANT="+filepath.Join(lib, "libnvrtc-here.so"))
	}
}

func childCUDAHome() error {
	names = []string{"libnvrtc-here.so"}
	if got, want := Path(), os.Getenv("WANT"); got != want {
		return fmt.Errorf("path %q, want %q (%v)", got, want, Load())
	}
	_, err := Compile("scale.cu", scale, Options{Capability: 80})
	return err
}
