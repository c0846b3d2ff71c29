package gokernel_test

import (
	"math"

	"lockstep/spmd"
)

// softmax takes rows of at most 1,024 elements, which a warp keeps in registers.
//
//spmd:kernel rows=32
//spmd:tolerance 1e-6
func softmax(i int, out []spmd.BF16, x []float32, columns int) {
	row, to := x[i*columns:(i+1)*columns], out[i*columns:(i+1)*columns]
	var e [1024]float32
	high := float32(math.Inf(-1))
	for j, v := range row {
		e[j] = v
		high = max(high, v)
	}
	sum := float32(0)
	for j := range columns {
		e[j] = float32(math.Exp(float64(e[j] - high)))
		sum += e[j]
	}
	for j := range to {
		to[j] = spmd.ToBF16(e[j] / sum)
	}
}

// standardize gives rows of any length the mean 0 and the variance 1, and adds another array, if
// there is one.
//
//spmd:kernel rows
//spmd:tolerance 1e-13
func standardize[T float](i int, out, x, added []T, mean []float64, columns int) {
	row, to := x[i*columns:(i+1)*columns], out[i*columns:(i+1)*columns]
	var plus []T
	if len(added) > 0 {
		plus = added[i*columns : (i+1)*columns]
	}
	sum, squares := 0.0, 0.0
	for _, v := range row {
		sum += float64(v)
	}
	mu := sum / float64(columns)
	for _, v := range row {
		squares += (float64(v) - mu) * (float64(v) - mu)
	}
	mean[i] = mu
	inverse := 1 / math.Sqrt(squares/float64(columns))
	for j := range row {
		v := T((float64(row[j]) - mu) * inverse)
		if len(plus) > 0 {
			v += plus[j]
		}
		to[j] = v
	}
}

const side = 32

// transposeTiles writes the transpose of a matrix: an index is a tile, which the threads of a block
// share.
//
//spmd:kernel rows=256
func transposeTiles(i int, out, x []float64, rows, columns int) {
	var tile [side][side + 1]float64
	across := (columns + side - 1) / side
	row, column := i/across*side, i%across*side
	for e := range side * side {
		if r, c := row+e/side, column+e%side; r < rows && c < columns {
			tile[e%side][e/side] = x[r*columns+c]
		}
	}
	for e := range side * side {
		if r, c := row+e%side, column+e/side; r < rows && c < columns {
			out[c*rows+r] = tile[e/side][e%side]
		}
	}
}

// spread counts the values of a row, of 16 kinds. It leaves the most frequent behind the counts. It
// looks at rows in pieces of 100.
//
//spmd:kernel rows=32
func spread(i int, counts []int32, kinds []uint8, columns int) {
	var bins [17]int32
	for first := 0; first < columns; first += 100 {
		piece := kinds[i*columns+first : i*columns+min(columns, first+100)]
		odd := 0
		for _, k := range piece {
			if k >= 16 {
				odd++
				continue
			}
			spmd.AtomicAdd(&bins[k], 1)
		}
		bins[16] += int32(odd)
	}
	most := int32(0)
	for k := range 16 {
		most = max(most, bins[k])
	}
	to := counts[18*i : 18*(i+1)]
	for k := range 17 {
		to[k] = bins[k]
	}
	if most > 0 {
		to[17] = most
	}
}

// settleDown halves each element's distance to its neighbours, times times: in memory, so that the
// threads meet.
//
//spmd:kernel rows=64
func settleDown(i int, x, scratch []float64, columns, times int) {
	row, old := x[i*columns:(i+1)*columns], scratch[i*columns:(i+1)*columns]
	for t := 0; t < times; t++ {
		for j := range row {
			old[j] = row[j] / 4
		}
		for j := range row {
			row[j] = old[max(j-1, 0)] + 2*old[j] + old[min(j+1, columns-1)]
		}
	}
}
