package spmd_test

import (
	"context"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// formSource has a kernel of each form that a kernel can have.
const formSource = `
#include "spmd.cuh"
struct table { float add[100]; int n; };
template <typename T, int BY> __global__ void weigh(T *x, const __grid_constant__ table t, long long n) {
	wait_previous();
	for (long long i = grid_index(); i < n; i += grid_size()) x[i] = x[i] * BY * FACTOR + t.add[i % t.n];
	start_next();
}
struct Three { float of[3]; };
extern "C" __global__ void takes(float *x, long long n, Three three, float f) {}
`

type formTable struct {
	Add [100]float32
	N   int32
}

func form[T float32 | float64](name string) *spmd.Kernel {
	return spmd.NewKernel(name, formSource, func(a spmd.Args) error {
		x, t := spmd.ArgSlice[T](a, 0), spmd.ArgStruct[formTable](a, 1)
		for i := range x {
			x[i] = x[i]*9 + T(t.Add[i%int(t.N)])
		}
		return nil
	}, spmd.KernelOptions{Flags: []string{"-DFACTOR=3"}})
}

var (
	weighFloat  = form[float32]("weigh<float, 3>")
	weighDouble = form[float64]("weigh<double, 3>")
)

var takes = spmd.NewKernel("takes", formSource, func(spmd.Args) error { return nil },
	spmd.KernelOptions{Flags: []string{"-DFACTOR=3"}})

// kernelArguments: a launch whose arguments are not the parameters of the CUDA source is refused.
func kernelArguments(t *testing.T, w *spmd.World) {
	x := alloc[float32](t, w, 4)
	three, four := spmd.Struct([3]float32{}), spmd.Struct([4]float32{})
	s := stream(t, w, "s")
	launch := func(args ...spmd.Arg) error {
		return takes.Launch(s, spmd.Cover1D(1, 1), args...)
	}
	must(t, launch(x.Arg(), spmd.I64(4), three, spmd.F32(1)))
	for _, tc := range []struct {
		args []spmd.Arg
		want string
	}{
		{[]spmd.Arg{x.Arg(), spmd.I64(4), three}, "3 arguments, but its CUDA source has 4 parameters"},
		{[]spmd.Arg{x.Arg(), spmd.I64(4), three, spmd.F32(1), spmd.F32(1)},
			"5 arguments, but its CUDA source has 4 parameters"},
		{[]spmd.Arg{x.Arg(), spmd.I32(4), three, spmd.F32(1)},
			"argument 1 is int32, of 4 bytes, but the parameter of its CUDA source has 8"},
		{[]spmd.Arg{x.Arg(), spmd.I64(4), four, spmd.F32(1)},
			"argument 2 is a struct of 16 bytes, but the parameter of its CUDA source has 12"},
		{[]spmd.Arg{x.Arg(), spmd.I64(4), three, x.Arg()},
			"argument 3 is a buffer of 4 float32, of 8 bytes, but the parameter of its CUDA source has 4"},
	} {
		if err := launch(tc.args...); err == nil || !strings.Contains(err.Error(), "kernel takes: "+tc.want) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
	must(t, launch(x.Arg(), spmd.I64(4), three, spmd.F32(1)))
	must(t, s.Synchronize())
}

// TestKernelArguments: see kernelArguments; drivers before CUDA 12.4 do not tell.
func TestKernelArguments(t *testing.T) {
	t.Parallel()
	if spmdtest.Device() == "host" {
		t.Skip("the host function has no CUDA source; TestGPU has it on a test double")
	}
	spmdtest.Run(t, []int{1}, kernelArguments)
}

// In tests the host refuses arguments that a GPU would refuse, or take for something else.
func TestLaunchesAreCompared(t *testing.T) {
	spmdtest.HostOnly(t, "a GPU compares sizes: see TestKernelArguments")
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		x, wide := alloc[float32](t, w, 4), alloc[float64](t, w, 4)
		three, four := spmd.Struct([3]float32{}), spmd.Struct([4]float32{})
		s := stream(t, w, "s")
		for _, tc := range []struct {
			args []spmd.Arg
			want string
		}{
			{[]spmd.Arg{x.Arg(), spmd.I64(4), three}, "3 arguments, but its CUDA source has 4 parameters"},
			{[]spmd.Arg{wide.Arg(), spmd.I64(4), three, spmd.F32(1)},
				"argument 0 is a buffer of 4 float64, but the parameter of its CUDA source is a pointer to float32"},
			{[]spmd.Arg{x.Arg(), spmd.I32(4), three, spmd.F32(1)},
				"argument 1 is int32, but the parameter of its CUDA source is int64"},
			{[]spmd.Arg{x.Arg(), spmd.I64(4), four, spmd.F32(1)},
				"argument 2 is a struct of 16 bytes, but the parameter of its CUDA source is a struct of 12 bytes"},
			{[]spmd.Arg{x.Arg(), spmd.I64(4), three, x.Arg()},
				"argument 3 is a buffer of 4 float32, but the parameter of its CUDA source is float32"},
			{[]spmd.Arg{x.Arg(), spmd.I64(4), three, spmd.F64(1)},
				"argument 3 is float64, but the parameter of its CUDA source is float32"},
		} {
			err := takes.Launch(s, spmd.Cover1D(1, 1), tc.args...)
			if err == nil || !strings.Contains(err.Error(), "kernel takes: "+tc.want) ||
				!strings.Contains(err.Error(), "kernel_test.go:") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		}
		must(t, takes.Launch(s, spmd.Cover1D(1, 1), x.Arg(), spmd.I64(4), three, spmd.F32(1)))
		must(t, s.Synchronize())
	})
}

