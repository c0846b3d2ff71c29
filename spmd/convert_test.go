package spmd_test

import (
	"math"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

var roundBF16 = spmd.NewKernel("round_bf16", `
#include "spmd.cuh"
extern "C" __global__ void round_bf16(bf16 *one, bf16 *two, bf16 *four, bf16 *eight, const float *x, long long n) {
	for (long long i = 8 * grid_index(); i < n; i += 8 * grid_size()) {
		float v[8];
		load8(v, x + i);
		for (int k = 0; k < 8; k++) one[i + k] = from_float<bf16>(v[k]);
		for (int k = 0; k < 8; k += 2) *(uint32_t *)(two + i + k) = from_floats<bf16>(v[k], v[k + 1]);
		for (int k = 0; k < 8; k += 4) store4(four + i + k, load4(x + i + k));
		store8(eight + i, v);
	}
}`, func(a spmd.Args) error {
	for out := range 4 {
		for i, x := range spmd.ArgSlice[float32](a, 4) {
			spmd.ArgSlice[spmd.BF16](a, out)[i] = spmd.ToBF16(x)
		}
	}
	return nil
})

// Every way to bfloat16 in spmd.cuh rounds as Go does, halves to even; what is not a
// number stays that, on a GPU as 0x7fff where the hardware converts.
func TestConversionToBF16(t *testing.T) {
	t.Parallel()
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		var x []float32
		for high := range uint32(1 << 16) {
			for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000} {
				x = append(x, math.Float32frombits(high<<16|low))
			}
		}
		n := len(x)
		src, err := spmd.Alloc[float32](w, n)
		must(t, err)
		defer src.Free()
		must(t, src.CopyFrom(x))
		var outs [4]spmd.Buffer[spmd.BF16]
		for i := range outs {
			outs[i], err = spmd.Alloc[spmd.BF16](w, n)
			must(t, err)
			defer outs[i].Free()
			must(t, outs[i].Fill(0x1234))
		}
		s, err := w.NewStream("convert")
		must(t, err)
		defer s.Close()
		must(t, roundBF16.Launch(s, spmd.Cover1D(n/8, 256), outs[0].Arg(), outs[1].Arg(), outs[2].Arg(), outs[3].Arg(), src.Arg(), spmd.I64(n)))
		must(t, s.Synchronize())
		got := make([]spmd.BF16, n)
		for k, out := range outs {
			must(t, out.CopyTo(got))
			for i, v := range x {
				nan := v != v
				if want := spmd.ToBF16(v); !nan && got[i] != want || nan && got[i].Float32() == got[i].Float32() {
					t.Fatalf("way %d: %#08x becomes %#04x, in Go %#04x", k, math.Float32bits(v), got[i], want)
				}
			}
		}
	})
}
