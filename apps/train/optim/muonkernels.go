package optim

import (
	_ "embed"
	"math"

	"lockstep/apps/train/ops"
	"lockstep/host"
	"lockstep/spmd"
)

// These are the kernels of Muon, except its products. A row is a chunk of a matrix, and chunks
// follow each other. This rank has those of a matrix's n numbers that places says, one behind the
// other in x. hyper is the rate and the momentum. Nothing changes if the norm is not finite.

const muonChunk = 4096 // numbers

// placeNumbers is how many numbers of a matrix places has: which numbers [from, to) of it this rank
// has, and where number 0 would be in the arenas of weights, gradients and momentum.
const placeNumbers = 5

// chunkOf returns the matrix of chunk i, and this rank's numbers of the matrix in that chunk.
func chunkOf(i, n int, places []int64) (matrix, lo, hi int) {
	chunks := (n + muonChunk - 1) / muonChunk
	lo = i % chunks * muonChunk
	matrix = i / chunks
	from, to := int(places[placeNumbers*matrix]), int(places[placeNumbers*matrix+1])
	hi = max(from, min(lo+muonChunk, to))
	return matrix, min(max(lo, from), hi), hi
}

// clipped returns the factor that gradients of such a norm are multiplied by.
func clipped(norm, clip float32) float32 {
	if clip > 0 && norm > clip {
		return float32(float64(clip) / float64(norm))
	}
	return 1
}

// muonMomentum updates the momentum of a chunk. It also computes the sum of squares of the
// direction before it becomes orthogonal.
//
//spmd:kernel rows
//spmd:tolerance 1e-5
func muonMomentum(i int, m, squares, g []float32, places []int64, hyper []float32, norm *float32, n int, clip float32) {
	if !finite(float64(*norm)) {
		return
	}
	matrix, lo, hi := chunkOf(i, n, places)
	ofGrads, ofMoments := int(places[placeNumbers*matrix+3]), int(places[placeNumbers*matrix+4])
	old, grad := m[ofMoments+lo:ofMoments+hi], g[ofGrads+lo:ofGrads+hi]
	momentum, by, sum := hyper[1], clipped(*norm, clip), float32(0)
	rest := 1 - momentum
	for j, v := range grad {
		part := rest * (v * by)
		now := momentum*old[j] + part
		old[j] = now
		x := momentum*now + part
		sum += x * x
	}
	squares[i] = sum
}

// muonDirection sets x to the direction before it becomes orthogonal, with Frobenius norm 1, for
// the matrices from first on.
func muonDirection[A ops.Act](i int, x []A, squares, m, g []float32, places []int64, hyper []float32, norm *float32,
	n int, clip float32, first int) {
	if !finite(float64(*norm)) {
		return
	}
	chunks := (n + muonChunk - 1) / muonChunk
	matrix, lo, hi := chunkOf(i+first*chunks, n, places)
	parts, sum := squares[matrix*chunks:(matrix+1)*chunks], float32(0)
	for _, v := range parts {
		sum += v
	}
	inverse := 1 / (float32(math.Sqrt(float64(sum))) + 1e-7)
	ofGrads, ofMoments := int(places[placeNumbers*matrix+3]), int(places[placeNumbers*matrix+4])
	old, grad, to := m[ofMoments+lo:ofMoments+hi], g[ofGrads+lo:ofGrads+hi], x[matrix*n+lo:matrix*n+hi]
	momentum, by := hyper[1], clipped(*norm, clip)
	rest := 1 - momentum
	for j, v := range grad {
		to[j] = spmd.Narrow[A]((momentum*old[j] + rest*(v*by)) * inverse)
	}
}

//go:embed muon.cu
var muonSource string

var muonDirections = ops.Kernel{
	F32: spmd.NewKernel("muon_direction", muonSource, directionOnHost[float32], spmd.KernelOptions{
		Flags: []string{"-DACT=float"}, Tolerance: 1e-5}),
	BF16: spmd.NewKernel("muon_direction", muonSource, directionOnHost[spmd.BF16], spmd.KernelOptions{
		Flags: []string{"-DACT=bf16"}, Tolerance: 1e-5}),
}

func directionOnHost[A ops.Act](a spmd.Args) error {
	x, squares, m := spmd.ArgSlice[A](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2)
	g := spmd.ArgSlice[float32](a, 3)
	places, hyper, norm := spmd.ArgSlice[int64](a, 4), spmd.ArgSlice[float32](a, 5), &spmd.ArgSlice[float32](a, 6)[0]
	n, first, matrices := a.I64(7), a.I32(9), a.I32(10)
	host.Parallel(matrices*((n+muonChunk-1)/muonChunk), 4, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			muonDirection(i, x, squares, m, g, places, hyper, norm, n, a.F32(8), first)
		}
	})
	return nil
}

func (q *muonShape) launchDirection(s *spmd.Stream, k *spmd.Kernel, x spmd.Arg, m, g, hyper, norm spmd.Buffer[float32],
	clip float64, of spmd.Shard) error {
	if of.Len == 0 {
		return nil
	}
	return k.Launch(s, ops.Blocks(q.chunks(), of.Len, 1), x, q.squares.Arg(), m.Arg(), g.Arg(), q.places.Arg(),
		hyper.Arg(), norm.Arg(), spmd.I64(q.len()), spmd.F32(float32(clip)), spmd.I32(of.Off), spmd.I32(of.Len))
}

// muonUpdate also rounds the weights to half, if there is one.
//
//spmd:kernel rows
func muonUpdate[A ops.Act](i int, p []float32, half []spmd.BF16, x []A, places []int64, hyper []float32,
	norm *float32, n int, factor, weightDecay float32) {
	if !finite(float64(*norm)) {
		return
	}
	matrix, lo, hi := chunkOf(i, n, places)
	at := int(places[placeNumbers*matrix+2])
	weights, from := p[at+lo:at+hi], x[matrix*n+lo:matrix*n+hi]
	var rounded []spmd.BF16
	if len(half) > 0 {
		rounded = half[at+lo : at+hi]
	}
	rate, decay := hyper[0]*factor, hyper[0]*weightDecay
	for j, v := range from {
		w := weights[j]
		w -= decay*w + rate*spmd.Widen(v)
		weights[j] = w
		if len(rounded) > 0 {
			rounded[j] = spmd.ToBF16(w)
		}
	}
}
