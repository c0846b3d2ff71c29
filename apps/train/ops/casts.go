package ops

import (
	_ "embed"
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// Apart8 is how many numbers apart the scales of products are: cuBLASLt wants them
// aligned to 16 bytes.
const Apart8 = 4

// Matrix8 is a matrix of weights. It says where its codes and its transpose's begin.
type Matrix8 struct {
	From, To, Across int // elements; From is in the arena of weights
	Rows, Cols       int
}

// MatrixNumbers is how many numbers a Matrix8 has for the kernels, which have a struct of them.
const MatrixNumbers = 5

// Numbers returns the numbers of m.
func (m Matrix8) Numbers() [MatrixNumbers]int64 {
	return [...]int64{int64(m.From), int64(m.To), int64(m.Across), int64(m.Rows), int64(m.Cols)}
}

// matrix8Of reverses Numbers.
func matrix8Of(n [MatrixNumbers]int64) Matrix8 {
	return Matrix8{From: int(n[0]), To: int(n[1]), Across: int(n[2]), Rows: int(n[3]), Cols: int(n[4])}
}

const (
	TileSide    = 128 // of a tile of weights, as in fp8.cu
	ColumnParts = 264 // blocks that share a tensor's rows, two for each multiprocessor of an H100 or H200
)

// Cast is where the copy of a tensor in 8-bit floats goes: to Codes, or to Wide if sizes differ too
// much. The zero cast makes no copy.
type Cast struct {
	Codes          spmd.Buffer[spmd.F8E4M3]
	Wide           spmd.Buffer[spmd.F8E5M2]
	Up, Down, Peak spmd.Buffer[float32] // (1) each; without Peak the largest size is not recorded
}

// None reports whether the cast makes no copy.
func (c Cast) None() bool { return c.Codes.Len()+c.Wide.Len() == 0 }

// MostPower bounds the exponent of a scale.
const MostPower = 126

// fp8.cu has the kernels of products of 8-bit floats for a GPU. Those that make a copy of a tensor
// beside other work are in kernels.go and norms.go.

// eightSource follows commonSource in sources of such kernels.
//
//go:embed eight.cuh
var eightSource string

//go:embed fp8.cu
var fp8CUDA string

var fp8Source = eightSource + fp8CUDA

// powerFor returns the exponent of the scale for a largest size, above 0 and finite.
func powerFor(peak float32) int {
	return min(MostPower, 7-(int(math.Float32bits(peak)>>23)-127))
}

// size8 reports whether the largest size of values determines their scale.
func size8(peak float32) bool { return peak > 0 && Finite(float64(peak)) }

// eight is the set of 8-bit floats.
type eight interface{ spmd.F8E4M3 | spmd.F8E5M2 }

// codes8 stores values times a scale, and returns the largest of their sizes and top.
func codes8[T eight](codes []T, x []float32, scale, top float32) float32 {
	to := func(v float32) T { return T(spmd.ToF8E4M3(v)) }
	if _, wide := any(codes).([]spmd.F8E5M2); wide {
		to = func(v float32) T { return T(spmd.ToF8E5M2(v)) }
	}
	for i, v := range x {
		if size := float32(math.Abs(float64(v))); size > top {
			top = size
		}
		codes[i] = to(v * scale)
	}
	return top
}

// raise8 records the largest size of values in argument i, which may be missing.
func raise8(a spmd.Args, i int, top float32) {
	if peak := spmd.ArgSlice[float32](a, i); len(peak) > 0 {
		peak[0] = max(peak[0], top)
	}
}

// Copying returns fn followed by the copy of the activations that it wrote first. The codes are
// argument i, followed by the scale and the largest size.
func Copying[T eight](i int, fn func(a *HostArgs) error) func(a *HostArgs) error {
	return func(a *HostArgs) error {
		if err := fn(a); err != nil {
			return err
		}
		a.settle()
		raise8(a.Args, i+2, codes8(spmd.ArgSlice[T](a.Args, i), a.written[0].from,
			spmd.ArgSlice[float32](a.Args, i+1)[0], 0))
		return nil
	}
}

func widened(x []spmd.BF16) []float32 {
	wide := make([]float32, len(x))
	host.Widen(wide, x)
	return wide
}

// newKernel8 declares a kernel of fp8.cu.
func newKernel8(name string, fn func(spmd.Args) error, scratch ...int) *spmd.Kernel {
	return spmd.NewKernel(name, fp8Source, fn, spmd.KernelOptions{Tolerance: 1e-5, Scratch: scratch})
}

// loop8 returns a grid for kernels that loop over n elements, 8 at a time.
func loop8(n int) spmd.Grid { return Blocks(min(tuned*8, (n+2047)/2048), 1, 1) }

// Cast enqueues the copy of the first n elements of x.
func (e *Launcher[A]) Cast(x spmd.Buffer[A], n int, c Cast) {
	if e.Err != nil || c.None() {
		return
	}
	half, parts := any(x).(spmd.Buffer[spmd.BF16]), castParts(n)
	if c.Wide.Len() > 0 {
		e.Err = launchCastPart(e.S, parts, c.Wide, c.Up, c.Peak, half, n)
	} else {
		e.Err = launchCastPart(e.S, parts, c.Codes, c.Up, c.Peak, half, n)
	}
}

var geluKernel8 = newKernel8("gelu_8", func(a spmd.Args) error {
	n := a.I64(5)
	x, y := widened(spmd.ArgSlice[spmd.BF16](a, 4)[:n]), spmd.ArgSlice[spmd.BF16](a, 0)[:n]
	for i, v := range x {
		x[i] = v * logistic(v)
	}
	RoundAll(y, x)
	if codes := spmd.ArgSlice[spmd.F8E4M3](a, 1); len(codes) > 0 {
		raise8(a, 3, codes8(codes, widened(y), spmd.ArgSlice[float32](a, 2)[0], 0))
	}
	return nil
})

// logistic is (1 + tanh(√(2/π)·(x + 0.044715·x³)))/2.
func logistic(x float32) float32 {
	v := float64(x)
	return float32(1 / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))))
}

