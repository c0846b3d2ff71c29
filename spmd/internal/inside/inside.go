// Package inside is the door that spmd opens to the packages on top of it, spmd/checkpoint, spmd/ddp and spmd/timing, for what
// they need and no application does.
//
// spmd imports this package and fills the variables when it is initialised, which is before any package that imports spmd.
// So they cannot name types of spmd: each holds a function whose type stands in its comment. Who needs one asserts that type
// once, in a variable of its package:
//
//	var insideOf = inside.World.(func(*spmd.World) inside.Rank)
//
// A mistake ends every program with that package at its start, and a call costs no more than any other.
package inside

import (
	"time"

	"github.com/spf13/pflag"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/files"
)

// Rank is what a world has beside its public methods.
type Rank struct {
	Channel *control.Channel // between all ranks of the world
	Files   *files.Work      // what the rank does with files
	Timeout time.Duration    // of the watch: how long a collective may take
	Flags   *pflag.FlagSet   // of the command line; nil where there is none

	// Measures says whether --summary or --trace have this rank see where its time goes.
	Measures bool
	// Libraries returns the versions of those that are found here, or why one is not.
	Libraries func() map[string]string
	// Opened returns how many of what has to be closed, or freed, is not, by kind.
	Opened func() map[string]int
	// Emitted has World.Emit on this rank give each line to fn, until cancel.
	Emitted func(fn func(line []byte)) (cancel func())
	// Slowest returns, on rank 0, the rank that the others have waited for lately. It is false where none is clearly, or it is
	// not known: on other ranks, at the start, with --summary off, and of collectives in graphs.
	Slowest func() (rank int, known bool)
}

var (
	// World is a func(*spmd.World) inside.Rank.
	World any
	// Comm is a func(c spmd.Comm, op string) (*spmd.World, error): the world of c, and why op cannot be called on it. The zero
	// Comm has no world.
	Comm any
	// Fail is a func(*spmd.World, error), which ends the job as a failed stream does.
	Fail any
	// CheckBuffer is a func(w *spmd.World, b any) error, which refuses a Buffer that was freed or is another world's.
	CheckBuffer any
	// Overlap is a func(a, b any) bool: whether two Buffers share memory.
	Overlap any
	// Join is a func(a, b any) (any, bool): the Buffer of two of one type that follow each other in one allocation, in either
	// order; false where they do not.
	Join any
	// Await is a func(s *spmd.Stream, b any) (mark func(), wait func() error, err error): spmd.Await for many turns. mark comes
	// before what is enqueued.
	Await any
	// Bytes is a func(b any) spmd.Buffer[uint8]: the memory of a Buffer of any type.
	Bytes any
	// Scratch is a func(s *spmd.Stream, t elem.Type, skip int) (spmd.Arg, error): one element of a stream's workspace, as an
	// argument of its next kernels, behind so many that libraries among them may overwrite.
	Scratch any
	// Explain is a func(w *spmd.World, fn func() string): what fn returns is put before the failures of the device's streams.
	Explain any
)
