package main

import (
	_ "embed"
	"fmt"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

//go:embed matvec.cu
var source string

// These say how host.Gemv takes W.
const plain, transposed = false, true

// number is the type of the elements of W and x. Products are added up in float32, and
// y is float32.
type number interface{ float32 | spmd.BF16 }

// tuning is the sizes of the kernels. matvec.cu has them under the names that defines gives.
// Threads are of a block. Blocks are how many a multiprocessor must hold, which bounds the
// registers of a thread.
type tuning struct {
	rowThreads, rowBlocks int
	rowTile               int // rows of W that a block multiplies with one segment of x
	rowUnroll             int // vectors of 16 bytes of each row that a thread has in flight
	rowSegment            int // vectors of a row in a block: their part of x fits the L1 cache

	colThreads, colBlocks int
	colWide               int // threads side by side in a column, 16 bytes each; a power of two, at least 32
	colUnroll             int // columns that a thread has in flight
	colStage              int // elements of x in shared memory
	colUnits              int // blocks that are worth having, to spread them evenly

	// how to load W: 0 evict first, 1 not into L1, 2 fetching 256 bytes as well, 3 also
	// first out of L2
	loadHint int
}

var tuned = tuning{
	rowThreads: 256, rowBlocks: 3, rowTile: 4, rowUnroll: 2, rowSegment: 4096,
	colThreads: 512, colBlocks: 2, colWide: 64, colUnroll: 8, colStage: 1024, colUnits: 4096,
	loadHint: 3,
}

func (t tuning) defines() string {
	return fmt.Sprintf("#define ROW_THREADS %d\n#define ROW_BLOCKS %d\n#define ROW_ROWS %d\n#define ROW_UNROLL %d\n"+
		"#define COL_THREADS %d\n#define COL_BLOCKS %d\n#define COL_WIDE %d\n#define COL_UNROLL %d\n"+
		"#define COL_STAGE %d\n"+
		"#define LOAD_HINT %d\n#line 1\n", t.rowThreads, t.rowBlocks, t.rowTile, t.rowUnroll,
		t.colThreads, t.colBlocks, t.colWide, t.colUnroll, t.colStage, t.loadHint)
}

// kernels are the kernels of one type.
type kernels struct {
	tuning
	rows, columns *spmd.Kernel
}

func newKernels[T number](t tuning, suffix string) *kernels {
	text := t.defines() + source
	sums := spmd.KernelOptions{Tolerance: 1e-5, Scratch: []int{3, 4}} // in other orders; parts of them
	return &kernels{t,
		spmd.NewKernel("matvec_rows_"+suffix, text, rowsOnHost[T], sums),
		spmd.NewKernel("matvec_columns_"+suffix, text, columnsOnHost[T], sums)}
}

var float32Kernels, bfloat16Kernels = newKernels[float32](tuned, "f32"), newKernels[spmd.BF16](tuned, "bf16")

func kernelsOf[T number]() *kernels {
	if _, ok := any(*new(T)).(float32); ok {
		return float32Kernels
	}
	return bfloat16Kernels
}

// matrix is W: its rows, or its columns, one after the other, stride elements apart. Each begins at
// a multiple of 16 bytes.
type matrix[T number] struct {
	buf        spmd.Buffer[T]
	rows, cols int
	stride     int
	byColumns  bool
}

// newMatrix returns a matrix with undefined contents.
func newMatrix[T number](w *spmd.World, rows, cols int, byColumns bool) (m matrix[T], err error) {
	m = matrix[T]{rows: rows, cols: cols, byColumns: byColumns}
	m.setStride()
	lines, _ := m.lines()
	m.buf, err = spmd.Alloc[T](w, lines*m.stride)
	return m, err
}

// lines returns how many rows, or columns, lie one after the other, and how long they are.
func (m matrix[T]) lines() (n, length int) {
	if m.byColumns {
		return m.cols, m.rows
	}
	return m.rows, m.cols
}

// vecOf returns how many elements have 16 bytes.
func vecOf[T number]() int {
	if kernelsOf[T]() == float32Kernels {
		return 4
	}
	return 8
}

// setStride rounds the length of a line up to whole lines of a cache if that costs little, else to
// whole vectors.
func (m *matrix[T]) setStride() {
	_, length := m.lines()
	unit := vecOf[T]()
	if length >= 128*unit {
		unit *= 8
	}
	m.stride = (length + unit - 1) / unit * unit
}

// slice returns rows [lo, hi).
func (m matrix[T]) slice(lo, hi int) matrix[T] {
	if m.byColumns {
		m.buf = m.buf.Slice(lo, m.buf.Len())
	} else {
		m.buf = m.buf.Slice(lo*m.stride, hi*m.stride)
	}
	m.rows = hi - lo
	return m
}

// fill enqueues element (i, j) = the number at place i*total + j of the sequence that seed names,
// rounded to T. The matrix has columns offset, offset+1, ... of a matrix of total columns. Both
// layouts hold the same numbers.
func (m matrix[T]) fill(s *spmd.Stream, seed uint64, offset, total int) error {
	f := filling{stride: m.stride, seed: seed, start: offset, lineStep: total, elementStep: 1}
	f.lines, f.length = m.lines()
	if m.byColumns {
		f.lineStep, f.elementStep = 1, total
	}
	return fill(s, m.buf, f)
}

// division divides the work into blocks: tiles of rows times segments. Segments are of vectors of a
// row, or of columns if W is stored by columns.
type division struct {
	threads     int
	tile, tiles int // rows of a tile
	segment     int
	segments    int
	pitch       int // elements for the sums of one segment
}

// divide divides a product of m.
func divide[T number](k *kernels, m matrix[T]) division {
	over := func(n, each int) int { return (n + each - 1) / each }
	d := division{threads: k.rowThreads, tile: k.rowTile, pitch: over(m.rows, 4) * 4}
	n := m.cols / vecOf[T]()
	if m.byColumns {
		d.threads, d.tile, n = k.colThreads, k.colWide*vecOf[T](), m.cols
	}
	if d.tiles = over(m.rows, d.tile); m.byColumns {
		step := k.colUnroll * k.colThreads / k.colWide // what all threads take at once
		d.segment = over(over(n, max(1, k.colUnits/d.tiles)), step) * step
	} else {
		d.segment = max(k.rowSegment, over(n, mostSegments))
	}
	d.segments = max(1, over(n, d.segment))
	return d
}

// mostSegments is below the limit of the second dimension of a grid.
const mostSegments = 1 << 15

// own is the memory that products of one matrix by a kernel of matvec.cu need beside it. They must
// not run at the same time.
type own[T number] struct {
	*kernels
	division
	part    spmd.Buffer[float32]
	arrived spmd.Buffer[uint32]
}

func newOwn[T number](w *spmd.World, k *kernels, m matrix[T]) (*own[T], error) {
	o := &own[T]{kernels: k, division: divide(k, m)}
	var err error
	if o.part, err = spmd.Alloc[float32](w, o.segments*o.pitch); err != nil {
		return nil, err
	}
	if o.arrived, err = spmd.Alloc[uint32](w, o.tiles); err != nil {
		return nil, err
	}
	return o, o.arrived.SetAll(0)
}

// multiply enqueues y = W x for rows [lo, hi) of m. lo is a multiple of the tile.
func (o *own[T]) multiply(s *spmd.Stream, y spmd.Buffer[float32], m matrix[T], x spmd.Buffer[T], lo, hi int) error {
	kernel := o.rows
	if m.byColumns {
		kernel = o.columns
	}
	part, y, first := m.slice(lo, hi), y.Slice(lo, hi), lo/o.tile
	tiles := (part.rows + o.tile - 1) / o.tile
	grid := spmd.Grid{Blocks: [3]int{tiles, o.segments, 1}, Threads: [3]int{o.threads, 1, 1}}
	return kernel.Launch(s, grid, y.Arg(), part.buf.Arg(), x.Arg(), o.part.Slice(lo, o.part.Len()).Arg(),
		o.arrived.Slice(first, first+tiles).Arg(),
		spmd.I64(part.rows), spmd.I64(part.cols), spmd.I64(part.stride), spmd.I64(o.pitch), spmd.I64(o.segment))
}

// hostChunk is how many elements the host widens at once, so that they stay in the cache.
const hostChunk = 4096

func rowsOnHost[T number](a spmd.Args) error {
	y, rows, cols, stride := spmd.ArgSlice[float32](a, 0), a.I64(5), a.I64(6), a.I64(7)
	switch w := any(spmd.ArgSlice[T](a, 1)).(type) {
	case []float32:
		host.Gemv(plain, rows, cols, 1, w, stride, spmd.ArgSlice[float32](a, 2), 0, y)
	case []spmd.BF16:
		x := widened(spmd.ArgSlice[spmd.BF16](a, 2))
		host.Parallel(rows, max(1, hostChunk/cols), func(lo, hi int) {
			var wide [hostChunk]float32
			for i := lo; i < hi; i++ {
				row, sum := w[i*stride:i*stride+cols], 0.0
				for j := 0; j < cols; j += hostChunk {
					part := wide[:min(hostChunk, cols-j)]
					host.Widen(part, row[j:j+len(part)])
					sum += float64(host.Dot(part, x[j:j+len(part)]))
				}
				y[i] = float32(sum)
			}
		})
	}
	return nil
}

func columnsOnHost[T number](a spmd.Args) error {
	y, rows, cols, stride := spmd.ArgSlice[float32](a, 0), a.I64(5), a.I64(6), a.I64(7)
	switch w := any(spmd.ArgSlice[T](a, 1)).(type) {
	case []float32:
		host.Gemv(transposed, cols, rows, 1, w, stride, spmd.ArgSlice[float32](a, 2), 0, y)
	case []spmd.BF16:
		x := widened(spmd.ArgSlice[spmd.BF16](a, 2))
		host.Parallel(rows, 64, func(lo, hi int) {
			var wide [hostChunk]float32
			for ; lo < hi; lo += hostChunk {
				part := wide[:min(hostChunk, hi-lo)]
				sum := y[lo : lo+len(part)]
				clear(sum)
				for j, xj := range x {
					host.Widen(part, w[j*stride+lo:j*stride+lo+len(part)])
					host.Axpy(sum, xj, part)
				}
			}
		})
	}
	return nil
}

func widened(x []spmd.BF16) []float32 {
	wide := make([]float32, len(x))
	host.Widen(wide, x)
	return wide
}

// library enqueues y = W x for rows [lo, hi) of m by blas.Gemv, or by blas.Gemm for bfloat16. On a
// GPU this is cuBLAS.
func library[T number](s *spmd.Stream, y spmd.Buffer[float32], m matrix[T], x spmd.Buffer[T], lo, hi int) error {
	part, y := m.slice(lo, hi), y.Slice(lo, hi)
	a := blas.Matrix[T]{Buffer: part.buf, Rows: part.rows, Cols: part.cols, Stride: part.stride}
	if m.byColumns { // by rows it is the transpose
		a.Rows, a.Cols = a.Cols, a.Rows
	}
	switch a := any(a).(type) {
	case blas.Matrix[float32]:
		return blas.Gemv(s, y, a, any(x).(spmd.Buffer[float32]), blas.Options{TransA: m.byColumns})
	default:
		return blas.Gemm(s, blas.MatrixOf(y, part.rows, 1), a.(blas.Matrix[T]), blas.MatrixOf(x, part.cols, 1),
			blas.Options{TransA: m.byColumns})
	}
}
