package nvrtc

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

const templates = `
template <typename T, int N> __global__ void scale(T *x, float by) {
#pragma unroll
	for (int i = 0; i < N; i++) x[i] *= by;
}
extern "C" __global__ void plain(float *x) { *x = FACTOR; }
`

// Instances of templates are in the code under the names that the image says.
func TestCompileNameExpressions(t *testing.T) {
	needNVRTC(t)
	o := Options{Capability: 80, Flags: []string{"-DFACTOR=2"}, Names: []string{"scale<float, 4>", "scale<double,2>"}}
	image, err := Compile("scale.cu", templates, o)
	testkit.Must(t, err)
	if !bytes.HasPrefix(image.Code(), []byte("\x7fELF")) {
		t.Errorf("the code begins with %q", image.Code()[:min(16, len(image.Code()))])
	}
	seen := map[string]bool{}
	for _, name := range append(o.Names, "plain") {
		in := image.Kernel(name)
		if !bytes.Contains(image.Code(), []byte("\x00.text."+in+"\x00")) || seen[in] {
			t.Errorf("%s is %s in the code, which has no such function or had it before", name, in)
		}
		seen[in] = true
	}
	if in := image.Kernel("scale<int, 4>"); in != "scale<int, 4>" {
		t.Errorf("an instance that was not asked for is %q", in)
	}
	// The cache keeps the names, and tells lists of them apart.
	c := Cache{Dir: t.TempDir()}
	for i, want := range []bool{false, true} {
		kept, hit, err := c.Compile("scale.cu", templates, o)
		if err != nil || hit != want || !bytes.Equal(kept, image) {
			t.Errorf("compilation %d: from the cache %v, error %v, equal %v", i, hit, err, bytes.Equal(kept, image))
		}
	}
	o.Names = o.Names[:1]
	if _, hit, err := c.Compile("scale.cu", templates, o); hit || err != nil {
		t.Errorf("other names came from the cache (%v), error %v", hit, err)
	}
	o.Names = []string{"scale<nowhere, 4>"}
	var e *CompileError
	if _, err := Compile("scale.cu", templates, o); !errors.As(err, &e) || !strings.Contains(e.Log, "nowhere") {
		t.Errorf("an expression of an unknown type: %v", err)
	}
}

// The machine code says where the parameters of each kernel end: the driver need not be asked for
// one too many.
func TestParamsEnds(t *testing.T) {
	needNVRTC(t)
	const source = `
struct five { char of[5]; };
template <typename T> __global__ void typed(T *x, T by) { *x += by; }
extern "C" __global__ void none() {}
extern "C" __global__ void pointer(float *x) { *x = 1; }
extern "C" __global__ void mixed(float *x, int n, double d, five f, long long last) { x[n] = d + f.of[4] + last; }
extern "C" __global__ void odd(double *x, five f, short s) { *x = f.of[1] + s; }`
	image, err := Compile("params.cu", source,
		Options{Capability: 80, Names: []string{"typed<float>", "typed<double>"}})
	testkit.Must(t, err)
	ends := image.ParamsEnds()
	end := func(name string) int {
		if n, known := ends[image.Kernel(name)]; known {
			return n
		}
		return -1
	}
	for name, want := range map[string]int{"pointer": 8, "mixed": 40, "odd": 16, "typed<float>": 12,
		"typed<double>": 16, "absent": -1} {
		if got := end(name); got != want {
			t.Errorf("the parameters of %s end at %d, want %d", name, got, want)
		}
	}
	if got := end("none"); got > 0 {
		t.Errorf("the parameters of a kernel without any end at %d", got)
	}
	for _, code := range []string{"", ".version 7.0\n.entry pointer", "\x7fELF", string(image.Code()[:100])} {
		if got, known := Image(code).ParamsEnds()["pointer"]; known {
			t.Errorf("the parameters of %q end at %d", code, got)
		}
	}
}

// Code for one architecture says so; compilers that know no such targets leave it out.
func TestCompileArchSpecific(t *testing.T) {
	needNVRTC(t)
	const source = "extern \"C\" __global__ void f(int *x) {\n#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n" +
		"*x = 12345678;\n#endif\n}\n"
	plain, err := Compile("f.cu", source, Options{Capability: 90})
	testkit.Must(t, err)
	specific, err := Compile("f.cu", source, Options{Capability: 90, ArchSpecific: true})
	testkit.Must(t, err)
	major, _ := Version()
	if differ := !bytes.Equal(plain, specific); differ != (major >= 12) {
		t.Errorf("NVRTC %d: code for one architecture differs from code for all: %v", major, differ)
	}
	if _, err := Compile("f.cu", source, Options{Capability: 80, ArchSpecific: true}); err != nil {
		t.Errorf("for 8.0: %v", err)
	}
}

// FuzzImage reads tables of names as they are, and whole ones.
func FuzzImage(f *testing.F) {
	f.Add([]byte(lowered), "a<b>", "_Z1a", []byte("code"))
	f.Add([]byte(lowered+"\x01\x00\x00\x00\xff\xff\xff\xff"), "", "", []byte{})
	f.Fuzz(func(t *testing.T, raw []byte, from, to string, code []byte) {
		if c := Image(raw).Code(); !bytes.HasSuffix(raw, c) {
			t.Errorf("%q has code %q", raw, c)
		}
		i := withNames([][2]string{{"other", "x"}, {from, to}}, code)
		if want := to; want != "" && from != "other" && i.Kernel(from) != want || !bytes.Equal(i.Code(), code) {
			t.Errorf("%q: %q is %q, code %q", i, from, i.Kernel(from), i.Code())
		}
	})
}
