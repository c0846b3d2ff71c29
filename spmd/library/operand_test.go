package library_test

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/source"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/blas"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/fft"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/vector"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

const module = "lockstep/spmd"

// operands returns how many buffers a value of a type brings into a call; two for a list of them.
func operands(t types.Type) (n int) {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		if pkg := t.Obj().Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), module) {
			switch t.Obj().Name() {
			case "Buffer", "Arg", "Operand":
				return 1
			case "Args": // of a launch
				return 0
			}
			return operands(t.Underlying())
		}
	case *types.Slice:
		if _, ok := types.Unalias(t.Elem()).(*types.TypeParam); ok {
			return 1
		}
		return 2 * operands(t.Elem())
	case *types.Struct:
		for f := range t.Fields() {
			n += operands(f.Type())
		}
	}
	return n
}

// called returns the comments of the exported functions and methods of the packages on spmd that
// bring two buffers or more together.
func called(t *testing.T) map[string]string {
	all, packages := map[string]string{}, map[string]*source.Source{}
	for name, f := range testkit.Calls(t) {
		n := 0
		for p := range f.Params().Variables() {
			n += operands(p.Type())
		}
		if n > 0 && f.Recv() != nil {
			n += operands(deref(f.Recv().Type()))
		}
		if n < 2 {
			continue
		}
		pkg, decl, _ := strings.Cut(name, ".")
		if packages[pkg] == nil {
			src, err := source.Parse(filepath.Join("..", strings.TrimPrefix(pkg, "spmd")), source.Output)
			spmdtest.Must(t, err)
			packages[pkg] = src
		}
		all[name] = packages[pkg].Decls[decl].Node.(*ast.FuncDecl).Doc.Text()
	}
	return all
}

