package cudampi

// Parts are the pieces of a buffer that belong to the ranks, packed in rank order: Each elements,
// or Counts[r] of rank r.
type Parts struct {
	Each   int
	Counts []int // nil when all are equal
}

// Len returns the number of elements of rank r's part.
func (p Parts) Len(r int) int {
	if p.Counts == nil {
		return p.Each
	}
	return p.Counts[r]
}

// Offset returns the first element of rank r's part; for Size() it is the number of all elements.
func (p Parts) Offset(r int) int {
	if p.Counts == nil {
		return r * p.Each
	}
	sum := 0
	for _, n := range p.Counts[:r] {
		sum += n
	}
	return sum
}
