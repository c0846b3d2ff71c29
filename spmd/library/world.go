package library

import (
	"time"

	"github.com/spf13/pflag"

	"lockstep/cuda"
	"lockstep/spmd"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/world"
)

func inside(w *spmd.World) *world.World { return (*world.World)(w) }

// GPU returns the device that the world's buffers and streams are on, for libraries that are opened
// for it; nil if that is the host.
func GPU(w *spmd.World) *cuda.Device {
	if d := inside(w).Rank().GPU; d != nil {
		return d.GPU.Dev
	}
	return nil
}

// Quiet waits until no collective that this rank enqueued is in flight. Call it before an operation
// that may wait for the device, such as loading code, or allocating memory by the driver. A
// collective on the device waits for other ranks, which may be waiting for this one. On the host
// there is nothing to wait for.
func Quiet(w *spmd.World) error { return inside(w).Rank().Dev.Quiesce() }

// AtClose has World.Close call fn when the streams are through and the graphs are closed, while all
// else is still there. fn closes what was opened for the GPU, and makes no collective calls. The
// function that was registered last is called first. cancel takes fn back.
func AtClose(w *spmd.World, fn func() error) (cancel func()) { return inside(w).AtClose(fn) }

// Explain puts the text that fn returns before the failures of the device's streams, if it is not
// empty. It is for packages whose kernels say why they have failed.
func Explain(w *spmd.World, fn func() string) { inside(w).Explain(fn) }

// Fail ends the job as a stream that has failed does. It returns.
func Fail(w *spmd.World, err error) { inside(w).Fail(err) }

// Measures reports whether --summary or --trace have this rank see where its time goes.
func Measures(w *spmd.World) bool { return inside(w).Rank().Trace != nil }

// Emitted has Emit on this rank give each line to fn, with its end, until cancel is called. fn
// keeps no bytes of the line.
func Emitted(w *spmd.World, fn func(line []byte)) (cancel func()) { return inside(w).Emitted(fn) }

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

// WorldOf returns the world of c for a call of a package on top of spmd. If this rank cannot make
// calls on c, the error names op and says why not: c is the zero Comm, which has no world, or
// closed, or without this rank.
func WorldOf(c spmd.Comm, op string) (w *spmd.World, err error) {
	in := world.Comm(c).Comm()
	if in != nil {
		w = (*spmd.World)(in.Of().Owner.(*world.World))
	}
	return w, in.Usable(op)
}
