package kernels

import (
	"fmt"
)

// The gradient of the token embedding is, for each token, the sum of the rows that
// have it. So that no kernel looks for them, the loader sorts the rows of a micro-batch
// by token while the device works on the one before: a list of fixed length, of which
// the device uses what there is.

// partRows is how many rows of a token one warp of a GPU adds up. A token with more is
// split into parts, so that frequent ones do not take longer than all others.
const partRows = 64

// mostParts is how many parts n rows can have: those of the tokens, each with a row, and
// what further rows make.
func mostParts(n, vocab int) int {
	tokens := min(n, vocab)
	return tokens + (n-tokens)/partRows
}

// MostSplits is how many tokens of n rows can have more than partRows.
func MostSplits(n int) int { return n / (partRows + 1) }

// SplitRows is how many parts the tokens with more than one can have together.
func SplitRows(n int) int { return 2 * n / (partRows + 1) }

// SortedLen is the length of the list for n rows.
func SortedLen(n, vocab int) int { return 4 + 4*mostParts(n, vocab) + 4*MostSplits(n) + n }

// plan is such a list, as encoder_backward reads it.
type plan struct {
	count  int     // of parts
	parts  []int32 // 4 for each: token, where its rows begin and end in order, its number in splits or -1
	splits []int32 // 4 for each token of several parts: number of their sums before, its first part, how many parts, 0
	order  []int32 // rows by token, those of a token in their order
}

// planOf is the list in memory, of n rows.
func planOf(list []int32, n, vocab int) plan {
	parts := list[4:][:4*mostParts(n, vocab)]
	splits := list[4+len(parts):][:4*MostSplits(n)]
	return plan{int(list[0]), parts, splits, list[4+len(parts)+len(splits):][:n]}
}

// check refuses a list that would reach outside the vocabulary's rows.
func (p plan) check(vocab int) error {
	for i := range p.count {
		if x := p.parts[4*i]; x < 0 || int(x) >= vocab {
			return fmt.Errorf("token %d is outside the vocabulary of %d", x, vocab)
		}
	}
	return nil
}

// Sorter sorts rows by token.
type Sorter struct{ next []int32 } // of each token of the vocabulary

// Sort fills list, of SortedLen elements, from the tokens, all below vocab.
func (s *Sorter) Sort(list, tokens []int32, vocab int) {
	if len(s.next) != vocab+1 {
		s.next = make([]int32, vocab+1)
	}
	next := s.next // where a token's rows begin, then its next row
	clear(next)
	for _, x := range tokens {
		next[x+1]++
	}
	for i := range vocab {
		next[i+1] += next[i]
	}
	p := planOf(list, len(tokens), vocab)
	for i, x := range tokens {
		p.order[next[x]] = int32(i)
		next[x]++
	}
	count, split, sums := int32(0), int32(0), int32(0)
	first := int32(0)
	for x, end := range next[:vocab] { // which is now where a token's rows end
		number := int32(-1)
		if parts := (end - first + partRows - 1) / partRows; parts > 1 {
			number = split
			copy(p.splits[4*split:], []int32{sums, count, parts, 0})
			sums += parts
			split++
		}
		for ; first < end; first += partRows {
			copy(p.parts[4*count:], []int32{int32(x), first, min(first+partRows, end), number})
			count++
		}
		first = end
	}
	clear(list[:4])
	list[0] = count
}
