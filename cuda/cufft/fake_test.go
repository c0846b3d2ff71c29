package cufft

import (
	"path/filepath"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/testkit"
)

func fake(t *testing.T, body func(t *testing.T), flags ...string) {
	t.Helper()
	source, err := filepath.Abs("testdata/fakecufft.c")
	must(t, err)
	testkit.RunWithLibraries(t, func(dir string) {
		testkit.BuildCUDA(t, dir)
		testkit.BuildLibrary(t, dir, "libcufft.so.12", append(flags, source, "-lm")...)
	}, nil, body)
}

var must = testkit.Must

// A plan is made with its sizes, told of its memory and its stream, and closed. Each failure names
// its call.
func TestFake(t *testing.T) {
	fake(t, func(t *testing.T) {
		d, err := cuda.Open(0)
		must(t, err)
		s, err := d.NewStream(0)
		must(t, err)
		memory, err := d.Malloc(4096)
		must(t, err)
		x := unsafe.Slice((*complex64)(memory), 8) // of the double, in host memory
		copy(x, []complex64{1, 0, 0, 0, 1, 2i, 3, 4})
		p, err := Open(d, C2C, []int{4}, 2)
		must(t, err)
		if p.Workspace() != 64 {
			t.Errorf("it asks for %d bytes", p.Workspace())
		}
		work := unsafe.Add(memory, 1024)
		testkit.Refused(t, p.Run(s, memory, memory, nil, Forward), "cufftExecC2C", "CUFFT_NO_WORKSPACE")
		must(t, p.Run(s, memory, memory, work, Forward))
		must(t, s.Synchronize())
		want := []complex64{1, 1, 1, 1, 8 + 2i, 0 + 4i, 0 - 2i, -4 - 4i}
		for i, z := range want {
			if d := x[i] - z; real(d)*real(d)+imag(d)*imag(d) > 1e-10 {
				t.Errorf("element %d is %v, want %v", i, x[i], z)
			}
		}
		must(t, p.Run(s, memory, memory, work, Inverse))
		if d := x[6] - 12; real(d)*real(d)+imag(d)*imag(d) > 1e-10 {
			t.Errorf("there and back an element is %v", x[6])
		}
		t.Setenv("FAKECUFFT_FAIL", "cufftExecC2C")
		testkit.Refused(t, p.Run(s, memory, memory, work, Inverse), "cufftExecC2C: CUFFT_EXEC_FAILED")
		must(t, p.Close())
		must(t, p.Close())
		testkit.Refused(t, p.Run(s, memory, memory, work, Inverse), "closed")
		for _, call := range []string{"cufftCreate", "cufftMakePlanMany64"} {
			t.Setenv("FAKECUFFT_FAIL", call)
			_, err = Open(d, C2C, []int{4}, 2)
			testkit.Refused(t, err, call+": CUFFT_EXEC_FAILED")
		}
		_, err = Open(d, Kind(1), []int{4}, 2)
		testkit.Refused(t, err, "cufftMakePlanMany64: CUFFT_INVALID_VALUE")
	})
}

func TestMissing(t *testing.T) {
	fake(t, func(t *testing.T) {
		d, err := cuda.Open(0)
		must(t, err)
		_, err = Open(d, C2C, []int{4}, 1)
		testkit.Refused(t, err, "cuFFT cannot be used", "cufftExecZ2D")
	}, "-DWITHOUT_Z2D")
	testkit.Refused(t, openLibrary([]string{"libcufft-nowhere.so.1"}), "libcufft-nowhere.so.1")
}
