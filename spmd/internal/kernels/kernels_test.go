package kernels

import (
	"slices"
	"testing"
)

// declare stands for NewKernel and its callers.
func declare(text string, names ...string) { Add(Source{Text: text, Names: names}) }

// The declaring package of a kernel is known, and equal sources are one program.
func TestDeclared(t *testing.T) {
	declare("a", "f")
	func() { declare("a", "f", "g<float>") }()
	declare("", "nothing")
	const here = "lockstep/spmd/internal/kernels"
	if got := Package(0); got != here {
		t.Errorf("this package is %q", got)
	}
	got := DeclaredBy(here)
	if len(got) != 1 || got[0].Text != "a" || !slices.Equal(got[0].Names, []string{"f", "g<float>"}) {
		t.Errorf("declared here: %+v", got)
	}
	if got := DeclaredBy("testing"); len(got) != 0 {
		t.Errorf("declared elsewhere: %+v", got)
	}
	got[0].Names[0] = "changed"
	if All()[0].Names[0] != "f" {
		t.Error("All gives away its own list")
	}
}

// A kernel may write what its parameters point to, but for const: in a template, a macro, and
// behind bounds that have parentheses.
func TestWritten(t *testing.T) {
	s := Source{Text: `extern "C" __global__ void plain(float *__restrict__ y, const float *x, float const *z, long n,
			T *const w) {}
		template <typename T, int N> __global__ void __launch_bounds__(N, (int)sizeof(T) > 4 ? 1 : 2)
		scale(T *x, // the first, const *
			const pair<T, 2> *of, const __grid_constant__ box b) { f(x); }
		#define KERNELS(T, S)                                   \
			extern "C" __global__ void __launch_bounds__(256)   \
			step_##S(const T *in, T *out) {}`}
	for name, want := range map[string]uint64{"plain": 0b10001, "scale<float, 3>": 0b1, "step_f32": 0b10} {
		if got, known := s.Written(name); got != want || !known {
			t.Errorf("%s: %b, %v, want %b", name, got, known, want)
		}
	}
	if _, known := s.Written("other"); known {
		t.Error("a kernel that is not there is known")
	}
}
