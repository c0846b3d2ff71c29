package spmd

import (
	"errors"
	"fmt"
	"iter"

	"lockstep/internal/ccall"
)

// Shard is a contiguous part of a range.
type Shard struct{ Off, Len int }

// ShardOf cuts [0, n) into size contiguous parts, as equal as they can be, and
// returns the one of rank: the first n % size parts are one longer.
func ShardOf(n, rank, size int) Shard {
	part, rest := n/size, n%size
	return Shard{rank*part + min(rank, rest), part + b2i(rank < rest)}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// SyncStart copies rank 0's bufs to every rank of c and checks that they arrived:
// the consistent start of replicas.
//
// Collective over c, blocking.
func SyncStart[T Elem](c Comm, bufs ...Buffer[T]) error {
	c.s = nil
	for i, b := range bufs {
		if err := Broadcast(c, b, 0); err != nil {
			return err
		}
		if err := CheckSame(c, fmt.Sprintf("buffer %d of SyncStart", i), b); err != nil {
			return err
		}
	}
	return nil
}

// CheckSame compares a 64-bit hash of b over the ranks of c. Where not all are
// equal it returns, on every rank, an error that says which is the first rank that
// differs from rank 0; name says what was compared. b must be valid for the host.
//
// Collective over c, blocking.
func CheckSame[T Elem](c Comm, name string, b Buffer[T]) error {
	if err := c.check("CheckSame"); err != nil {
		return err
	}
	c.s = nil
	hashes, err := Alloc[uint64](c.st.w, c.Size())
	if err != nil {
		return err
	}
	defer hashes.Free()
	mine := hashes.Slice(c.Rank(), c.Rank()+1)
	s, err := c.st.w.NewStream("hash")
	if err != nil {
		return err
	}
	err = hash(s, mine, asBytes(b))
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	if err := AllGather(c, hashes, mine); err != nil {
		return err
	}
	all := make([]uint64, c.Size())
	if err := hashes.CopyTo(all); err != nil {
		return err
	}
	for r, h := range all {
		if h != all[0] {
			return fmt.Errorf("%s: %s differs between ranks: rank 0 has hash %016x, rank %d has %016x", ccall.At(), name, all[0], r, h)
		}
	}
	return nil
}

// Together yields the values of seq for as long as every rank of c has one, so
// that loops with collectives in them end on all ranks together even where the
// data is uneven: what is left over on some ranks is dropped. The ranks ask each
// other one step ahead, while the loop's body runs: seq is asked for its next
// value before the body has the present one, so a value must not be reused for
// the next.
//
// Collective over c: all ranks iterate, and leave the loop early, if they do, in
// the same step. Where the exchange fails the loop ends, and so does the job, as
// after a failed stream.
func Together[T any](c Comm, seq iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		if err := together(c, seq, yield); err != nil && c.st != nil {
			c.st.w.fail(err)
		}
	}
}

func together[T any](c Comm, seq iter.Seq[T], yield func(T) bool) error {
	if err := c.check("Together"); err != nil {
		return err
	}
	next, stop := iter.Pull(seq)
	defer stop()
	have, err := Alloc[uint8](c.st.w, 1)
	if err != nil {
		return err
	}
	defer have.Free()
	s, err := c.st.w.NewStream("together")
	if err != nil {
		return err
	}
	defer s.Close()
	ask := func() (v T, err error) {
		v, ok := next()
		if err = Fill(s, have, uint8(b2i(ok))); err == nil {
			err = AllReduce(c.On(s), have, have, Min)
		}
		return v, err
	}
	ahead, err := ask()
	for err == nil {
		if err = s.Synchronize(); err != nil || have.At(0) == 0 {
			return err
		}
		v := ahead
		if ahead, err = ask(); err == nil && !yield(v) {
			return nil
		}
	}
	return err
}
