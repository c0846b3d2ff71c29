package text

import (
	"errors"
	"fmt"

	"lockstep/spmd"
)

// Group is a group of ranks with one task, such as the ranks of a node that build a token file.
type Group struct {
	Rank, Size int
	// Exchange gives every rank the bytes of all ranks, in rank order.
	Exchange func(mine []byte) ([][]byte, error)
}

// Gather is Exchange for ranks that may have failed. An error of one rank becomes the error of all,
// with the same text everywhere, and no rank waits for ever.
func (g Group) Gather(mine []byte, err error) ([][]byte, error) {
	const ok, bad, theirs = 0, 1, 2
	msg := append([]byte{ok}, mine...)
	if err != nil {
		msg = append([]byte{bad}, err.Error()...)
		if errors.As(err, new(InputError)) {
			msg[0] = theirs
		}
	}
	all, xerr := g.Exchange(msg)
	if xerr != nil {
		return nil, errors.Join(err, xerr)
	}
	for r, m := range all {
		switch {
		case m[0] == ok:
			all[r] = m[1:]
		case r == g.Rank:
			return nil, err // whole, with what it wraps
		case m[0] == theirs:
			return nil, AsInput(errors.New(string(m[1:])))
		default:
			return nil, fmt.Errorf("rank %d: %s", r, m[1:])
		}
	}
	return all, nil
}

// Among returns the group of the ranks of a communicator.
func Among(w *spmd.World, c spmd.Comm) Group {
	return Group{c.Rank(), c.Size(), func(mine []byte) ([][]byte, error) {
		lens, err := GatherOne(w, c, int64(len(mine)))
		if err != nil {
			return nil, err
		}
		counts, total := make([]int, len(lens)), 0
		for r, n := range lens {
			counts[r] = int(n)
			total += int(n)
		}
		all, err := spmd.Alloc[uint8](w, total)
		if err != nil {
			return nil, err
		}
		defer all.Free()
		at := 0
		for _, n := range counts[:c.Rank()] {
			at += n
		}
		part := all.Slice(at, at+len(mine))
		if err := part.CopyFrom(mine); err != nil {
			return nil, err
		}
		if err := spmd.AllGatherV(c, all, part, counts); err != nil {
			return nil, err
		}
		flat, parts := make([]byte, total), make([][]byte, len(counts))
		if err := all.CopyTo(flat); err != nil {
			return nil, err
		}
		for r, n := range counts {
			parts[r], flat = flat[:n:n], flat[n:]
		}
		return parts, nil
	}}
}

// GatherOne returns every rank's v.
func GatherOne(w *spmd.World, c spmd.Comm, v int64) ([]int64, error) {
	b, err := spmd.Alloc[int64](w, c.Size())
	if err != nil {
		return nil, err
	}
	defer b.Free()
	mine := b.Slice(c.Rank(), c.Rank()+1)
	if err := mine.CopyFrom([]int64{v}); err != nil {
		return nil, err
	}
	if err := spmd.AllGather(c, b, mine); err != nil {
		return nil, err
	}
	all := make([]int64, c.Size())
	return all, b.CopyTo(all)
}
