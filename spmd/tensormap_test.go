package spmd_test

import (
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/spmdtest"
)

// take_box copies a box of 4 x 8 elements by the copy engine, and writes it to memory.
const boxSource = `
#include "spmd.cuh"
extern "C" __global__ void take_box(float *to, const __grid_constant__ tensor_map from, int row, int column) {
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12
	__shared__ __align__(128) float box[32];
	__shared__ uint64_t barrier;
	uint32_t b = (uint32_t)__cvta_generic_to_shared(&barrier);
	if (threadIdx.x == 0) {
		asm volatile("mbarrier.init.shared.b64 [%0], 1;\nfence.proxy.async.shared::cta;" ::"r"(b) : "memory");
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" ::"r"(b) : "memory");
		asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
			"[%0], [%1, {%2, %3}], [%4];"
			::"r"((uint32_t)__cvta_generic_to_shared(box)), "l"(&from), "r"(column), "r"(row), "r"(b) : "memory");
	}
	uint32_t there = 0;
	while (!there) {
		asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
			: "=r"(there) : "r"(b) : "memory");
	}
	to[threadIdx.x] = box[threadIdx.x];
#endif
}
`

const boxRows, boxColumns = 5, 12 // of the matrix

var takeBox = spmd.NewKernel("take_box", boxSource, func(a spmd.Args) error {
	to, from := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	for i := range to[:32] {
		row, column := a.I32(2)+i/8, a.I32(3)+i%8
		to[i] = 0
		if row >= 0 && row < boxRows && column >= 0 && column < boxColumns {
			to[i] = from[row*boxColumns+column]
		}
	}
	return nil
})

// Boxes inside of a matrix and over each of its edges, beyond which there is more memory.
func TestTensorMap(t *testing.T) {
	t.Parallel()
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "boxes")
		from, to := alloc[float32](t, w, boxRows*boxColumns+100), alloc[float32](t, w, 32)
		must(t, from.SetAll(-1))
		for i := range boxRows * boxColumns {
			from.Set(i, float32(1+i))
		}
		m := spmd.TensorMap{Sizes: []int{boxRows, boxColumns}, Box: []int{4, 8}}
		g := spmd.Grid{Blocks: [3]int{1, 1, 1}, Threads: [3]int{32, 1, 1}}
		for _, at := range [][2]int{{0, 0}, {1, 4}, {3, 8}, {-2, -4}, {4, -8}, {-4, 0}} {
			err := takeBox.Launch(s, g, to.Arg(), from.TensorMap(&m), spmd.I32(at[0]), spmd.I32(at[1]))
			if gpu := library.GPU(w); gpu != nil {
				if major, _ := nvrtc.Version(); major < 12 {
					t.Skip("NVRTC knows no copies by the copy engine before CUDA 12")
				}
				if major, _ := gpu.Capability(); major < 9 {
					if err == nil || !strings.Contains(err.Error(), "no copy engine for tensors before 9.0") {
						t.Errorf("compute capability %d: %v", major, err)
					}
					return
				}
			}
			must(t, err)
			must(t, s.Synchronize())
			for i := range 32 {
				row, column, want := at[0]+i/8, at[1]+i%8, float32(0)
				if row >= 0 && row < 5 && column >= 0 && column < 12 {
					want = float32(1 + row*12 + column)
				}
				if got := to.At(i); got != want {
					t.Fatalf("box at %v: element %d is %v, want %v", at, i, got, want)
				}
			}
		}
	})
}

func tensorShape(sizes, box []int, swizzle int) *spmd.TensorMap {
	return &spmd.TensorMap{Sizes: sizes, Box: box, Swizzle: swizzle}
}

// boxLauncher returns the launch of takeBox with a map.
func boxLauncher(t *testing.T, w *spmd.World) func(m spmd.Arg) error {
	s, to := stream(t, w, "maps"), alloc[float32](t, w, 32)
	g := spmd.Grid{Blocks: [3]int{1, 1, 1}, Threads: [3]int{32, 1, 1}}
	return func(m spmd.Arg) error { return takeBox.Launch(s, g, to.Arg(), m, spmd.I32(0), spmd.I32(0)) }
}

// tensorMapsTaken: the driver takes the maps that are let through. The test double makes the
// driver's checks, and runs no kernel: this one would wait for a box of another size.
func tensorMapsTaken(t *testing.T, w *spmd.World) {
	launch, x, shape := boxLauncher(t, w), alloc[float32](t, w, 1024), tensorShape
	for _, m := range []spmd.Arg{
		x.TensorMap(shape([]int{1024}, []int{256}, 0)),
		x.TensorMap(shape([]int{60, 12}, []int{4, 32}, 128)),
		x.Slice(4, 1000).TensorMap(shape([]int{60, 12}, []int{256, 16}, 64)),
		x.TensorMap(shape([]int{2, 2, 2, 2, 4}, []int{1, 2, 3, 4, 8}, 32)),
	} {
		must(t, launch(m))
	}
}

// TestTensorMapRefusals: tensors that a copy engine cannot map are refused.
func TestTensorMapRefusals(t *testing.T) {
	t.Parallel()
	spmdtest.Run(t, []int{1}, tensorMapRefusals)
}

func tensorMapRefusals(t *testing.T, w *spmd.World) {
	launch, shape := boxLauncher(t, w), tensorShape
	x, bytes := alloc[float32](t, w, 1024), alloc[uint8](t, w, 4096)
	for _, tc := range []struct {
		m    spmd.Arg
		want string
	}{
		{x.TensorMap(nil), "a tensor map without a shape"},
		{x.TensorMap(shape(nil, nil, 0)), "want 1 to 5 dimensions"},
		{x.TensorMap(shape([]int{1, 1, 1, 1, 1, 4}, []int{1, 1, 1, 1, 1, 4}, 0)), "want 1 to 5 dimensions"},
		{x.TensorMap(shape([]int{4, 4}, []int{4}, 0)), "box [4]"},
		{x.TensorMap(shape([]int{0, 4}, []int{1, 4}, 0)), "sizes [0 4]"},
		{x.TensorMap(shape([]int{1 << 31, 1 << 31, 4}, []int{1, 1, 4}, 0)), "sizes [2147483648 2147483648 4]"},
		{x.TensorMap(shape([]int{4, 4}, []int{0, 4}, 0)), "box of [0 4]: want 1 to 256"},
		{x.TensorMap(shape([]int{512, 2}, []int{257, 4}, 0)), "box of [257 4]: want 1 to 256"},
		{x.TensorMap(shape([]int{257, 4}, []int{1, 4}, 0)), "sizes [257 4] over 1024 elements"},
		{x.TensorMap(shape([]int{4, 4}, []int{4, 2}, 0)), "box has rows of 8 bytes: want a multiple of 16"},
		{bytes.TensorMap(shape([]int{4, 17}, []int{4, 16}, 0)), "rows have 17 bytes: want a multiple of 16"},
		{x.TensorMap(shape([]int{4, 4}, []int{4, 4}, 16)), "swizzled in 16 bytes"},
		{x.TensorMap(shape([]int{4, 64}, []int{4, 36}, 128)), "rows of 144 bytes, swizzled in 128"},
		{x.Slice(1, 1000).TensorMap(shape([]int{4, 4}, []int{4, 4}, 0)), "want a multiple of 16 bytes"},
	} {
		if err := launch(tc.m); err == nil || !strings.Contains(err.Error(), "argument 1 is a tensor map") ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}
