package ops

import (
	"math"

	"lockstep/spmd"
)

// These are kernels of parts of tensors, in Go. A row is such a part: it
// has a largest size or a sum.

const castChunk = 8192 // elements of a row of castPart, 32 for a thread

// castParts returns how many rows n elements are.
func castParts(n int) int { return (n + castChunk - 1) / castChunk }

// sizeOf returns |v|, or 0 for a NaN.
func sizeOf(v float32) float32 {
	if v < 0 {
		v = -v
	}
	if v != v {
		return 0
	}
	return v
}

// castPart writes the codes of part i of x times *up. It records the largest size of x in peak,
// which may be empty.
//
//spmd:kernel rows
func castPart[T eight](i int, codes []T, up *float32, peak []float32, x []spmd.BF16, n int) {
	lo, hi := i*castChunk, min(n, (i+1)*castChunk)
	from, to := x[lo:hi], codes[lo:hi]
	scale, top := *up, float32(0)
	for j, h := range from {
		v := h.Float32()
		top = max(top, sizeOf(v))
		to[j] = spmd.Narrow[T](v * scale)
	}
	if len(peak) > 0 {
		spmd.AtomicMax(&peak[0], top)
	}
}

// squarePart makes part i of x the square of max(x, 0), and is castPart of the squares.
//
//spmd:kernel rows
func squarePart(i int, codes []spmd.F8E4M3, up *float32, peak []float32, x []spmd.BF16, n int) {
	lo, hi := i*castChunk, min(n, (i+1)*castChunk)
	values, to := x[lo:hi], codes[lo:hi]
	scale, top := *up, float32(0)
	for j, h := range values {
		v := h.Float32()
		if !(v > 0) {
			v *= 0 // a NaN stays one
		}
		y := spmd.ToBF16(v * v)
		values[j] = y
		top = max(top, sizeOf(y.Float32()))
		to[j] = spmd.ToF8E4M3(y.Float32() * scale)
	}
	if len(peak) > 0 {
		spmd.AtomicMax(&peak[0], top)
	}
}

// squareSlopePart multiplies part i of d by 2·√y, and is castPart of the products.
//
//spmd:kernel rows
//spmd:tolerance 1e-6
func squareSlopePart(i int, codes []spmd.F8E4M3, up *float32, peak []float32, d, y []spmd.BF16, n int) {
	lo, hi := i*castChunk, min(n, (i+1)*castChunk)
	values, squares, to := d[lo:hi], y[lo:hi], codes[lo:hi]
	scale, top := *up, float32(0)
	for j, h := range values {
		v := spmd.ToBF16(h.Float32() * (2 * float32(math.Sqrt(float64(squares[j].Float32())))))
		values[j] = v
		top = max(top, sizeOf(v.Float32()))
		to[j] = spmd.ToF8E4M3(v.Float32() * scale)
	}
	if len(peak) > 0 {
		spmd.AtomicMax(&peak[0], top)
	}
}

// sumRows sets, or adds to, 32 of the c sums of the columns of partial(rows,c).
//
//spmd:kernel rows unset
//spmd:tolerance 1e-5
func sumRows(i int, sums, partial []float32, rows, c int, accumulate bool) {
	var parts [8][32]float32
	for t := range 256 {
		sum := float32(0)
		if j := 32*i + t%32; j < c {
			for r := t / 32; r < rows; r += 8 {
				sum += partial[r*c+j]
			}
		}
		parts[t/32][t%32] = sum
	}
	for t := range 32 {
		if j := 32*i + t; j < c {
			sum := float32(0)
			for k := range 8 {
				sum += parts[k][t]
			}
			if accumulate {
				sum += sums[j]
			}
			sums[j] = sum
		}
	}
}

// peakParts is the number of parts of a matrix. A part of a matrix of k·768 rows and 768 columns
// has k·8,192 elements, 32 k for a thread.
const peakParts = 72

// weightPeak records the largest size of one part of a matrix in the matrix's peak. matrices has
// the matrix's numbers.
//
//spmd:kernel rows
func weightPeak(i int, peaks []float32, weights []spmd.BF16, matrices []int64) {
	m := matrices[i/peakParts*MatrixNumbers : (i/peakParts+1)*MatrixNumbers]
	first, n := int(m[0]), int(m[3]*m[4])
	each := (n + 8*peakParts - 1) / (8 * peakParts) * 8
	lo := min(n, i%peakParts*each)
	part, top := weights[first+lo:first+min(n, lo+each)], float32(0)
	for _, v := range part {
		top = max(top, sizeOf(v.Float32()))
	}
	spmd.AtomicMax(&peaks[i/peakParts], top)
}

// WeightPeaks enqueues the search for the largest size in each matrix of weights. peaks must be 0.
func WeightPeaks(s *spmd.Stream, peaks spmd.Buffer[float32], weights spmd.Buffer[spmd.BF16],
	matrices spmd.Buffer[int64]) error {
	return launchWeightPeak(s, peakParts*peaks.Len(), peaks, weights, matrices)
}