// GELU8 enqueues y = gelu(x) for the first n elements, by GPT-2's tanh formula, and the copy of y.
// The zero Cast makes no copy, and y has the same bits.
func (e *Launcher[A]) GELU8(y, x spmd.Buffer[A], n int, c Cast) {
	if e.Err == nil {
		e.Err = geluKernel8.Launch(e.S, loop8(n), y.Arg(), c.Codes.Arg(), c.Up.Arg(), c.Peak.Arg(), x.Arg(),
			spmd.I64(n))
	}
}

// columns8 computes cast_columns_8, and gelu_slope_8 where there is what the GELU had. The first
// row of partial gets all sums, the others none.
func columns8(a spmd.Args) error {
	n, c := a.I32(6), a.I32(7)
	dst, partial := spmd.ArgSlice[spmd.BF16](a, 0)[:n*c], spmd.ArgSlice[float32](a, 4)
	if pre := spmd.ArgSlice[spmd.BF16](a, 5); len(pre) > 0 {
		x := widened(dst)
		for i, z := range widened(pre[:n*c]) {
			s := logistic(z)
			x[i] *= s + z*s*(1-s)*float32(2*math.Sqrt(2/math.Pi))*(1+3*0.044715*z*z)
		}
		RoundAll(dst, x)
	}
	x := widened(dst)
	raise8(a, 3, codes8(spmd.ArgSlice[spmd.F8E4M3](a, 1), x, spmd.ArgSlice[float32](a, 2)[0], 0))
	clear(partial)
	for i, v := range x {
		partial[i%c] += v
	}
	return nil
}

var (
	castColumnsKernel = newKernel8("cast_columns_8", columns8, 4)
	geluSlopeKernel   = newKernel8("gelu_slope_8", columns8, 4)
)

// CastColumns enqueues the copy of x(n,c), and sums (+)= the sums of its columns. c is the length
// of sums. If pre is not empty x is multiplied by gelu'(pre) first.
func (e *Launcher[A]) CastColumns(x, pre spmd.Buffer[A], to Cast, sums spmd.Buffer[float32]) {
	if e.Err != nil || to.None() {
		return
	}
	k, c := castColumnsKernel, sums.Len()
	if pre.Len() > 0 {
		k = geluSlopeKernel
	}
	const most = 512 // threads of a block, each with 8 columns
	blocks := (c + 8*most - 1) / (8 * most)
	threads := ((c+8*blocks-1)/(8*blocks) + 31) / 32 * 32
	parts := min(e.N, ColumnParts)
	partial := e.Columns.Slice(0, parts*c)
	g := spmd.Grid{Blocks: [3]int{parts, blocks, 1}, Threads: [3]int{threads, 1, 1}}
	e.Err = k.Launch(e.S, g, x.Arg(), to.Codes.Arg(), to.Up.Arg(), to.Peak.Arg(), partial.Arg(), pre.Arg(),
		spmd.I32(e.N), spmd.I32(c))
	if e.Err == nil {
		e.Err = launchSumRows(e.S, (c+31)/32, sums, partial, parts, c, e.Acc)
	}
}
