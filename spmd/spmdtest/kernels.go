package spmdtest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/source"
	"lockstep/spmd/internal/kernels"
)

// CompileKernels compiles the CUDA sources of the kernels in package variables of the package under
// test, for sm_80 and sm_90, with the real compiler: NVRTC needs no GPU. The results are kept in
// the cache of kernels that programs use, and not compiled again. It skips the test with the reason
// if there is no NVRTC. First it compares the output of spmdgen with the package's kernels in Go.
//
// Every test compares launches on the host with the parameters of the CUDA source: Main sees to
// that. The log of CompileKernels names kernels whose source a C++ compiler does not understand.
func CompileKernels(t *testing.T) {
	if err := source.Fresh("."); err != nil {
		t.Error(err)
	}
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	sources := kernels.DeclaredBy(kernels.Package(1))
	if len(sources) == 0 {
		t.Fatal("no kernel is declared with a CUDA source")
	}
	cores := make(chan struct{}, runtime.GOMAXPROCS(0)) // a compiler takes one, and much memory
	for _, s := range sources {
		if _, err := describe(s); err != nil {
			t.Logf("launches of %s are not compared with its parameters: %v", strings.Join(s.Names, ", "), err)
		}
		for _, capability := range []int{80, 90} {
			t.Run(fmt.Sprintf("%s sm_%d", s.Names[0], capability), func(t *testing.T) {
				t.Parallel()
				cores <- struct{}{}
				defer func() { <-cores }()
				image, _, err := compiled.Compile(s.Names[0], s.Text, s.Options(capability))
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

// CompareKernels has each launch of the rest of the test, on the host and on every rank, run both
// ways: the host function, and the CUDA source, emulated on copies of the buffers. A launch fails
// its stream if the results differ by a bit, or by more than its tolerance. It fails too if the
// CUDA source accesses memory outside of its buffers, and tells the line. It also fails if not all
// threads of a block reach a barrier. KernelOptions.Scratch says which arguments mean nothing.
//
// It needs a C++ compiler, and logs if there is none. Kernels that the compiler does not
// understand, with PTX or instructions for matrices, run on the host only: the log of
// CompileKernels names them.
func CompareKernels(t *testing.T) {
	t.Helper()
	if Device() != "host" {
		return
	}
	if err := kernels.HostCompiler(); err != nil {
		t.Log(err)
		return
	}
	t.Cleanup(kernels.RunBoth())
}

// describedEnv tells the ranks of a test that the test has described the kernels.
const describedEnv = "SPMDTEST_DESCRIBED"

// describeKernels makes launches be compared with the CUDA source. It finds out the parameters of
// the kernels in package variables before tests that have little time need them. Kernels that no
// C++ compiler understands are not compared. Benchmarks launch as programs do.
func describeKernels() {
	flag.Parse()
	if Device() == "cuda" || flag.Lookup("test.bench").Value.String() != "" {
		return
	}
	kernels.CompareLaunches()
	if os.Getenv(describedEnv) != "" {
		return
	}
	var all sync.WaitGroup
	cores := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, s := range kernels.All() {
		all.Go(func() {
			cores <- struct{}{}
			defer func() { <-cores }()
			_, _ = describe(s)
		})
	}
	all.Wait()
	if err := os.Setenv(describedEnv, "1"); err != nil {
		panic(err)
	}
}

func describe(s kernels.Source) (map[string][]kernels.Param, error) {
	return kernels.Describe(compiled.Dir, kernels.EmulatedSource{Text: s.Text, Flags: s.AllFlags(), Names: s.Names,
		Headers: kernels.Headers})
}

// compiled is the cache of kernels that programs use, unless a test says other.
var compiled = nvrtc.DefaultCache()
