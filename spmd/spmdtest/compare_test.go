package spmdtest_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

const twoWays = `#include "spmd.cuh"
// A row for each block, whose sum goes to part first.
extern "C" __global__ void sums(float *sum, float *part, const float *x, int c, int off) {
	float v = 0;
	for (int j = threadIdx.x; j < c + off; j += blockDim.x)
		v += x[blockIdx.x * c + j];
	v = block_sum(v);
	if (threadIdx.x == 0) part[blockIdx.x] = v;
	__syncthreads();
	if (threadIdx.x < 5) sum[blockIdx.x] = part[blockIdx.x];
}
extern "C" __global__ void waits(float *x) {
	if (threadIdx.x > 0) __syncthreads();
}
extern "C" __global__ void before(float *x) { x[-1] = 1; }
`

// both are options for sums that differ, and an argument that holds nothing afterwards.
var both = spmd.KernelOptions{Tolerance: 1e-6, Scratch: []int{1}}

// sumsOf declares the kernel sums. Its host function adds in another order, and adds err to the
// result.
func sumsOf(err float32, options spmd.KernelOptions) *spmd.Kernel {
	return spmd.NewKernel("sums", twoWays, func(a spmd.Args) error {
		sum, x, c := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 2), a.I32(3)
		for i := range sum {
			sum[i] = err
			for _, v := range x[i*c : (i+1)*c] {
				sum[i] += v
			}
		}
		return nil
	}, options)
}

// The two forms of a kernel are compared, and accesses of the CUDA source outside of its buffers
// are found.
func TestCompareKernels(t *testing.T) {
	spmdtest.HostOnly(t, "the host function is compared with the CUDA source")
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip(err)
	}
	spmdtest.CompareKernels(t)
	const rows, c = 3, 100
	nothing := func(spmd.Args) error { return nil }
	for name, tc := range map[string]struct {
		kernel *spmd.Kernel
		off    int
		other  bool // a kernel of x alone
		want   string
	}{
		"equal": {kernel: sumsOf(0, both)},
		"scratch": {kernel: sumsOf(0, spmd.KernelOptions{Tolerance: 1e-6}),
			want: "kernel sums: the host function and the CUDA source differ in argument 1, a buffer of " +
				"3 float32: element 0 is 0 and "},
		"different": {kernel: sumsOf(1, both),
			want: "differ in argument 0, a buffer of 3 float32: element 0 is "},
		"bits": {kernel: sumsOf(1e-6, spmd.KernelOptions{Scratch: []int{1}}), want: "differ in argument 0"},
		"behind": {kernel: sumsOf(0, both), off: 1,
			want: "kernel sums: kernel.cu:6: v += x[blockIdx.x * c + j];: block (2, 0, 0), thread (4, 0, " +
				"0): element 300 of argument 2, a buffer of 300 float32"},
		"barrier": {kernel: spmd.NewKernel("waits", twoWays, nothing), other: true,
			want: "a barrier that not all threads of the block reach"},
		"before": {kernel: spmd.NewKernel("before", twoWays, nothing), other: true,
			want: "kernel before: its CUDA source writes beside argument 0, a buffer of 300 float32"},
	} {
		t.Run(name, func(t *testing.T) {
			err := spmd.Local(t.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
				s := spmdtest.Stream(t, w, "both")
				sum, part, x := spmdtest.Alloc[float32](t, w, rows), spmdtest.Alloc[float32](t, w, rows),
					spmdtest.Alloc[float32](t, w, rows*c)
				h := make([]float32, rows*c)
				for i := range h {
					h[i] = float32(i) / 7
				}
				spmdtest.Must(t, x.CopyFrom(h))
				g := spmd.Grid{Blocks: [3]int{rows, 1, 1}, Threads: [3]int{32, 1, 1}}
				if tc.other {
					spmdtest.Must(t, tc.kernel.Launch(s, g, x.Arg()))
				} else {
					spmdtest.Must(t, tc.kernel.Launch(s, g, sum.Arg(), part.Arg(), x.Arg(), spmd.I32(c),
						spmd.I32(tc.off)))
				}
				err := s.Synchronize()
				if got := sum.At(0); err == nil && tc.want == "" && (got < 707 || got > 708) {
					t.Errorf("the sum is %v, want 4950/7", got)
				}
				return err
			})
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) ||
				!strings.Contains(err.Error(), "compare_test.go:")):
				t.Errorf("%v, want %q and the line of the launch", err, tc.want)
			}
		})
	}
}
