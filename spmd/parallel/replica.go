package parallel

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"lockstep/internal/ccall"
	"lockstep/internal/readable"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// SyncStart copies rank 0's bufs to every rank of c and checks that they arrived: replicas then
// start alike. bufs may overlap.
//
// Collective over c, blocking.
func SyncStart[T spmd.Elem](c spmd.Comm, bufs ...spmd.Buffer[T]) error {
	c = c.On(nil)
	for i, b := range bufs {
		if err := spmd.Broadcast(c, b, 0); err != nil {
			return err
		}
		if err := CheckSame(c, fmt.Sprintf("buffer %d of SyncStart", i), b); err != nil {
			return err
		}
	}
	return nil
}

// CheckSame compares a 64-bit hash of b over the ranks of c. If the hashes differ it returns an
// error on every rank. The error names the ranks whose hash differs from the hash of more than half
// of the ranks; without such a hash, it shows every rank's hash. name says what was compared. It
// waits for the streams that use b.
//
// Collective over c, blocking.
func CheckSame[T spmd.Elem](c spmd.Comm, name string, b spmd.Buffer[T]) error {
	w, err := library.WorldOf(c, "parallel.CheckSame")
	if err != nil {
		return err
	}
	c = c.On(nil)
	hashes, err := spmd.Alloc[uint64](w, c.Size())
	if err != nil {
		return err
	}
	defer hashes.Free()
	mine := hashes.Slice(c.Rank(), c.Rank()+1)
	s, err := w.NewStream("hash")
	if err != nil {
		return err
	}
	if err = b.Slice(0, 0).CopyTo(nil); err == nil { // waits for the streams that use b
		err = hash(s, mine, spmd.View[uint8](b))
	}
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	if err := spmd.AllGather(c, hashes, mine); err != nil {
		return err
	}
	all := make([]uint64, c.Size())
	if err := hashes.CopyTo(all); err != nil {
		return err
	}
	if said := difference(all); said != "" {
		return fmt.Errorf("%s: parallel.CheckSame: %s differs between ranks: %s", ccall.At(), name, said)
	}
	return nil
}

// difference names the ranks whose hashes differ from those of most ranks; "" if all are equal.
func difference(all []uint64) string {
	ranks := map[uint64][]int{}
	var order []uint64 // by the first rank that has it
	for r, h := range all {
		if ranks[h] == nil {
			order = append(order, h)
		}
		ranks[h] = append(ranks[h], r)
	}
	if len(order) == 1 {
		return ""
	}
	slices.SortStableFunc(order, func(a, b uint64) int { return len(ranks[b]) - len(ranks[a]) })
	var parts []string
	for _, h := range order {
		verb := "have"
		if len(ranks[h]) == 1 {
			verb = "has"
		}
		parts = append(parts, fmt.Sprintf("%s %s hash %016x", readable.Ranks(ranks[h]), verb, h))
	}
	if most := order[0]; 2*len(ranks[most]) > len(all) { // the others have drifted
		return fmt.Sprintf("%s, the %d others have %016x", strings.Join(parts[1:], ", "), len(ranks[most]), most)
	}
	return strings.Join(parts, ", ")
}

// Together yields the values of seq for as long as every rank of c has one. So loops with
// collectives in them end on all ranks together, also with uneven data. Values that are left over
// on some ranks are dropped.
//
// The ranks ask each other one step ahead, while the loop's body runs. So seq is asked for its next
// value before the body has the present one: a value must not be reused for the next.
//
// Collective over c: all ranks iterate, and if they leave the loop early they do so in the same
// step. If the exchange fails the loop ends, and so does the job, as after a failed stream.
func Together[T any](c spmd.Comm, seq iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		w, err := library.WorldOf(c, "parallel.Together")
		if w == nil {
			return // of no world, whose ranks could fail
		}
		if err == nil {
			err = together(w, c, seq, yield)
		}
		if err != nil {
			own.Fail(w, err)
		}
	}
}

func together[T any](w *spmd.World, c spmd.Comm, seq iter.Seq[T], yield func(T) bool) error {
	next, stop := iter.Pull(seq)
	defer stop()
	have, err := spmd.Alloc[uint8](w, 1)
	if err != nil {
		return err
	}
	defer have.Free()
	s, err := w.NewStream("together")
	if err != nil {
		return err
	}
	defer s.Close()
	ask := func() (v T, err error) {
		v, ok := next()
		yes := uint8(0)
		if ok {
			yes = 1
		}
		if err = spmd.Fill(s, have, yes); err == nil {
			err = spmd.AllReduce(c.On(s), have, have, spmd.Min)
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
