package ops

import (
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/traintest"
)

// Every row is in exactly one part, of its token and after the rows before it. The parts of a token
// follow each other, and the numbers of their sums are all different.
func TestSorter(t *testing.T) {
	worst := func(n, vocab int) []int32 { // the largest possible number of tokens with more than one part
		x := make([]int32, n)
		for i := range x {
			x[i] = int32(min(i/(partRows+1), vocab-1))
		}
		return x
	}
	var s Sorter
	for _, tc := range []struct {
		name   string
		vocab  int
		tokens []int32
	}{
		{"one", 1, []int32{0}},
		{"a few", 7, []int32{3, 6, 3, 0, 3}},
		{"all different", 100, []int32{99, 0, 50, 7}},
		{"one token", 9, make([]int32, 1000)},
		{"random", 50257, traintest.RandomTokens(5000, 50257, 1)},
		{"random bytes", 256, traintest.RandomTokens(5000, 256, 1)},
		{"most splits", 400, worst(400*(partRows+1), 400)},
		{"one part each", 3, slices.Concat(make([]int32, partRows), slices.Repeat([]int32{1}, partRows),
			slices.Repeat([]int32{2}, partRows))},
	} {
		n := len(tc.tokens)
		list := slices.Repeat([]int32{math.MinInt32}, SortedLen(n, tc.vocab))
		s.Sort(list, tc.tokens, tc.vocab)
		p := planOf(list, n, tc.vocab)
		seen, sums := make([]bool, n), make([]bool, SplitRows(n))
		at := int32(0)
		for i := range p.count {
			part := p.parts[i]
			token, first, end := part.token, part.first, part.end
			if first != at || end <= first || end > first+partRows {
				t.Fatalf("%s: part %d is rows %d to %d, the one before ends at %d", tc.name, i, first, end, at)
			}
			at = end
			for k := first; k < end; k++ {
				row := p.order[k]
				if tc.tokens[row] != token || seen[row] ||
					k > 0 && tc.tokens[p.order[k-1]] == token && p.order[k-1] >= row {
					t.Fatalf("%s: row %d of token %d is in a part of token %d, or twice, or out of order",
						tc.name, row, tc.tokens[row], token)
				}
				seen[row] = true
			}
			alone := (i == 0 || p.parts[i-1].token != token) && (i+1 == p.count || p.parts[i+1].token != token)
			if alone != (part.split < 0) {
				t.Fatalf("%s: part %d of token %d, alone %v, is of split %d", tc.name, i, token, alone, part.split)
			}
			if part.split >= 0 {
				split := p.splits[part.split]
				if k := i - split.first; k < 0 || k >= split.parts || sums[split.row+k] {
					t.Fatalf("%s: part %d of a split that begins at %d and has %d",
						tc.name, i, split.first, split.parts)
				} else {
					sums[split.row+k] = true
				}
			}
		}
		if at != int32(n) {
			t.Errorf("%s: the parts have %d of %d rows", tc.name, at, n)
		}
	}
}
