package parallel

import (
	"errors"
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Norm measures a vector whose elements the ranks share, such as the gradient of a model that is
// divided over the ranks.
type Norm struct {
	c      spmd.Comm
	ranges []spmd.Buffer[float32] // this rank's, as few contiguous ranges as possible
	sums   spmd.Buffer[float64]   // of the squares, of each range
	total  spmd.Buffer[float64]   // (1)
}

// NewNorm returns the norm of the elements of parts, of all ranks of c together. A rank may have
// none. Parts that overlap are refused. If several ranks have copies of an element, one of them
// gives it, and the others leave it out.
//
// Not collective, but Clip is.
func NewNorm(c spmd.Comm, parts ...spmd.Buffer[float32]) (*Norm, error) {
	w, err := library.WorldOf(c, "parallel.NewNorm")
	if err != nil {
		return nil, err
	}
	if err := disjoint("parallel.NewNorm", "part", parts); err != nil {
		return nil, err
	}
	var all bucket[float32]
	for _, b := range parts {
		all.add(b)
	}
	n := &Norm{c: c, ranges: all.parts}
	if n.sums, err = spmd.Alloc[float64](w, len(n.ranges)); err != nil {
		return nil, err
	}
	if n.total, err = spmd.Alloc[float64](w, 1); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Clip enqueues on s: norm[0] = the Euclidean norm of the parts of all ranks together. If that is
// above maxNorm, this rank's parts are scaled so that it is maxNorm. maxNorm <= 0 only measures.
// norm has one element. The result is the same on all ranks. It is ClipNorm's for the whole vector,
// but for the order in which the squares are added, in double.
//
// Collective over the ranks of c, in stream order.
func (n *Norm) Clip(maxNorm float64, norm spmd.Buffer[float32], s *spmd.Stream) error {
	if norm.Len() != 1 {
		return fmt.Errorf("%s: Clip: norm has %d elements, the norm 1", ccall.At(), norm.Len())
	}
	for _, b := range n.ranges {
		if err := library.Apart("Clip", library.Writes("a part", b), library.Writes("norm", norm)); err != nil {
			return err
		}
	}
	for i, b := range n.ranges {
		if err := launchSquares(s, n.sums.Slice(i, i+1), b.Len(), b); err != nil {
			return err
		}
	}
	if err := launchSumOf(s, n.total, len(n.ranges), n.sums); err != nil {
		return err
	}
	if n.c.Size() > 1 {
		if err := spmd.AllReduce(n.c.On(s), n.total, n.total, spmd.Sum); err != nil {
			return err
		}
	}
	if err := launchRoot(s, 1, norm, n.total); err != nil || maxNorm <= 0 {
		return err
	}
	for _, b := range n.ranges {
		if err := launchScale(s, b.Len(), b, norm, maxNorm); err != nil {
			return err
		}
	}
	return nil
}

// Close frees the memory. No Clip may be in flight.
func (n *Norm) Close() error { return errors.Join(n.sums.Free(), n.total.Free()) }
