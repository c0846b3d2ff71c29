package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
)

// Stage is one stage of a Pipeline: Do enqueues its work on one piece, on Stream.
type Stage struct {
	Stream *Stream
	Do     func(piece int) error
}

// Pipeline enqueues work that is done piece by piece in several stages. A stage works on one piece
// while the next stage works on the piece before it: gather, compute and reduce overlap. Each stage
// has a stream of its own; one of them may be s.
//
//	err := spmd.Pipeline(s, pieces,
//		spmd.Stage{gathers, func(k int) error { return spmd.AllGather(c.On(gathers), x.Slice(...), mine.Slice(...)) }},
//		spmd.Stage{s, func(k int) error { return kernel.Launch(s, ...) }},
//		spmd.Stage{sums, func(k int) error { return spmd.AllReduce(c.On(sums), y.Slice(...), y.Slice(...), spmd.Sum) }})
//
// A stage begins a piece when it has done the piece before and the stage ahead has done this piece.
// The first stage begins after the earlier work on s, and later work on s waits for all stages.
// Stages do not wait for later ones: each piece has memory of its own.
//
// Pipeline only enqueues, in a capture too, and in the same order on every rank: stages may hold
// collectives. The first error of a Do ends it and is returned. Work that was enqueued before
// remains.
//
// Collective if stages are.
func Pipeline(s *Stream, pieces int, stages ...Stage) error {
	for i, stage := range stages {
		if stage.Stream == nil || stage.Do == nil {
			return fmt.Errorf("%s: Pipeline: stage %d has no stream, or nothing to do", ccall.At(), i)
		}
		for k, other := range stages[:i] {
			if other.Stream == stage.Stream {
				return fmt.Errorf("%s: Pipeline: stages %d and %d are on the same stream %q",
					ccall.At(), k, i, other.Stream.queue().Name())
			}
		}
		if err := stage.Stream.After(s); err != nil {
			return err
		}
	}
	// Later stages come first among stages that are issued at the same time. A stage then waits for
	// all work of the stage ahead, and that is no more than this piece. On one communicator the
	// collectives of the next piece do not hold up the collectives of a later stage.
	for turn := range pieces + len(stages) - 1 {
		for i := len(stages) - 1; i >= 0; i-- {
			piece, stage := turn-i, stages[i]
			if piece < 0 || piece >= pieces {
				continue
			}
			if i > 0 {
				if err := stage.Stream.After(stages[i-1].Stream); err != nil {
					return err
				}
			}
			if err := stage.Do(piece); err != nil {
				return err
			}
		}
	}
	for _, stage := range stages {
		if err := s.After(stage.Stream); err != nil {
			return err
		}
	}
	return nil
}