func deref(t types.Type) types.Type {
	if p, ok := t.(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

// rank is what a call has beside its operands.
type rank struct {
	t *testing.T
	w *spmd.World
	c spmd.Comm
	s *spmd.Stream
}

// call is one call, and the bytes of its operands.
type call struct {
	name  string
	bytes []int
	run   func(r *rank, b memory) error
}

// memory are the bytes of the operands.
type memory []spmd.Buffer[uint8]

type vec = spmd.Buffer[float64]

func f64(b spmd.Buffer[uint8]) vec                  { return spmd.View[float64](b) }
func f32(b spmd.Buffer[uint8]) spmd.Buffer[float32] { return spmd.View[float32](b) }
func i64(b spmd.Buffer[uint8]) spmd.Buffer[int64]   { return spmd.View[int64](b) }

// square is a matrix of four rows.
func square(b spmd.Buffer[uint8]) blas.Matrix[float64] { return blas.MatrixOf(f64(b), 4, 4) }

// gemm multiplies two matrices; the operands behind them are those of o, in the order that set has.
func gemm(set func(o *blas.Options, x []spmd.Arg), bytes ...int) call {
	return call{"blas.Gemm", append([]int{128, 128, 128}, bytes...), func(r *rank, b memory) error {
		var o blas.Options
		var x []spmd.Arg
		for _, v := range b[3:] {
			x = append(x, f64(v).Arg())
		}
		set(&o, x)
		return blas.Gemm(r.s, square(b[0]), square(b[1]), square(b[2]), o)
	}}
}

// two are calls of a dst and a src in float64 that block.
func two(name string, dst, src int, run func(c spmd.Comm, dst, src vec) error) call {
	return call{name, []int{dst, src}, func(r *rank, b memory) error { return run(r.c, f64(b[0]), f64(b[1])) }}
}

// on2 are such calls on a stream.
func on2(name string, dst, src int, run func(s *spmd.Stream, dst, src vec) error) call {
	return call{name, []int{dst, src}, func(r *rank, b memory) error { return run(r.s, f64(b[0]), f64(b[1])) }}
}

// over2 are such calls over the ranks.
func over2(name string, run func(c spmd.Comm, s *spmd.Stream, dst, x vec) error) call {
	return call{name, []int{8, 96}, func(r *rank, b memory) error {
		return run(r.c.On(r.s), r.s, f64(b[0]), f64(b[1]))
	}}
}

// slices2 are such calls of memory of the host.
func slices2(name string, run func(c spmd.Comm, dst, src []float64) error) call {
	return two(name, 64, 64, func(c spmd.Comm, dst, src vec) error { return run(c, dst.Host(), src.Host()) })
}

type attend32 = attention.Attention[float32]

func attend(name string, bytes []int, run func(a *attend32, r *rank, b memory) error) call {
	return call{name, bytes, func(r *rank, b memory) error {
		shape := attention.Shape{Batch: 1, Tokens: 4, Heads: 1, Size: 4}
		a, err := attention.New[float32](r.w, shape, attention.Options{})
		spmdtest.Must(r.t, err)
		defer a.Close()
		if err = run(a, r, b); err == nil {
			err = r.s.Synchronize()
		}
		return err
	}}
}

func plan(name string, run func(p *fft.Plan[complex128], s *spmd.Stream, dst, src spmd.Buffer[complex128]) error) call {
	return call{name, []int{128, 128}, func(r *rank, b memory) error {
		p, err := fft.New[complex128](r.w, []int{2, 4}, 1)
		spmdtest.Must(r.t, err)
		err = run(p, r.s, spmd.View[complex128](b[0]), spmd.View[complex128](b[1]))
		spmdtest.Must(r.t, r.s.Synchronize())
		spmdtest.Must(r.t, p.Close())
		return err
	}}
}

type halfPlan = fft.Real[float64, complex128]

func halves(name string, bytes []int, run func(p *halfPlan, r *rank, b memory) error) call {
	return call{name, bytes, func(r *rank, b memory) error {
		p, err := fft.NewReal[float64, complex128](r.w, []int{16}, 1)
		spmdtest.Must(r.t, err)
		err = run(p, r, b)
		spmdtest.Must(r.t, r.s.Synchronize())
		spmdtest.Must(r.t, p.Close())
		return err
	}}
}

// on3 are the calls in which all ranks' operands may lie alike; they are made by three ranks, too.
var on3 = []call{
	two("spmd.AllReduce", 96, 96, func(c spmd.Comm, d, s vec) error { return spmd.AllReduce(c, d, s, spmd.Sum) }),
	two("spmd.AllToAll", 96, 96, spmd.AllToAll[float64]),
	two("spmd.Scan", 96, 96, func(c spmd.Comm, d, s vec) error { return spmd.Scan(c, d, s, spmd.Max) }),
	two("spmd.ExScan", 96, 96, func(c spmd.Comm, d, s vec) error { return spmd.ExScan(c, d, s, spmd.Sum) }),
	two("spmd.SendRecv", 64, 64, func(c spmd.Comm, d, s vec) error {
		return spmd.SendRecv(c, d, (c.Rank()+1)%c.Size(), s, (c.Rank()+c.Size()-1)%c.Size())
	}),
	two("parallel.SyncStart", 96, 64, func(c spmd.Comm, d, s vec) error { return parallel.SyncStart(c, d, s) }),
	over2("vector.SumOver", vector.SumOver[float64]),
	over2("vector.MinOver", vector.MinOver[float64]),
	over2("vector.MaxOver", vector.MaxOver[float64]),
	over2("vector.Norm2Over", vector.Norm2Over[float64]),
	{"vector.DotOver", []int{8, 96, 96}, func(r *rank, b memory) error {
		return vector.DotOver(r.c.On(r.s), r.s, f64(b[0]), f64(b[1]), f64(b[2]))
	}},
	{"vector.ArgMinOver", []int{8, 8, 96}, func(r *rank, b memory) error {
		return vector.ArgMinOver(r.c.On(r.s), r.s, f64(b[0]), i64(b[1]), f64(b[2]), 12*r.w.Rank())
	}},
	{"vector.ArgMaxOver", []int{8, 8, 96}, func(r *rank, b memory) error {
		return vector.ArgMaxOver(r.c.On(r.s), r.s, f64(b[0]), i64(b[1]), f64(b[2]), 12*r.w.Rank())
	}},
	{"vector.ScanOver", []int{96, 96, 8}, func(r *rank, b memory) error {
		return vector.ScanOver(r.c.On(r.s), r.s, f64(b[0]), f64(b[1]), f64(b[2]))
	}},
	{"vector.ExScanOver", []int{96, 96, 8}, func(r *rank, b memory) error {
		return vector.ExScanOver(r.c.On(r.s), r.s, f64(b[0]), f64(b[1]), f64(b[2]))
	}},
}

// on1 are the others.
var on1 = []call{
	two("spmd.Reduce", 64, 64, func(c spmd.Comm, d, s vec) error { return spmd.Reduce(c, d, s, spmd.Sum, 0) }),
	two("spmd.AllGather", 64, 64, spmd.AllGather[float64]),
	two("spmd.ReduceScatter", 64, 64, func(c spmd.Comm, d, s vec) error {
		return spmd.ReduceScatter(c, d, s, spmd.Sum)
	}),
	two("spmd.Gather", 64, 64, func(c spmd.Comm, d, s vec) error { return spmd.Gather(c, d, s, 0) }),
	two("spmd.Scatter", 64, 64, func(c spmd.Comm, d, s vec) error { return spmd.Scatter(c, d, s, 0) }),
	two("spmd.AllGatherV", 64, 64, func(c spmd.Comm, d, s vec) error { return spmd.AllGatherV(c, d, s, []int{8}) }),
	two("spmd.ReduceScatterV", 64, 64, func(c spmd.Comm, d, s vec) error {
		return spmd.ReduceScatterV(c, d, s, []int{8}, spmd.Sum)
	}),
	two("spmd.GatherV", 64, 64, func(c spmd.Comm, d, s vec) error { return spmd.GatherV(c, d, s, []int{8}, 0) }),
	two("spmd.ScatterV", 64, 64, func(c spmd.Comm, d, s vec) error { return spmd.ScatterV(c, d, s, []int{8}, 0) }),
	two("spmd.AllToAllV", 64, 64, func(c spmd.Comm, d, s vec) error {
		return spmd.AllToAllV(c, d, s, []int{8}, []int{8})
	}),
	slices2("hostdata.AllGatherSlice", hostdata.AllGatherSlice[float64]),
	slices2("hostdata.AllReduceSlice", func(c spmd.Comm, d, s []float64) error {
		return hostdata.AllReduceSlice(c, d, s, spmd.Sum)
	}),
	slices2("hostdata.GatherSlice", func(c spmd.Comm, d, s []float64) error {
		return hostdata.GatherSlice(c, d, s, 0)
	}),
	slices2("hostdata.ReduceSlice", func(c spmd.Comm, d, s []float64) error {
		return hostdata.ReduceSlice(c, d, s, spmd.Sum, 0)
	}),
	slices2("hostdata.ScatterSlice", func(c spmd.Comm, d, s []float64) error {
		return hostdata.ScatterSlice(c, d, s, 0)
	}),
	slices2("hostdata.AllReduceIf", func(c spmd.Comm, d, s []float64) error {
		_, err := hostdata.AllReduceIf(c, true, d, s, spmd.Sum)
		return err
	}),
	two("spmd.Buffer.CopyFrom", 64, 64, func(_ spmd.Comm, d, s vec) error { return d.CopyFrom(s.Host()) }),
	two("spmd.Buffer.CopyTo", 64, 64, func(_ spmd.Comm, d, s vec) error { return s.CopyTo(d.Host()) }),

	on2("spmd.Copy", 64, 64, spmd.Copy[float64]),
	{"blas.Copy", []int{128, 128}, func(r *rank, b memory) error { return blas.Copy(r.s, square(b[0]), square(b[1])) }},
	{"blas.Transpose", []int{128, 128}, func(r *rank, b memory) error {
		return blas.Transpose(r.s, square(b[0]), square(b[1]))
	}},
	{"blas.Copy", []int{208, 208}, func(r *rank, b memory) error { // beside each other in the rows of one matrix
		rows := func(b spmd.Buffer[uint8]) blas.Matrix[float64] {
			return blas.Matrix[float64]{Buffer: f64(b), Rows: 4, Cols: 2, Stride: 8}
		}
		return blas.Copy(r.s, rows(b[0]), rows(b[1]))
	}},
	{"blas.Gemv", []int{32, 128, 32}, func(r *rank, b memory) error {
		return blas.Gemv(r.s, f64(b[0]), square(b[1]), f64(b[2]), blas.Options{Accumulate: true})
	}},
	gemm(func(o *blas.Options, x []spmd.Arg) { o.TransA = true }),
	gemm(func(o *blas.Options, x []spmd.Arg) { o.Bias, o.Accumulate = x[0], true }, 32),
	gemm(func(o *blas.Options, x []spmd.Arg) { o.Bias, o.Residual = x[0], x[1] }, 32, 128),
	gemm(func(o *blas.Options, x []spmd.Arg) { o.Bias, o.GELU = x[0], x[1] }, 32, 128),
	gemm(func(o *blas.Options, x []spmd.Arg) { o.DGELU, o.BiasGrad = x[0], x[1] }, 128, 32),
	gemm(func(o *blas.Options, x []spmd.Arg) { o.RowSums = x[0] }, 32),
	{"blas.Gemm", []int{512, 256, 256, 4, 4}, func(r *rank, b memory) error {
		a := blas.MatrixOf(spmd.View[spmd.F8E4M3](b[1]), 16, 16)
		return blas.Gemm(r.s, blas.MatrixOf(spmd.View[spmd.BF16](b[0]), 16, 16), a,
			blas.MatrixOf(spmd.View[spmd.F8E4M3](b[2]), 16, 16),
			blas.Options{TransB: true, ScaleA: f32(b[3]).Arg(), ScaleB: f32(b[4]).Arg()})
	}},
	{"blas.Sparse.Multiply", []int{32, 32}, func(r *rank, b memory) error {
		m, err := blas.NewSparse(r.w, r.c, blas.CSR[float64]{Start: []int{0, 1, 2, 4, 4}, Column: []int{3, 0, 1, 2},
			Value: []float64{1, 2, 3, 4}}, 4)
		spmdtest.Must(r.t, err)
		err = m.Multiply(r.s, f64(b[0]), f64(b[1]))
		spmdtest.Must(r.t, r.s.Synchronize())
		spmdtest.Must(r.t, m.Free())
		return err
	}},
	plan("fft.Plan.Forward", func(p *fft.Plan[complex128], s *spmd.Stream, dst, src spmd.Buffer[complex128]) error {
		return p.Forward(s, dst, src)
	}),
	plan("fft.Plan.Inverse", func(p *fft.Plan[complex128], s *spmd.Stream, dst, src spmd.Buffer[complex128]) error {
		return p.Inverse(s, dst, src)
	}),
	halves("fft.Real.Forward", []int{144, 128}, func(p *halfPlan, r *rank, b memory) error {
		return p.Forward(r.s, spmd.View[complex128](b[0]), f64(b[1]))
	}),
	halves("fft.Real.Inverse", []int{128, 144}, func(p *halfPlan, r *rank, b memory) error {
		return p.Inverse(r.s, f64(b[0]), spmd.View[complex128](b[1]))
	}),
	on2("vector.Sum", 8, 64, vector.Sum[float64]),
	on2("vector.Min", 8, 64, vector.Min[float64]),
	on2("vector.Max", 8, 64, vector.Max[float64]),
	on2("vector.Norm2", 8, 64, vector.Norm2[float64]),
	{"vector.Dot", []int{8, 64, 64}, func(r *rank, b memory) error {
		return vector.Dot(r.s, f64(b[0]), f64(b[1]), f64(b[2]))
	}},
	{"vector.Axpy", []int{64, 64}, func(r *rank, b memory) error { return vector.Axpy(r.s, f64(b[0]), 3, f64(b[1])) }},
	{"vector.ArgMin", []int{8, 8, 64}, func(r *rank, b memory) error {
		return vector.ArgMin(r.s, f64(b[0]), i64(b[1]), f64(b[2]))
	}},
	{"vector.ArgMax", []int{8, 8, 64}, func(r *rank, b memory) error {
		return vector.ArgMax(r.s, f64(b[0]), i64(b[1]), f64(b[2]))
	}},
	on2("vector.Scan", 64, 64, vector.Scan[float64]),
	on2("vector.ExScan", 64, 64, vector.ExScan[float64]),
	{"vector.Histogram", []int{64, 64}, func(r *rank, b memory) error {
		return vector.Histogram(r.s, i64(b[0]), f64(b[1]), 0, 4)
	}},
	{"vector.Select", []int{256, 8, 256, 32}, func(r *rank, b memory) error {
		return vector.Select(r.s, f64(b[0]), i64(b[1]), f64(b[2]), b[3])
	}},
	on2("vector.Sort", 64, 64, vector.Sort[float64]),
	{"vector.SortPairs", []int{64, 64, 64, 64}, func(r *rank, b memory) error {
		return vector.SortPairs(r.s, f64(b[0]), i64(b[1]), f64(b[2]), i64(b[3]))
	}},
	attend("attention.Attention.Forward", []int{64, 16, 192}, func(a *attend32, r *rank, b memory) error {
		return a.Forward(r.s, f32(b[0]), f32(b[1]), f32(b[2]))
	}),
	attend("attention.Attention.Backward", []int{192, 64, 64, 16, 192},
		func(a *attend32, r *rank, b memory) error {
			return a.Backward(r.s, f32(b[0]), f32(b[1]), f32(b[2]), f32(b[3]), f32(b[4]))
		}),
	{"parallel.ClipNorm", []int{64, 4}, func(r *rank, b memory) error {
		return parallel.ClipNorm(r.s, f32(b[0]), 0.5, f32(b[1]))
	}},
	{"parallel.NewNorm parallel.Norm.Clip", []int{64, 64, 4}, func(r *rank, b memory) error {
		n, err := parallel.NewNorm(r.c, f32(b[0]), f32(b[1]))
		if err == nil {
			err = n.Clip(0.5, f32(b[2]), r.s)
			spmdtest.Must(r.t, r.s.Synchronize())
			spmdtest.Must(r.t, n.Close())
		}
		return err
	}},
	{"parallel.NewReducer", []int{64, 64}, func(r *rank, b memory) error {
		n, err := parallel.NewReducer(r.c, []spmd.Buffer[float32]{f32(b[0]), f32(b[1])}, parallel.ReducerConfig{})
		if err == nil {
			spmdtest.Must(r.t, n.Close())
		}
		return err
	}},
	{"checkpoint.Manager.Save checkpoint.Manager.Load", []int{64, 64}, func(r *rank, b memory) error {
		m, err := checkpoint.Open(r.w, r.t.TempDir(), checkpoint.Config{})
		spmdtest.Must(r.t, err)
		defer m.Close()
		x := spmdtest.Alloc[uint8](r.t, r.w, 64)
		spmdtest.Must(r.t, x.SetAll(1))
		spmdtest.Must(r.t, m.Save(1, nil, checkpoint.Sharded("a", x, 0, 64), checkpoint.Sharded("b", x, 0, 64)))
		_, err = m.Load(nil, checkpoint.Sharded("a", b[0], 0, 64), checkpoint.Sharded("b", b[1], 0, 64))
		return err
	}},
}

// others are the calls whose operands are not theirs, and why.
var others = map[string]string{
	"spmd.Kernel.Launch":               "a kernel of the program says what it does",
	"gokernel.Kernel.Launch":           "the same; it has a form for arguments that overlap",
	"gokernel.Reduction.Launch":        "the same",
	"library.Call.Launch":              "the same",
	"library.Function.Call":            "the same",
	"library.Apart":                    "the rule itself",
	"spmd.Structs.CopyFrom":            "it is Buffer's",
	"spmd.Structs.CopyTo":              "it is Buffer's",
	"attention.Attention.BackwardBias": "GPUs alone have it; its operands are Backward's",
	"parallel.NewGatherer":             "buckets take turns in their memory: TestGatherer",
	"parallel.NewScatterer":            "gradients take turns in their memory: TestScatterer",
	"parallel.Scatterer.ClipNorm":      "it is Norm.Clip",
}

// TestOperands makes every call on buffers with each two of its operands apart, overlapping and the
// same. It refuses them in one line, and then has changed nothing. Or each result is what it is
// with copies of the operands, and the comment says what may be.
func TestOperands(t *testing.T) {
	comments, known := map[string]string(nil), false
	if _, err := exec.LookPath("go"); err == nil { // a machine with GPUs may lack it
		comments, known = called(t), true
	}
	taken := map[string]bool{}
	walk := func(ranks int, device string) {
		calls := on3
		if ranks == 1 {
			calls = slices.Concat(on1, on3)
		}
		config := spmdtest.Config()
		if device != "" {
			config.Device = device
		}
		spmdtest.Must(t, spmd.Local(t.Context(), config, ranks, func(_ context.Context, w *spmd.World) error {
			for _, c := range calls {
				for _, name := range strings.Fields(c.name) {
					if _, ok := comments[name]; !ok && known {
						t.Errorf("%s is no call on two buffers", name)
					}
				}
				if c.try(t, w) && w.Rank() == 0 {
					taken[c.name] = true
				}
			}
			return nil
		}))
	}
	if spmdtest.Device() != "host" {
		for _, ranks := range spmdtest.Ranks(t, 1, 2, 3, 4) {
			walk(ranks, "")
		}
	} else {
		for _, device := range []string{"", "emulate"} {
			walk(1, device)
			walk(3, device)
		}
	}
	if !known {
		return
	}
	says := regexp.MustCompile(`may\s+(be|overlap)|[Ii]n\s+place|no\s+elements\s+in\s+common`)
	for name := range taken {
		if first := strings.Fields(name)[0]; !says.MatchString(comments[first]) {
			t.Errorf("%s takes operands that overlap, and does not say so", first)
		}
	}
	for _, c := range slices.Concat(on1, on3) {
		for _, name := range strings.Fields(c.name) {
			delete(comments, name)
		}
	}
	for name := range others {
		if _, ok := comments[name]; !ok {
			t.Errorf("there is no %s", name)
		}
		delete(comments, name)
	}
	for _, name := range slices.Sorted(maps.Keys(comments)) {
		t.Errorf("%s is not tried: no row of on1 or on3 has it", name)
	}
}

// try makes the call with its operands at many places, and says whether it takes some that overlap
// of which one is written.
func (c *call) try(t *testing.T, w *spmd.World) (taken bool) {
	const room = 8192
	r := &rank{t, w, w.Comm(), spmdtest.Stream(t, w, "operands")}
	whole, err := spmd.AllocPinned[uint8](w, room) // calls of the host take it, too
	spmdtest.Must(t, err)
	fill := make([]byte, room)
	for i := range fill { // finite numbers of every type, and no 0
		fill[i] = byte(1 + (i*i*7+i*13+w.Rank()*31)%120)
		if i%4 == 3 {
			fill[i] = 0x3f
		}
	}
	at := make([]int, len(c.bytes))
	apart := func() {
		for k := range at {
			at[k] = 1024 * (k + 1)
		}
	}
	// run makes the call on operands with these values, and returns them as they are then.
	run := func(values [][]byte) (after [][]byte, err error) {
		spmdtest.Must(t, whole.CopyFrom(fill))
		b := make(memory, len(at))
		for k := range b {
			b[k] = whole.Slice(at[k], at[k]+c.bytes[k])
			if values != nil {
				spmdtest.Must(t, b[k].CopyFrom(values[k]))
			}
		}
		err = c.run(r, b)
		spmdtest.Must(t, r.s.Synchronize())
		all := make([]byte, room)
		spmdtest.Must(t, whole.CopyTo(all))
		for k := range b {
			after = append(after, all[at[k]:at[k]+c.bytes[k]])
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || !bytes.Equal(all, fill)) {
			t.Errorf("%s at %v: refused with other contents, or in lines: %v", c.name, at, err)
		}
		return after, err
	}
	apart()
	if _, err := run(nil); err != nil {
		t.Errorf("%s, apart: %v", c.name, err)
		return false
	}
	for j := range at {
		for i := range j {
			for _, by := range []int{0, 16, 32, -16, c.bytes[i] - 16, 16 - c.bytes[j]} {
				apart()
				if at[j] = at[i] + by; by <= -c.bytes[j] || by >= c.bytes[i] {
					continue
				}
				places := slices.Clone(at)
				before := make([][]byte, len(at))
				for k := range at {
					before[k] = fill[at[k] : at[k]+c.bytes[k]]
				}
				got, err := run(nil)
				if err != nil {
					if !strings.Contains(err.Error(), "overlap") {
						t.Errorf("%s at %v: %v", c.name, at, err)
					}
					continue
				}
				apart()
				want, err := run(before)
				spmdtest.Must(t, err)
				for k := range want {
					written := !bytes.Equal(want[k], before[k])
					if written && !bytes.Equal(got[k], want[k]) {
						t.Errorf("%s on %s, %d ranks, at %v: operand %d is %v, want %v", c.name, w.Device(), w.Size(),
							places, k, got[k], want[k])
					}
					taken = taken || written && (k == i || k == j)
				}
			}
		}
	}
	spmdtest.Must(t, r.s.Close())
	return taken
}

// Sizes whose product wraps are refused in one line: by an error, or a panic where there is none.
func TestSizes(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		const half = 1 << 32
		x := spmdtest.Alloc[float64](t, w, 16)
		wide := blas.Matrix[float64]{Buffer: x, Rows: 5, Cols: 1, Stride: 1 << 62}
		long := blas.CSR[float64]{Start: []int{0, 1}, Column: []int{1 << 30}, Value: []float64{1}}
		for i, call := range []func() error{
			func() error { spmd.AllocSize[float64](-5); return nil },
			func() error { spmd.AllocSize[float64](1 << 61); return nil },
			func() error { _, err := spmd.Alloc[float64](w, 1<<61); return err },
			func() error { _, err := spmd.AllocSymmetric[float64](w, 1<<61); return err },
			func() error { _, err := spmd.AllocStructs[[2]int32](w, math.MinInt); return err },
			func() error { _, err := spmd.AllocStructs[[2]int32](w, 1<<61); return err },
			func() error { _, err := fft.New[complex64](w, []int{half, half}, 1); return err },
			func() error {
				return blas.Gemv(spmdtest.Stream(t, w, "s"), x.Slice(0, 5), wide, x.Slice(5, 6), blas.Options{})
			},
			func() error { wide.Part(4, 1, 0, 1); return nil },
			func() error { _, err := blas.NewSparse(w, w.Comm(), long, math.MaxInt32); return err },
			func() error {
				_, err := attention.New[float32](w, attention.Shape{Batch: half, Tokens: half, Heads: 1, Size: 1},
					attention.Options{})
				return err
			},
			func() error {
				attention.Workspace[spmd.BF16](attention.Shape{Batch: half, Tokens: half, Heads: 1, Size: 1},
					attention.Options{})
				return nil
			},
			func() error { parallel.NewPartition(0, half, half, 8); return nil },
			func() error { _, err := own.Scratch[float64](spmdtest.Stream(t, w, "t"), 1<<61-1); return err },
		} {
			said := func() (said string) {
				defer func() {
					if p := recover(); p != nil {
						said = fmt.Sprint(p)
					}
				}()
				return fmt.Sprint(call())
			}()
			if said == "<nil>" || strings.Contains(said, "\n") || strings.Contains(said, "runtime error") {
				t.Errorf("call %d is taken, or not refused in one line: %s", i, said)
			}
		}
	})
}
