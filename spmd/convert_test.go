package spmd_test

import (
	"fmt"
	"math"
	"strings"
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

// Every way to bfloat16 in spmd.cuh rounds as Go does, halves to even. A NaN stays one, on a GPU as
// 0x7fff if the hardware converts.
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
			must(t, outs[i].SetAll(0x1234))
		}
		s, err := w.NewStream("convert")
		must(t, err)
		defer s.Close()
		must(t, roundBF16.Launch(s, spmd.Cover1D(n/8, 256), outs[0].Arg(), outs[1].Arg(), outs[2].Arg(),
			outs[3].Arg(), src.Arg(), spmd.I64(n)))
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

// convertEight has both ways from float to a type of 8 bits, and the way back.
func convertEight[T spmd.F8E4M3 | spmd.F8E5M2](name string, to func(float32) T, from func(T) float32) *spmd.Kernel {
	return spmd.NewKernel("convert", `
#include "spmd.cuh"
extern "C" __global__ void convert(`+name+` *one, `+name+` *eight, float *back, const float *x, long long n) {
	for (long long i = 8 * grid_index(); i < n; i += 8 * grid_size()) {
		float v[8];
		load8(v, x + i);
		store8(eight + i, v);
		for (int k = 0; k < 8; k++) {
			one[i + k] = from_float<`+name+`>(v[k]);
			back[i + k] = to_float(one[i + k]);
		}
	}
}`, func(a spmd.Args) error {
		for i, x := range spmd.ArgSlice[float32](a, 3) {
			code := to(x)
			spmd.ArgSlice[T](a, 0)[i], spmd.ArgSlice[T](a, 1)[i] = code, code
			spmd.ArgSlice[float32](a, 2)[i] = from(code)
		}
		return nil
	})
}

var (
	convertE4M3 = convertEight("f8e4m3", spmd.ToF8E4M3, spmd.F8E4M3.Float32)
	convertE5M2 = convertEight("f8e5m2", spmd.ToF8E5M2, spmd.F8E5M2.Float32)
)

// eightValues are the values of all codes of a format with so many bits of fraction, by its
// definition (OFP8). Codes from none on are left out: they are NaNs or, in E5M2, infinite before
// them.
func eightValues(fraction, bias, none int) (values [256]float64) {
	for i := range values {
		size := i & 0x7f
		exp, frac := size>>fraction, float64(size&(1<<fraction-1))
		v := math.Ldexp(frac+float64(int(1)<<fraction), exp-bias-fraction)
		switch {
		case size >= none && size == 0x7c:
			v = math.Inf(1)
		case size >= none:
			v = math.NaN()
		case exp == 0:
			v = math.Ldexp(frac, 1-bias-fraction)
		}
		if i >= 0x80 {
			v = -v
		}
		values[i] = v
	}
	return values
}

// Both ways to 8 bits in spmd.cuh, and the way back, are those of Go: for all bfloat16 values and
// their neighbours. These have all codes but those of NaNs and infinities, the middles between two
// codes, and values beyond.
func TestConversionToEight(t *testing.T) {
	t.Parallel()
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testEight(t, w, convertE4M3, spmd.ToF8E4M3, eightValues(3, 7, 0x7f), 255) // NaN has one
		// so it has here, and infinities none
		testEight(t, w, convertE5M2, spmd.ToF8E5M2, eightValues(2, 15, 0x7c), 249)
	})
}

// A view has the elements themselves: results of collectives on it are there.
func TestView(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		const n = 129
		own, all := alloc[spmd.F8E4M3](t, w, n), alloc[spmd.F8E4M3](t, w, n*w.Size()+1)
		value := func(rank, i int) spmd.F8E4M3 { return spmd.ToF8E4M3(float32(i%15 - 7*rank)) }
		for i := range n {
			own.Set(i, value(w.Rank(), i))
		}
		all.Set(0, 0x55)
		spmdtest.Must(t, spmd.AllGather(w.Comm(), spmd.View[uint8](all.Slice(1, all.Len())), spmd.View[uint8](own)))
		for i := range n * w.Size() {
			if got, want := all.At(1+i), value(i/n, i%n); got != want {
				t.Fatalf("element %d is %v, want %v", i, got.Float32(), want.Float32())
			}
		}
		if all.At(0) != 0x55 {
			t.Error("an element outside of the slice has changed")
		}
	})
}

// A view of larger elements is of whole ones.
func TestViewOfPairs(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		x := alloc[float32](t, w, 7)
		spmdtest.Must(t, x.CopyFrom([]float32{0, 1, 2, 3, 4, 5, 6}))
		pairs := spmd.View[complex64](x.Slice(2, 6))
		pairs.Set(0, pairs.At(0)*1i)
		if got := pairs.At(1); pairs.Len() != 2 || got != 4+5i || x.At(2) != -3 || x.At(3) != 2 {
			t.Errorf("%d pairs, %v, %v, %v", pairs.Len(), got, x.At(2), x.At(3))
		}
		if back := spmd.View[float32](pairs); back.Len() != 4 || back.At(3) != 5 {
			t.Errorf("%d numbers, %v", back.Len(), back.At(3))
		}
		for _, bad := range []spmd.Buffer[float32]{x.Slice(1, 5), x.Slice(2, 5)} {
			func() {
				defer func() {
					if got := fmt.Sprint(recover()); !strings.Contains(got, "they are parts of elements") {
						t.Errorf("a view of %d numbers: %s", bad.Len(), got)
					}
				}()
				spmd.View[complex64](bad)
			}()
		}
	})
}

func testEight[T spmd.F8E4M3 | spmd.F8E5M2](
	t *testing.T, w *spmd.World, kernel *spmd.Kernel, to func(float32) T, values [256]float64, codes int,
) {
	t.Helper()
	var x []float32
	for high := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x8000, 0xffff} {
			x = append(x, math.Float32frombits(high<<16|low))
		}
	}
	n := len(x)
	src, back := alloc[float32](t, w, n), alloc[float32](t, w, n)
	must(t, src.CopyFrom(x))
	outs := [2]spmd.Buffer[T]{alloc[T](t, w, n), alloc[T](t, w, n)}
	for _, out := range outs {
		must(t, out.SetAll(0x12))
	}
	s := stream(t, w, "convert")
	must(t, kernel.Launch(s, spmd.Cover1D(n/8, 256), outs[0].Arg(), outs[1].Arg(), back.Arg(), src.Arg(), spmd.I64(n)))
	must(t, s.Synchronize())
	wide := make([]float32, n)
	must(t, back.CopyTo(wide))
	got, seen := make([]T, n), map[T]bool{}
	for k, out := range outs {
		must(t, out.CopyTo(got))
		for i, v := range x {
			want := to(v)
			seen[want] = true
			if got[i] != want {
				t.Fatalf("way %d: %#08x becomes %#02x, in Go %#02x", k, math.Float32bits(v), got[i], want)
			}
			if value := values[want]; float64(wide[i]) != value && value == value ||
				value != value && wide[i] == wide[i] {
				t.Fatalf("%#02x is %v, by the definition %v", want, wide[i], value)
			}
		}
	}
	if len(seen) != codes {
		t.Errorf("%d codes were met, want %d", len(seen), codes)
	}
}
