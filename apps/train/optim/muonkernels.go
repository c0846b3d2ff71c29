package optim

import (
	"math"

	"lockstep/apps/train/kernels"
	"lockstep/spmd"
)

// The kernels of Muon but for its products: a row is a chunk of a matrix, whose chunks follow each other. Matrices of n numbers are
// in arenas where offsets say, and one behind the other in x. hyper is the rate and the momentum. Nothing changes where the norm
// is not finite.

const muonChunk = 4096 // numbers

// chunkOf returns the matrix of chunk i, and the chunk's place in it.
func chunkOf(i, n int) (matrix, lo, hi int) {
	chunks := (n + muonChunk - 1) / muonChunk
	lo = i % chunks * muonChunk
	return i / chunks, lo, min(lo+muonChunk, n)
}

// clipped is what gradients of such a norm are multiplied by.
func clipped(norm, clip float32) float32 {
	if clip > 0 && norm > clip {
		return float32(float64(clip) / float64(norm))
	}
	return 1
}

// muonMomentum also leaves the sum of the squares of what is to be made orthogonal, of each chunk.
//
//spmd:kernel rows
//spmd:tolerance 1e-5
func muonMomentum(i int, m, squares, g []float32, offsets []int64, hyper []float32, norm *float32, n int, clip float32) {
	if !finite(float64(*norm)) {
		return
	}
	matrix, lo, hi := chunkOf(i, n)
	at := int(offsets[matrix])
	old, grad := m[at+lo:at+hi], g[at+lo:at+hi]
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

// muonDirection sets x to what is made orthogonal, of Frobenius norm 1, for the matrices from first on.
//
//spmd:kernel rows
//spmd:tolerance 1e-5
func muonDirection[A kernels.Act](i int, x []A, squares, m, g []float32, offsets []int64, hyper []float32, norm *float32, n int, clip float32, first int) {
	if !finite(float64(*norm)) {
		return
	}
	matrix, lo, hi := chunkOf(i, n)
	matrix += first
	chunks := (n + muonChunk - 1) / muonChunk
	parts, sum := squares[matrix*chunks:(matrix+1)*chunks], float32(0)
	for _, v := range parts {
		sum += v
	}
	inverse := 1 / (float32(math.Sqrt(float64(sum))) + 1e-7)
	at := int(offsets[matrix])
	old, grad, to := m[at+lo:at+hi], g[at+lo:at+hi], x[matrix*n+lo:matrix*n+hi]
	momentum, by := hyper[1], clipped(*norm, clip)
	rest := 1 - momentum
	for j, v := range grad {
		to[j] = spmd.Narrow[A]((momentum*old[j] + rest*(v*by)) * inverse)
	}
}

// muonUpdate also rounds the weights to half, if there is one.
//
//spmd:kernel rows
func muonUpdate[A kernels.Act](i int, p []float32, half []spmd.BF16, x []A, offsets []int64, hyper []float32, norm *float32, n int, factor, weightDecay float32) {
	if !finite(float64(*norm)) {
		return
	}
	matrix, lo, hi := chunkOf(i, n)
	at := int(offsets[matrix])
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
