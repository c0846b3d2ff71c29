package modern

import (
	"math"

	"lockstep/apps/train/kernels"
	"lockstep/spmd"
)

// Kernels in Go: of single numbers, and of rows, which a warp works on.

//go:generate go run lockstep/spmd/spmdgen

// epsilon is float32's, as PyTorch's rms_norm has it.
const epsilon = 1.1920929e-7

// inverseNorm is 1/√(mean of squares + ε) of the sum of n squares, and NaN where that has overflowed: a run that diverges is
// to end.
func inverseNorm(squares float32, n int) float32 {
	if !(squares <= math.MaxFloat32) {
		return float32(math.NaN())
	}
	return 1 / float32(math.Sqrt(float64(squares/float32(n)+epsilon)))
}

// rowOf is where the row of a token lies in a table of rows of c numbers; of one outside of the vocabulary none.
func rowOf(token int32, c, vocab int) (at int, known bool) {
	if token < 0 || int(token) >= vocab {
		return 0, false
	}
	return int(token) * c, true
}

// embedRow sets row i of out to the norm of its token's row; NaN, and so the loss, where there is none.
//
//spmd:kernel rows=32
//spmd:tolerance 1e-5
func embedRow[A kernels.Act](i int, out []A, tokens []int32, wte []float32, c, vocab int) {
	at, known := rowOf(tokens[i], c, vocab)
	row, to := wte[at:at+c], out[i*c:(i+1)*c]
	squares := float32(0)
	for _, v := range row {
		squares += v * v
	}
	by := inverseNorm(squares, c)
	if !known {
		by = float32(math.NaN())
	}
	for j, v := range row {
		to[j] = spmd.Narrow[A](v * by)
	}
}

// embedBackRow makes of row i of d, the gradient of what embedRow has left, that of the token's row.
//
//spmd:kernel rows=32
//spmd:tolerance 1e-5
func embedBackRow[A kernels.Act](i int, d []A, tokens []int32, wte []float32, c, vocab int) {
	at, known := rowOf(tokens[i], c, vocab)
	row, grad := wte[at:at+c], d[i*c:(i+1)*c]
	squares, through := float32(0), float32(0)
	for j, v := range row {
		squares += v * v
		through += v * spmd.Widen(grad[j])
	}
	by := inverseNorm(squares, c)
	if !known {
		by = float32(math.NaN())
	}
	mean := through * by / float32(c)
	for j, v := range row {
		grad[j] = spmd.Narrow[A](by * (spmd.Widen(grad[j]) - v*by*mean))
	}
}

// normRow sets row i of out to the norm of x, with by[0] times kept added where there is any: that is left in sum.
//
//spmd:kernel rows=32
//spmd:tolerance 1e-5
func normRow[A kernels.Act](i int, out, sum, x, kept []A, by []float32, c int) {
	row, to := x[i*c:(i+1)*c], out[i*c:(i+1)*c]
	var more, into []A
	times, squares := float32(0), float32(0)
	if len(kept) > 0 {
		more, into = kept[i*c:(i+1)*c], sum[i*c:(i+1)*c]
		times = by[0]
	}
	for j, h := range row {
		if len(more) > 0 {
			h = spmd.Narrow[A](spmd.Widen(h) + times*spmd.Widen(more[j]))
			into[j] = h
		}
		v := spmd.Widen(h)
		squares += v * v
	}
	inverse := inverseNorm(squares, c)
	for j, h := range row {
		if len(more) > 0 {
			h = into[j]
		}
		to[j] = spmd.Narrow[A](spmd.Widen(h) * inverse)
	}
}

// norm enqueues out(n,c) = the norm of x, with what k adds to it.
func norm[A kernels.Act](e *kernels.Launcher[A], out, x spmd.Buffer[A], k skip[A]) {
	if e.Err == nil {
		e.Err = launchNormRow(e.S, e.N, out, k.sum, x, k.kept, k.by.w, e.Cfg.Channels)
	}
}

// embed enqueues out(n,c) = the norm of the rows of wte.
func embed[A kernels.Act](e *kernels.Launcher[A], out spmd.Buffer[A], tokens spmd.Buffer[int32], wte spmd.Buffer[float32]) {
	if e.Err == nil {
		e.Err = launchEmbedRow(e.S, e.N, out, tokens, wte, e.Cfg.Channels, e.Cfg.Vocab)
	}
}

// embedBackward enqueues that d, the gradient of what embed has left, becomes that of the rows.
func embedBackward[A kernels.Act](e *kernels.Launcher[A], d spmd.Buffer[A], tokens spmd.Buffer[int32], wte spmd.Buffer[float32]) {
	if e.Err == nil {
		e.Err = launchEmbedBackRow(e.S, e.N, d, tokens, wte, e.Cfg.Channels, e.Cfg.Vocab)
	}
}

//spmd:kernel
func squareElement[A kernels.Act](i int, x []A) {
	v := spmd.Widen(x[i])
	if !(v > 0) {
		v *= 0 // a NaN stays one
	}
	x[i] = spmd.Narrow[A](v * v)
}

//spmd:kernel
//spmd:tolerance 1e-6
func squareBackElement[A kernels.Act](i int, d, y []A) {
	d[i] = spmd.Narrow[A](spmd.Widen(d[i]) * (2 * float32(math.Sqrt(float64(spmd.Widen(y[i]))))))
}

// relu2 enqueues x = max(x, 0)², of the first n elements.
func relu2[A kernels.Act](e *kernels.Launcher[A], x spmd.Buffer[A], n int) {
	if e.Err == nil {
		e.Err = launchSquareElement(e.S, n, x)
	}
}

// relu2Backward enqueues d *= 2·√y, of the first n elements: y is what relu2 has left.
func relu2Backward[A kernels.Act](e *kernels.Launcher[A], d, y spmd.Buffer[A], n int) {
	if e.Err == nil {
		e.Err = launchSquareBackElement(e.S, n, d, y)
	}
}
