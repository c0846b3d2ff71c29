package library

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/internal/control"
)

// Choose calls choose on rank 0 and returns its result on every rank. It is for a choice that all
// ranks have to make alike, such as the fastest algorithm. An error of choose is an error on every
// rank. So is a choice that hostdata.Broadcast would not carry. op, the name of the calling
// function, appears in errors.
//
// Collective over all ranks, blocking: it is refused while a stream is being captured.
func Choose[T any](w *spmd.World, op string, choose func() (T, error)) (T, error) {
	var none T
	if inside(w).Rank().Capturing() {
		return none, fmt.Errorf("%s: %s: a stream is being captured", ccall.At(), op)
	}
	var told struct {
		Choice  T
		Failure string
	}
	if w.Rank() == 0 {
		var err error
		if told.Choice, err = choose(); err != nil {
			told.Choice, told.Failure = none, err.Error()
		}
	}
	if err := inside(w).Rank().Channel.Tell(control.Choose, &told, 0); err != nil {
		return none, fmt.Errorf("%s: %s: %w", ccall.At(), op, err)
	}
	if told.Failure != "" {
		return none, fmt.Errorf("%s: %s: rank 0: %s", ccall.At(), op, told.Failure)
	}
	return told.Choice, nil
}
