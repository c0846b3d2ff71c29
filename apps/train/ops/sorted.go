package ops

import (
	"fmt"
	"unsafe"
)

// The token embedding's gradient for a token is the sum of the rows with that token. The loader
// sorts the rows of a micro-batch by token while the device works on the one before. So no kernel
// has to look for them. The list has a fixed length, and the device uses the valid part.

// partRows is how many rows of a token one warp of a GPU adds up. A token with more is split into
// parts, so that frequent tokens do not take longer than all others.
const partRows = 64

// mostParts returns how many parts n rows can have: one for each token, and those of further rows.
func mostParts(n, vocab int) int {
	tokens := min(n, vocab)
	return tokens + (n-tokens)/partRows
}

// MostSplits returns how many tokens of n rows can have more than partRows.
func MostSplits(n int) int { return n / (partRows + 1) }

// SplitRows returns how many parts the tokens with more than one can have together.
func SplitRows(n int) int { return 2 * n / (partRows + 1) }

// SortedLen returns the length of the list for n rows.
func SortedLen(n, vocab int) int {
	return int(unsafe.Sizeof(planHead{})+uintptr(mostParts(n, vocab))*unsafe.Sizeof(tokenPart{})+
		uintptr(MostSplits(n))*unsafe.Sizeof(tokenSplit{}))/4 + n
}

// plan is such a list, in parts that lie behind each other. encoder_backward reads it, and has
// structs of these names.
type plan struct {
	*planHead
	parts  []tokenPart  // those of a token follow each other
	splits []tokenSplit // of the tokens of several parts
	order  []int32      // (n): rows by token, those of a token in their order
}

// planHead is the lengths of a plan.
type planHead struct {
	count int32 // of parts
	_     [3]int32
}

// tokenPart is rows of a token that one warp of a GPU adds up.
type tokenPart struct {
	token      int32
	first, end int32 // of its rows in order
	split      int32 // of splits, where the token has several parts, or -1
}

// tokenSplit is a token of several parts. Each leaves its sum in a row of its own, and the last one
// adds these up.
type tokenSplit struct {
	row   int32 // where the sum of its first part is
	first int32 // of its parts
	parts int32 // how many it has
	_     int32
}

// planOf returns the plan of n rows in a list's memory.
func planOf(list []int32, n, vocab int) plan {
	var p plan
	head, list := structs[planHead](list, 1)
	p.planHead = &head[0]
	p.parts, list = structs[tokenPart](list, mostParts(n, vocab))
	p.splits, list = structs[tokenSplit](list, MostSplits(n))
	p.order = list[:n]
	return p
}

// structs returns the first n structs of numbers in a list, and the rest of the list.
func structs[S planHead | tokenPart | tokenSplit](list []int32, n int) ([]S, []int32) {
	numbers := n * int(unsafe.Sizeof(*new(S))) / 4
	return unsafe.Slice((*S)(unsafe.Pointer(unsafe.SliceData(list[:numbers]))), n), list[numbers:]
}

// check refuses a list that would reach outside the vocabulary's rows.
func (p plan) check(vocab int) error {
	for _, part := range p.parts[:p.count] {
		if part.token < 0 || int(part.token) >= vocab {
			return fmt.Errorf("token %d is outside the vocabulary of %d", part.token, vocab)
		}
	}
	return nil
}

// Sorter sorts rows by token.
type Sorter struct{ next []int32 } // for each token of the vocabulary

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
	count, splits, sums := int32(0), int32(0), int32(0)
	first := int32(0)
	for x, end := range next[:vocab] { // which is now where a token's rows end
		split := int32(-1)
		if parts := (end - first + partRows - 1) / partRows; parts > 1 {
			split = splits
			p.splits[split] = tokenSplit{row: sums, first: count, parts: parts}
			sums += parts
			splits++
		}
		for ; first < end; first += partRows {
			p.parts[count] = tokenPart{token: int32(x), first: first, end: min(first+partRows, end), split: split}
			count++
		}
		first = end
	}
	*p.planHead = planHead{count: count}
}
