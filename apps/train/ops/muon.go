package ops

import (
	_ "embed"
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// These are the kernels of Muon, except its products. A row is a chunk of a matrix, and chunks
// follow each other. This rank has those of a matrix's n numbers that places says, one behind the
// other in x. Nothing changes if the norm is not finite.

const muonChunk = 4096 // numbers

// MuonMatrices is matrices of one shape.
type MuonMatrices struct {
	Len, Count int                  // numbers of each; how many
	Places     spmd.Buffer[int64]   // (Count,PlaceNumbers)
	Squares    spmd.Buffer[float32] // (Count,Chunks): sums of squares
}

// MuonState is what the kernels of Muon work on, in arenas.
type MuonState struct {
	W, G, M           spmd.Buffer[float32]   // weights, gradients and momentum
	Half              spmd.Buffer[spmd.BF16] // receives W rounded; may be empty
	Hyper             spmd.Buffer[float32]   // (2): rate, momentum
	Norm              spmd.Buffer[float32]   // (1): of the gradients
	Clip, WeightDecay float64
}

// Chunks returns how many chunks a matrix has.
func (q *MuonMatrices) Chunks() int { return (q.Len + muonChunk - 1) / muonChunk }

// Momentum enqueues the momentum, and the sums of squares.
func (q *MuonMatrices) Momentum(s *spmd.Stream, x MuonState) error {
	return launchMuonMomentum(s, q.Count*q.Chunks(), x.M, q.Squares, x.G, q.Places, x.Hyper, x.Norm, q.Len,
		float32(x.Clip))
}

// MuonDirection enqueues to = the direction of some of the matrices before it becomes orthogonal.
func MuonDirection[A Act](s *spmd.Stream, to spmd.Buffer[A], q *MuonMatrices, x MuonState, of spmd.Shard) error {
	if of.Len == 0 {
		return nil
	}
	e := Launcher[A]{S: s}
	e.Launch(muonDirections, Blocks(q.Chunks(), of.Len, 1), to.Arg(), q.Squares.Arg(), x.M.Arg(), x.G.Arg(),
		q.Places.Arg(), x.Hyper.Arg(), x.Norm.Arg(), spmd.I64(q.Len), spmd.F32(float32(x.Clip)), spmd.I32(of.Off),
		spmd.I32(of.Len))
	return e.Err
}

// MuonUpdate enqueues the update of the weights by factor times the orthogonal directions.
func MuonUpdate[A Act](s *spmd.Stream, q *MuonMatrices, x MuonState, directions spmd.Buffer[A], factor float64) error {
	return launchMuonUpdate(s, q.Count*q.Chunks(), x.W, x.Half, directions, q.Places, x.Hyper, x.Norm, q.Len,
		float32(factor), float32(x.WeightDecay))
}

// PlaceNumbers is how many numbers of a matrix places has: which numbers [from, to) of it this rank
// has, and where number 0 would be in the arenas of weights, gradients and momentum.
const PlaceNumbers = 5

// chunkOf returns the matrix of chunk i, and this rank's numbers of the matrix in that chunk.
func chunkOf(i, n int, places []int64) (matrix, lo, hi int) {
	chunks := (n + muonChunk - 1) / muonChunk
	lo = i % chunks * muonChunk
	matrix = i / chunks
	from, to := int(places[PlaceNumbers*matrix]), int(places[PlaceNumbers*matrix+1])
	hi = max(from, min(lo+muonChunk, to))
	return matrix, min(max(lo, from), hi), hi
}

// muonMomentum updates the momentum of a chunk. It also computes the sum of squares of the
// direction before it becomes orthogonal.
//
//spmd:kernel rows
//spmd:tolerance 1e-5
func muonMomentum(i int, m, squares, g []float32, places []int64, hyper []float32, norm *float32, n int, clip float32) {
	if !Finite(float64(*norm)) {
		return
	}
	matrix, lo, hi := chunkOf(i, n, places)
	ofGrads, ofMoments := int(places[PlaceNumbers*matrix+3]), int(places[PlaceNumbers*matrix+4])
	old, grad := m[ofMoments+lo:ofMoments+hi], g[ofGrads+lo:ofGrads+hi]
	momentum, by, sum := hyper[1], clipFactor(*norm, clip), float32(0)
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

//go:embed muon.cu
var muonSource string

var muonDirections = Kernel{
	F32: spmd.NewKernel("muon_direction", muonSource, directionOnHost[float32], spmd.KernelOptions{
		Flags: []string{"-DACT=float"}, Tolerance: 1e-5}),
	BF16: spmd.NewKernel("muon_direction", muonSource, directionOnHost[spmd.BF16], spmd.KernelOptions{
		Flags: []string{"-DACT=bf16"}, Tolerance: 1e-5}),
}

// directionOnHost sets x to the direction before it becomes orthogonal, with Frobenius norm 1, for
// some matrices from first on.
func directionOnHost[A Act](a spmd.Args) error {
	x, squares, m := spmd.ArgSlice[A](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2)
	g := spmd.ArgSlice[float32](a, 3)
	places, hyper, norm := spmd.ArgSlice[int64](a, 4), spmd.ArgSlice[float32](a, 5), spmd.ArgSlice[float32](a, 6)[0]
	n, clip, first, matrices := a.I64(7), a.F32(8), a.I32(9), a.I32(10)
	if !Finite(float64(norm)) {
		return nil
	}
	momentum, by := hyper[1], clipFactor(norm, clip)
	rest := 1 - momentum
	chunks := (n + muonChunk - 1) / muonChunk
	host.Parallel(matrices*chunks, 4, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			matrix, lo, hi := chunkOf(i+first*chunks, n, places)
			sum := float32(0)
			for _, v := range squares[matrix*chunks : (matrix+1)*chunks] {
				sum += v
			}
			inverse := 1 / (float32(math.Sqrt(float64(sum))) + 1e-7)
			ofGrads, ofMoments := int(places[PlaceNumbers*matrix+3]), int(places[PlaceNumbers*matrix+4])
			old, to := m[ofMoments+lo:ofMoments+hi], x[matrix*n+lo:matrix*n+hi]
			for j, v := range g[ofGrads+lo : ofGrads+hi] {
				to[j] = spmd.Narrow[A]((momentum*old[j] + rest*(v*by)) * inverse)
			}
		}
	})
	return nil
}

// muonUpdate also rounds the weights to half, if there is one.
//
//spmd:kernel rows
func muonUpdate[A Act](i int, p []float32, half []spmd.BF16, x []A, places []int64, hyper []float32,
	norm *float32, n int, factor, weightDecay float32) {
	if !Finite(float64(*norm)) {
		return
	}
	matrix, lo, hi := chunkOf(i, n, places)
	at := int(places[PlaceNumbers*matrix+2])
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
