// Package own has what packages of this module on top of spmd need and others do not.
package own

import (
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/world"
)

func inside(w *spmd.World) *world.World { return (*world.World)(w) }

// Explain puts the text that fn returns before the failures of the device's streams, if it is not
// empty. It is for packages whose kernels say why they have failed.
func Explain(w *spmd.World, fn func() string) { inside(w).Explain(fn) }

// Fail ends the job as a stream that has failed does. It returns.
func Fail(w *spmd.World, err error) { inside(w).Fail(err) }

// Measures reports whether --summary or --trace have this rank see where its time goes.
func Measures(w *spmd.World) bool { return inside(w).Rank().Trace != nil }

// Slowest returns, on rank 0, the rank that the others have waited for lately. It is false if none
// clearly is, or if it is not known: on other ranks, at the start, with --summary off, and for
// collectives in graphs.
func Slowest(w *spmd.World) (rank int, known bool) { return inside(w).Slowest() }

// Opened returns, by kind, how many objects are open that have to be closed, or freed.
func Opened(w *spmd.World) map[string]int { return inside(w).Rank().Opened() }

// Flags returns the flags of the command line that Main has parsed; nil for a world of Open and
// Local.
func Flags(w *spmd.World) *pflag.FlagSet { return inside(w).Flags() }

// Timeout returns the longest time that the watch gives a collective.
func Timeout(w *spmd.World) time.Duration { return inside(w).Timeout() }

// Files watches a rank's work with files that may be slow, or never answer. A rank in Do, or
// between Enter and the call of the function that this returns, is not missing from a collective.
// Its step has a limit of its own, and a report names the step.
type Files = job.FileWork

// FilesOf returns this rank's Files.
func FilesOf(w *spmd.World) *Files { return inside(w).Files() }

// Versions returns the versions of the libraries that are found here, by name, or why one is not.
func Versions() map[string]string { return world.Libraries() }

// CheckBuffer returns nil if w can use b. Else the error says why not: b was freed, or is another
// world's.
func CheckBuffer[T spmd.Stored](b spmd.Buffer[T], w *spmd.World) error {
	return inside(w).Rank().CheckBlock(exec.Part(b).Block())
}

// Join returns one buffer of two that follow each other in one allocation, in either order. It
// returns false if they do not.
func Join[T spmd.Stored](a, b spmd.Buffer[T]) (spmd.Buffer[T], bool) {
	whole, ok := exec.Join(exec.Part(a), exec.Part(b))
	return spmd.Buffer[T](whole), ok
}

// Scratch returns one element of the workspace of s, for its next kernels and all-reduces. These,
// and functions between them, may overwrite the skip elements before it.
func Scratch[T spmd.Elem](s *spmd.Stream, skip int) (spmd.Buffer[T], error) {
	on := (*world.Stream)(s)
	bytes, err := calls.SizeOf(elem.Of[T](), skip+1)
	if err != nil {
		return spmd.Buffer[T]{}, err
	}
	b, err := on.Queue().Scratch(bytes)
	if err != nil {
		return spmd.Buffer[T]{}, err
	}
	b.Owner = on.Rank()
	return spmd.Buffer[T](exec.NewPart(b, skip, 1)), nil
}

// Overlap reports whether two buffers share memory.
func Overlap[T spmd.Stored](a, b spmd.Buffer[T]) bool {
	return exec.Overlap(a.Arg().Ptr, a.Bytes(), b.Arg().Ptr, b.Bytes())
}