// Instances of a template, a macro, a struct of 404 bytes by value, and launches that begin early:
// each launch reads the results of the one before.
func TestKernelForms(t *testing.T) {
	t.Parallel()
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		table := formTable{N: 7}
		for i := range table.Add {
			table.Add[i] = float32(i)
		}
		arg := spmd.Struct(table)
		table.N = 1 // the argument is a copy
		late := form[float32]("weigh<float, 1 + 2>")
		t.Run("float", func(t *testing.T) { weighed[float32](t, w, arg, weighFloat, late) })
		t.Run("double", func(t *testing.T) { weighed[float64](t, w, arg, weighDouble, weighDouble) })
	})
}

func weighed[T float32 | float64](t *testing.T, w *spmd.World, table spmd.Arg, kernels ...*spmd.Kernel) {
	const n = 1000
	x, err := spmd.Alloc[T](w, n)
	must(t, err)
	defer x.Free()
	s, err := w.NewStream("forms")
	must(t, err)
	defer s.Close()
	must(t, x.SetAll(1))
	g := spmd.Cover1D(n, 256)
	g.Programmatic = true
	for _, k := range kernels {
		must(t, k.Launch(s, g, x.Arg(), table, spmd.I64(n)))
	}
	must(t, s.Synchronize())
	for i := range n {
		want := T(1)
		for range kernels {
			want = want*9 + T(i%7)
		}
		if got := x.At(i); got != want {
			t.Fatalf("element %d is %v, want %v", i, got, want)
		}
	}
}

func TestKernelRefusals(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("refusals")
		must(t, err)
		defer s.Close()
		for _, cluster := range [][3]int{{3, 1, 1}, {2, 0, 1}, {-1, 1, 1}} {
			g := spmd.Grid{Blocks: [3]int{4, 2, 1}, Threads: [3]int{32, 1, 1}, Cluster: cluster}
			if err := nop.Launch(s, g); err == nil || !strings.Contains(err.Error(), "clusters of") {
				t.Errorf("clusters of %v: %v", cluster, err)
			}
		}
	})
	for name, make := range map[string]func(){
		"pointer": func() { spmd.Struct(struct{ p *int }{}) },
		"nested":  func() { spmd.Struct([2]struct{ s []int }{}) },
		"large":   func() { spmd.Struct([4097]byte{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Struct takes it", name)
				}
			}()
			make()
		}()
	}
}

var falls = spmd.NewKernel("falls", `extern "C" __global__ void falls() {}`, func(spmd.Args) error {
	var none []int
	none[3] = 1
	return nil
})

// A panic in the host function of a kernel names the kernel.
func TestKernelPanics(t *testing.T) {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(t.Context(), cfg, 1, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("s")
		if err != nil {
			return err
		}
		if err := falls.Launch(s, spmd.Cover1D(1, 1)); err != nil {
			return err
		}
		return s.Synchronize()
	})
	if err == nil || !strings.Contains(err.Error(),
		"panic in the host function of kernel falls: runtime error: index out of range [3]") {
		t.Errorf("%v", err)
	}
}
