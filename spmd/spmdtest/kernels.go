package spmdtest

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/kernels"
)

// CompileKernels compiles the CUDA sources of which the package under test declares kernels in
// package variables, for sm_80 and sm_90, with the real compiler: NVRTC needs no GPU. It
// skips the test with the reason where there is no NVRTC.
func CompileKernels(t *testing.T) {
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	sources := kernels.DeclaredBy(kernels.Package(1))
	if len(sources) == 0 {
		t.Fatal("no kernel is declared with a CUDA source")
	}
	for _, s := range sources {
		for _, capability := range []int{80, 90} {
			t.Run(fmt.Sprintf("%s sm_%d", s.Names[0], capability), func(t *testing.T) {
				image, err := nvrtc.Compile(s.Names[0], s.Text, s.Options(capability))
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range s.Names { // in the symbol table
					if !strings.Contains(string(image.Code()), "\x00"+image.Kernel(name)+"\x00") {
						t.Errorf("the binary has no kernel %s", name)
					}
				}
			})
		}
	}
}
