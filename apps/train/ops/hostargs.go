package ops

import (
	"lockstep/host"
	"lockstep/spmd"
)

// Kernel is one computation, for each type of activations.
type Kernel struct{ F32, BF16 *spmd.Kernel }

// newKernel declares kernel name of a source for each type of activations. On the host fn computes
// both, and adds in another order. scratch lists arguments that mean nothing to others.
func newKernel(source, name string, fn func(a *HostArgs) error, scratch ...int) Kernel {
	return Kernel{declare(source, name, onHost[float32](fn), "float", scratch),
		declare(source, name, onHost[spmd.BF16](fn), "bf16", scratch)}
}

func declare(source, name string, fn func(spmd.Args) error, act string, scratch []int) *spmd.Kernel {
	return spmd.NewKernel(name, source, fn,
		spmd.KernelOptions{Flags: []string{"-DACT=" + act}, Tolerance: 1e-5, Scratch: scratch})
}

// onHost returns the host's function for a kernel that fn computes, with activations of type A.
func onHost[A Act](fn func(a *HostArgs) error) func(spmd.Args) error {
	return func(args spmd.Args) error {
		a := HostArgs{Args: args, half: IsHalf[A]()}
		if err := fn(&a); err != nil {
			return err
		}
		for _, w := range a.written {
			RoundAll(w.to, w.from)
		}
		return nil
	}
}

// HostArgs are the arguments of a kernel on the host, which computes in float32. It gets widened
// copies of bfloat16 activations. Its results are rounded when it returns.
type HostArgs struct {
	spmd.Args
	half    bool
	written []rounding
}

type rounding struct {
	to   []spmd.BF16
	from []float32
}

// Has reports whether argument i, activations, is not empty.
func (a *HostArgs) Has(i int) bool {
	if a.half {
		return len(spmd.ArgSlice[spmd.BF16](a.Args, i)) > 0
	}
	return len(a.Floats(i)) > 0
}

// In returns the first n elements of argument i, activations to read.
func (a *HostArgs) In(i, n int) []float32 {
	if !a.half {
		return a.Floats(i)[:n]
	}
	src, wide := spmd.ArgSlice[spmd.BF16](a.Args, i)[:n], make([]float32, n)
	host.Parallel(n, halfGrain, func(lo, hi int) { host.Widen(wide[lo:hi], src[lo:hi]) })
	return wide
}

// Out returns the first n elements of argument i, activations to write, every one.
func (a *HostArgs) Out(i, n int) []float32 {
	if !a.half {
		return a.Floats(i)[:n]
	}
	return a.rounded(i, make([]float32, n))
}

// InOut returns the first n elements of argument i, activations to read and write.
func (a *HostArgs) InOut(i, n int) []float32 {
	if !a.half {
		return a.Floats(i)[:n]
	}
	return a.rounded(i, a.In(i, n))
}

// settle rounds the results so far, as the caller will see them.
func (a *HostArgs) settle() {
	for _, w := range a.written {
		host.Parallel(len(w.to), halfGrain, func(lo, hi int) {
			host.Round(w.to[lo:hi], w.from[lo:hi])
			host.Widen(w.from[lo:hi], w.to[lo:hi])
		})
	}
}

// rounded makes wide the final value of argument i, and returns it.
func (a *HostArgs) rounded(i int, wide []float32) []float32 {
	a.written = append(a.written, rounding{spmd.ArgSlice[spmd.BF16](a.Args, i)[:len(wide)], wide})
	return wide
}

// Floats returns argument i, float32 in both kernels.
func (a *HostArgs) Floats(i int) []float32 { return spmd.ArgSlice[float32](a.Args, i) }

// Ints returns the first n elements of argument i, tokens.
func (a *HostArgs) Ints(i, n int) []int32 { return spmd.ArgSlice[int32](a.Args, i)[:n] }

// flag returns argument i, passed by flag.
func (a *HostArgs) flag(i int) bool { return a.I32(i) != 0 }

// Flag returns a bool as an argument of a kernel.
func Flag(b bool) spmd.Arg {
	if b {
		return spmd.I32(1)
	}
	return spmd.I32(0)
}

// halfGrain is how many conversions are worth a goroutine.
const halfGrain = 1 << 14

// RoundAll sets dst to src, rounded to bfloat16.
func RoundAll(dst []spmd.BF16, src []float32) {
	host.Parallel(len(src), halfGrain, func(lo, hi int) { host.Round(dst[lo:hi], src[lo:hi]) })
}

// RowGrain returns how many rows of c elements are worth a goroutine.
func RowGrain(c int) int { return max(1, 1<<14/c) }

// columns calls fn on ranges of c columns of n rows, divided at whole cache lines.
func columns(c, n int, fn func(lo, hi int)) {
	const block = 64
	host.Parallel((c+block-1)/block, max(1, 1<<14/(block*n)), func(lo, hi int) {
		fn(lo*block, min(hi*block, c))
	})
}
