package main

import (
	_ "embed"
	"fmt"
	"unsafe"

	"lockstep/host"
	"lockstep/spmd"
)

//go:embed box.h
var boxSource string

//go:embed stencil.cu
var stencilSource string

// number is the type of the cells' values.
type number interface{ float32 | float64 }

// kernels are the kernels of one type.
type kernels struct{ step2, step3, frame *spmd.Kernel }

func newKernels[T number](suffix string) kernels {
	text := boxSource + "#line 1\n" + stencilSource
	return kernels{
		spmd.NewKernel("step2_"+suffix, text, stepOnHost[T]),
		spmd.NewKernel("step3_"+suffix, text, stepOnHost[T]),
		spmd.NewKernel("frame_"+suffix, text, frameOnHost[T])}
}

var float32Kernels, float64Kernels = newKernels[float32]("f32"), newKernels[float64]("f64")

func kernelsOf[T number]() kernels {
	if sizeOf[T]() == 4 {
		return float32Kernels
	}
	return float64Kernels
}

func sizeOf[T number]() int { return int(unsafe.Sizeof(*new(T))) }

// beside is the factor of the neighbours' values in a step, alpha dt / dx^2. It and 1 -
// 2·dims·beside are powers of two, so the products of a step are exact.
const beside = 1.0 / 8

func centre(dims int64) float64 { return 1 - 2*float64(dims)*beside }

func arg[T number](v float64) spmd.Arg {
	if sizeOf[T]() == 4 {
		return spmd.F32(float32(v))
	}
	return spmd.F64(v)
}

func argValue[T number](a spmd.Args, i int) T {
	if sizeOf[T]() == 4 {
		return T(a.F32(i))
	}
	return T(a.F64(i))
}

// launcher launches the kernels of a rank's box.
type launcher[T number] struct {
	box    box
	arg    spmd.Arg // the box
	inside spmd.Grid
	run    int // planes that a block of the inside walks along
}

// threadsOf is the threads of a block of the inside: side by side in a row, and in rows.
var threadsOf = map[int64][3]int{2: {256, 1, 1}, 3: {32, 8, 1}}

// mostBlocks limits the blocks along the second and third axis of a grid. Source: CUDA C++
// Programming Guide, Technical Specifications per Compute Capability.
const mostBlocks = 65_535

func newLauncher[T number](w *spmd.World, b box) *launcher[T] {
	l := &launcher[T]{box: b, arg: spmd.Struct(b)}
	threads := threadsOf[b.Dims]
	over := func(n, each int) int { return (n + each - 1) / each }
	vector := 16 / sizeOf[T]()
	from := int(b.Lo[columns]) / vector * vector
	x := over(max(0, int(b.Hi[columns])-from), vector*threads[0])
	y := over(int(b.Hi[rows]-b.Lo[rows]), threads[1])
	z := int(b.Hi[planes] - b.Lo[planes])
	// Long runs read few planes twice. But there must be so many blocks that the last ones are a
	// small part of the work.
	for l.run = 64; l.run > 8 && x*y*over(z, l.run) < 32*max(1, w.Multiprocessors()); l.run /= 2 {
	}
	l.run = max(l.run, over(z, mostBlocks))
	l.inside = spmd.Grid{Blocks: [3]int{x, y, over(z, l.run)}, Threads: threads}
	return l
}

// step enqueues out = one step from in, on the inside. The kernel gets the planes of the inside
// alone: the planes beside them are on their way to other ranks.
func (l *launcher[T]) step(s *spmd.Stream, out, in spmd.Buffer[T]) error {
	if l.box.inside() == 0 {
		return nil
	}
	k := kernelsOf[T]().step2
	if l.box.Dims == 3 {
		k = kernelsOf[T]().step3
	}
	inside := planesOf(&l.box, out, l.box.Lo[planes], l.box.Hi[planes]-l.box.Lo[planes])
	return k.Launch(s, l.inside, inside.Arg(), in.Arg(), arg[T](centre(l.box.Dims)), arg[T](beside), l.arg,
		spmd.I64(l.run))
}

func stepOnHost[T number](a spmd.Args) error {
	out, in, b := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[T](a, 1), spmd.ArgStruct[box](a, 4)
	if n := b.span(b.Hi[planes] - b.Lo[planes]); len(out) != n || len(in) != b.elements() {
		return fmt.Errorf("stencil: an inside of %d elements and a field of %d, the box has %d and %d",
			len(out), len(in), n, b.elements())
	}
	centre, beside := argValue[T](a, 2), argValue[T](a, 3)
	const grain = 1 << 15 // cells
	host.Parallel(b.inside(), 1+grain/int(b.N[columns]),
		func(lo, hi int) { cStep(out, in, centre, beside, &b, lo, hi) })
	return nil
}

// frame enqueues out = one step from in, on the faces that have neighbours, with the received
// cells, and sent = the faces of axes 1 and 2.
func (l *launcher[T]) frame(s *spmd.Stream, out, in, sent, received spmd.Buffer[T]) error {
	return l.launchFrame(s, out, in, sent, received, 0)
}

// pack enqueues sent = the faces of axes 1 and 2 of f.
func (l *launcher[T]) pack(s *spmd.Stream, f, sent, received spmd.Buffer[T]) error {
	return l.launchFrame(s, f, f, sent, received, 1)
}

func (l *launcher[T]) launchFrame(s *spmd.Stream, out, in, sent, received spmd.Buffer[T], pack int) error {
	cells := int(l.box.First[6])
	if cells == 0 {
		return nil
	}
	return kernelsOf[T]().frame.Launch(s, spmd.Cover1D(cells, 256), out.Arg(), in.Arg(), sent.Arg(), received.Arg(),
		arg[T](centre(l.box.Dims)), arg[T](beside), l.arg, spmd.I32(pack))
}

func frameOnHost[T number](a spmd.Args) error {
	out, in, sent := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[T](a, 1), spmd.ArgSlice[T](a, 2)
	received := spmd.ArgSlice[T](a, 3)
	centre, beside, b, pack := argValue[T](a, 4), argValue[T](a, 5), spmd.ArgStruct[box](a, 6), a.I32(7)
	n, faces := b.elements(), b.packed(sizeOf[T]())
	if len(out) != n || len(in) != n || len(sent) != faces || len(received) != faces {
		return fmt.Errorf("stencil: fields of %d and %d elements and faces of %d and %d, the box has %d and %d",
			len(out), len(in), len(sent), len(received), n, faces)
	}
	host.Parallel(int(b.First[6]), 1<<13,
		func(lo, hi int) { cFrame(out, in, sent, received, centre, beside, &b, pack, lo, hi) })
	return nil
}
