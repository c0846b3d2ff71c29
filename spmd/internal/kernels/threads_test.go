package kernels

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
)

const source = `
__device__ int twice(int v) { return 2 * v; }
__constant__ int none = 0;

// Every thread gives its number to the others: through shared memory, and through the warp.
extern "C" __global__ void pass(int *out, int n) {
	extern __shared__ int seen[];
	__shared__ int first;
	int t = threadIdx.x + threadIdx.y * blockDim.x, threads = blockDim.x * blockDim.y;
	if (t == 0) first = blockIdx.x * 1000;
	seen[t] = twice(t);
	__syncthreads();
	int far = seen[threads - 1 - t], sum = t;
	for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
	unsigned odd = __ballot_sync(0xffffffffu, t % 2);
	if (blockIdx.x * threads + t < n) out[blockIdx.x * threads + t] = first + far + sum + (odd == 0xaaaaaaaau ? 0 : 1000000);
	atomicAdd(out + n, 1);
}

// Half of the threads end, and the others wait for them.
extern "C" __global__ void halved(int *out) {
	if (threadIdx.x % 2) return;
	__syncthreads();
	out[0] = 1;
}

template <typename T, int BY> __global__ void scale(T *x, long long n) {
	long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) x[i] *= BY;
}

struct pair { double a; int b; };
extern "C" __global__ void many(const float *x, unsigned char *bytes, bool flag, const pair p, void *any, long long n, const pair *of) {}
`

const ptx = `extern "C" __global__ void ptx(int *x) { asm volatile("mov.u32 %0, %%laneid;" : "=r"(x[0])); }`

func compile(t *testing.T, names ...string) *Emulated {
	t.Helper()
	p, err := Emulate(t.TempDir(), EmulatedSource{Text: source, Names: names})
	testkit.Must(t, err)
	return p
}

// addressed holds values whose addresses are passed as numbers: on a stack they could move.
var addressed []any

func address[T any](x []T) uint64 {
	addressed = append(addressed, x)
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(x))))
}

// The threads of a block see the others' writes at barriers and in shuffles, for any shape
// of the block.
func TestThreads(t *testing.T) {
	p := compile(t, "pass")
	const n, threads = 300, 64
	for _, shape := range [][3]int{{64, 1, 1}, {8, 8, 1}} {
		out := make([]int32, n+1)
		for from := range 5 { // blocks on their own
			err := p.Launch("pass", Part{[3]int{5, 1, 1}, shape, from, from + 1, 4 * threads},
				[]uint64{address(out), n}, []uint32{0, 1})
			testkit.Must(t, err)
		}
		for i, got := range out[:n] {
			at := i % threads
			sum := 0
			for l := range 32 {
				sum += at/32*32 + l
			}
			if want := int32(i/threads*1000 + 2*(threads-1-at) + sum); got != want {
				t.Fatalf("block %v: element %d is %d, want %d", shape, i, got, want)
			}
		}
		if out[n] != 5*threads {
			t.Errorf("block %v: %d threads have counted themselves", shape, out[n])
		}
	}
}

// A barrier that some threads never reach is an error, after which launches go on.
func TestBarrier(t *testing.T) {
	p := compile(t, "halved", "scale<double, 3>")
	out := make([]int32, 1)
	err := p.Launch("halved", Part{[3]int{1, 1, 1}, [3]int{64, 1, 1}, 0, 1, 0}, []uint64{address(out)}, []uint32{0})
	if err == nil || !strings.Contains(err.Error(),
		"kernel halved: block (0, 0, 0): a barrier that not all threads of the block reach") || out[0] != 0 {
		t.Errorf("%v, and %d is written", err, out[0])
	}
	x := []float64{1, 2, 3}
	if err := p.Launch("scale<double, 3>", Part{[3]int{2, 1, 1}, [3]int{2, 1, 1}, 0, 2, 0}, []uint64{address(x), 3},
		[]uint32{0, 1}); err != nil || !slices.Equal(x, []float64{3, 6, 9}) {
		t.Errorf("%v, %v", x, err)
	}
}

// An access outside of memory stops the kernel, and the error has the line. This holds on several
// threads of the process, and launches go on.
func TestFault(t *testing.T) {
	const far = `extern "C" __global__ void far(float *x, long long by) {
	if (threadIdx.x == 5)
		x[by * threadIdx.x] += 1;
	__syncthreads();
}`
	p, err := Emulate(t.TempDir(), EmulatedSource{Text: far, Names: []string{"far"}})
	testkit.Must(t, err)
	for range 3 {
		err = p.Launch("far", Part{[3]int{2, 1, 1}, [3]int{32, 1, 1}, 0, 2, 0}, []uint64{64, 0}, []uint32{0, 1})
		want := "kernel far: kernel.cu:3: x[by * threadIdx.x] += 1;: block (0, 0, 0), thread (5, 0, 0): no memory " +
			"at 0x40"
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		x := []float32{1}
		if err := p.Launch("far", Part{[3]int{2, 1, 1}, [3]int{32, 1, 1}, 0, 2, 0}, []uint64{address(x), 0},
			[]uint32{0, 1}); err != nil || x[0] != 3 {
			t.Errorf("%v, %v", err, x)
		}
	}
	defer func() { // what Go's own code does is Go's
		if recover() == nil {
			t.Error("a nil pointer of Go does not panic")
		}
	}()
	var none *int
	*none = 1
}

// Code that cannot be emulated is refused in one line.
func TestRefused(t *testing.T) {
	_, err := Emulate(t.TempDir(), EmulatedSource{Text: ptx, Names: []string{"ptx"}})
	if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "kernel.cu:") {
		t.Errorf("PTX: %v", err)
	}
	t.Setenv("CXX", "no-such-compiler")
	_, err = Emulate(t.TempDir(), EmulatedSource{Text: source})
	testkit.Refused(t, err, "needs a C++ compiler, no-such-compiler or what CXX names")
}

// The parameters of a kernel are known without a look at its body.
func TestDescribe(t *testing.T) {
	got, err := Describe(t.TempDir(),
		EmulatedSource{Text: source + ptx, Names: []string{"many", "scale<float, 2>", "ptx"}})
	testkit.Must(t, err)
	for name, want := range map[string]string{
		"many": "a pointer to float32; a pointer to int8; int8; a struct of 16 bytes; a pointer to void; " +
			"int64; a pointer to a struct of 16 bytes",
		"scale<float, 2>": "a pointer to float32; int64", "ptx": "a pointer to int32",
	} {
		var texts []string
		for _, p := range got[name] {
			texts = append(texts, p.String())
		}
		if text := strings.Join(texts, "; "); text != want {
			t.Errorf("%s has %s, want %s", name, text, want)
		}
	}
}
