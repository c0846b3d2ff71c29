// Package control lets the ranks of a communicator agree through host memory: on an error, on the
// least and the greatest of a number, on the bytes of one rank or of each. It also has the
// framework's own traffic (Channel), and the order in which a process enters MPI (Tickets).
//
// It knows neither MPI nor a device: anything that moves host memory between ranks is a Comm. All
// functions are collective over its ranks, and block.
package control

import (
	"unsafe"

	"lockstep/internal/elem"
)

// Exchange moves host memory between the ranks of a communicator. A transport.Host is one.
type Exchange interface {
	Rank() int
	Size() int
	AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error
	Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error
	AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error
	AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error
}

// Span is the range of a number over the ranks: its least and its greatest value.
type Span struct{ Lo, Hi int64 }

// Of returns the span of v alone.
func Of(v int64) Span { return Span{v, v} }

// One reports whether the span has one value, and so all ranks the same.
func (s Span) One() bool { return s.Lo == s.Hi }

// Union widens each span to the least that holds the spans of all ranks. It allocates nothing.
func Union(c Exchange, spans []Span) error {
	if len(spans) == 0 {
		return nil
	}
	flip(spans)
	p := unsafe.Pointer(&spans[0])
	err := c.AllReduce(p, p, 2*len(spans), elem.Int64, elem.Min)
	flip(spans)
	return err
}

// flip turns greatest values into complements and back: the greatest has the least, so that one
// call finds both ends.
func flip(spans []Span) {
	for i := range spans {
		spans[i].Hi = ^spans[i].Hi
	}
}

// Range returns the least and the greatest v over the ranks.
func Range(c Exchange, v int64) (Span, error) {
	s := []Span{Of(v)}
	err := Union(c, s)
	return s[0], err
}

// Broadcast returns root's b on every rank. The others' may have any length.
func Broadcast(c Exchange, b []byte, root int) ([]byte, error) {
	n := int64(len(b))
	if err := c.Broadcast(unsafe.Pointer(&n), 1, elem.Int64, root); err != nil {
		return nil, err
	}
	if c.Rank() != root {
		b = make([]byte, n)
	}
	if n == 0 {
		return b, nil
	}
	return b, c.Broadcast(unsafe.Pointer(&b[0]), int(n), elem.Uint8, root)
}

// Gather returns each rank's bytes, in rank order. The lengths may differ.
func Gather(c Exchange, mine []byte) ([][]byte, error) {
	n := int64(len(mine))
	lengths := make([]int64, c.Size())
	if err := c.AllGather(unsafe.Pointer(&lengths[0]), unsafe.Pointer(&n), 1, elem.Int64); err != nil {
		return nil, err
	}
	counts, total := make([]int, len(lengths)), 0
	for r, n := range lengths {
		counts[r] = int(n)
		total += int(n)
	}
	whole := make([]byte, total)
	if err := c.AllGatherV(unsafe.Pointer(unsafe.SliceData(whole)), unsafe.Pointer(unsafe.SliceData(mine)), counts,
		elem.Uint8); err != nil {
		return nil, err
	}
	all := make([][]byte, len(counts))
	for r, n := range counts {
		all[r], whole = whole[:n:n], whole[n:]
	}
	return all, nil
}
