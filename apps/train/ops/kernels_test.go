package ops

import (
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/traintest"
)

// Logits are far from zero or equal, and a vocabulary ends within a vector.
func TestClassifier(t *testing.T) {
	for _, tc := range []struct{ v, vp int }{{1, 128}, {5, 128}, {128, 128}, {300, 384}} {
		for _, shift := range []float64{0, 1e4, -1e4} {
			const n, scale = 7, 0.25
			x := traintest.RandomFloats(n*tc.vp, 8, 1)
			for i := range x {
				x[i] += float32(shift)
			}
			targets := traintest.RandomTokens(n, tc.v, 2)
			var loss, grad []float64
			for i := range n {
				row := x[i*tc.vp:][:tc.v]
				top, sum := float64(slices.Max(row)), 0.0
				for _, v := range row {
					sum += math.Exp(float64(v) - top)
				}
				loss = append(loss, math.Log(sum)+top-float64(row[targets[i]]))
				for j := range tc.vp {
					g := 0.0
					if j < tc.v {
						g = scale * math.Exp(float64(row[j])-top) / sum
					}
					if j == int(targets[i]) {
						g -= scale
					}
					grad = append(grad, g)
				}
			}
			losses, before := make([]float32, n), slices.Clone(x)
			// The sum of the logarithm and top is rounded as top is.
			abs := 1e-6 + 1.2e-7*math.Abs(shift)
			cClassifier(losses, x, targets, tc.v, tc.vp, scale, false, 0, n)
			traintest.Near(t, "loss", losses, loss, 1e-6, abs)
			if !slices.Equal(x, before) {
				t.Error("without grad the logits changed")
			}
			cClassifier(losses, x, targets, tc.v, tc.vp, scale, true, 0, n)
			traintest.Near(t, "loss", losses, loss, 1e-6, abs)
			traintest.Near(t, "gradient", x, grad, 3e-6, 1e-7)
		}
	}
}

// A value does not depend on how threads divide the work.
func TestSplits(t *testing.T) {
	const n, c, tt, vp = 12, 100, 6, 128
	w, bias := traintest.RandomFloats(c, 1, 1), traintest.RandomFloats(c, 1, 2)
	x, d := traintest.RandomFloats(n*c, 1, 3), traintest.RandomFloats(n*c, 1, 4)
	mean, rstd := traintest.RandomFloats(n, 1, 5), traintest.RandomFloats(n, 1, 6)
	tokens := []int32{3, 1, 3, 3, 0, 2, 1, 1, 3, 0, 0, 3}
	list := make([]int32, SortedLen(n, 4))
	new(Sorter).Sort(list, tokens, 4)
	rows := planOf(list, n, 4)
	logits := traintest.RandomFloats(n*vp, 1, 10)
	table, sums := traintest.RandomFloats(n*c, 1, 11), traintest.RandomFloats(2*n*3, 1, 12)
	for i := 1; i < len(sums); i += 3 {
		sums[i] = 1 + sums[i]*sums[i]
	}
	for _, k := range []struct {
		name string
		n    int
		outs []int // lengths of what it writes, zero before
		run  func(o [][]float32, lo, hi int)
	}{
		{"encoder forward", n, []int{n * c}, func(o [][]float32, lo, hi int) {
			cEncoderForward(o[0], tokens, table, table, tt, c, 1, 2, true, lo, hi)
		}},
		{"encoder backward", c, []int{4 * c, 8 * c}, func(o [][]float32, lo, hi int) {
			cEncoderBackward(o[0], o[1], d, rows, tt, c, 8, 0, 4, false, lo, hi)
		}},
		{"layernorm forward", n, []int{n * c, n, n}, func(o [][]float32, lo, hi int) {
			cLayerNormForward(o[0], o[1], o[2], x, w, bias, c, lo, hi)
		}},
		{"layernorm backward input", n, []int{n * c}, func(o [][]float32, lo, hi int) {
			cLayerNormBackwardInput(o[0], d, x, w, mean, rstd, c, true, lo, hi)
		}},
		{"layernorm backward params", c, []int{c, c}, func(o [][]float32, lo, hi int) {
			cLayerNormBackwardParams(o[0], o[1], d, x, mean, rstd, n, c, true, lo, hi)
		}},
		{"bias backward", c, []int{c}, func(o [][]float32, lo, hi int) { cBiasBackward(o[0], d, n, c, false, lo, hi) }},
		{"classifier", n, []int{n, n * vp}, func(o [][]float32, lo, hi int) {
			copy(o[1][lo*vp:hi*vp], logits[lo*vp:hi*vp])
			cClassifier(o[0], o[1], tokens, 100, vp, 1, true, lo, hi)
		}},
		{"logit sums", n, []int{3 * n},
			func(o [][]float32, lo, hi int) { cLogitSums(o[0], logits, tokens, 100, vp, 2, lo, hi) }},
		{"classifier of parts", n, []int{n, n * vp}, func(o [][]float32, lo, hi int) {
			copy(o[1][lo*vp:hi*vp], logits[lo*vp:hi*vp])
			cClassifierOfParts(o[0], o[1], tokens, sums, 2, n, 100, vp, 1, 1, true, lo, hi)
		}},
	} {
		fresh := func() (o [][]float32) {
			for _, n := range k.outs {
				o = append(o, make([]float32, n))
			}
			return o
		}
		want := fresh()
		k.run(want, 0, k.n)
		got := fresh()
		for lo := k.n; lo > 0; {
			hi := lo
			lo = max(0, lo-1-k.n/3)
			k.run(got, lo, hi)
		}
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%s: output %d depends on the split", k.name, i)
			}
		}
		if slices.Equal(want[0], make([]float32, len(want[0]))) {
			t.Errorf("%s: wrote nothing", k.name)
		}
	}
}
