package exec

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/trace"
)

type CommandKind uint8

// The kinds. The fields of Command that a kind uses stand behind it.
const (
	DoCopy     CommandKind = iota // Dst, Src, N bytes
	DoFill                        // Dst, N, Type, Bits, Hosted
	DoPrefetch                    // Dst, N bytes, Place
	DoKernel                      // Kernel, Grid, Args
	DoLibrary                     // Library, Args, N bytes of workspace
	DoFunc                        // Func
	DoGraph                       // Capture
	DoCall                        // Call; on a GPU Plan
	DoRecord                      // of the queue alone
	DoWait                        // of the queue alone
)

var kindNames = [...]string{DoCopy: "Copy", DoFill: "Fill", DoPrefetch: "Prefetch", DoKernel: "kernel",
	DoLibrary: "library", DoFunc: "HostFunc", DoGraph: "graph",
	DoCall: "call", DoRecord: "Record", DoWait: "Wait"}

func (k CommandKind) String() string { return kindNames[k] }

// Command is one unit of work of a queue. One struct serves all kinds, so that a queue is an array
// of them and enqueueing allocates nothing. Fields that its kind does not have hold what an earlier
// command left.
type Command struct {
	Kind     CommandKind
	Type     elem.Type
	Dst, Src unsafe.Pointer
	N        int
	Bits     elem.Bits
	Hosted   bool // the host addresses Dst
	Place    Place
	Kernel   *Kernel
	Grid     Grid
	Args     Args // the slot's own
	Library  *Library
	Func     func() error
	Capture  *Capture
	Call     CollectiveCall // the slot's own, to be used again by who enqueues another; nil before the first
	Plan     *Plan          // of Call
	Site     ccall.Site     // where it was enqueued, if the queue needs that
	Blocks   [2]*Block      // that Dst and Src lie in, of what a program copies or fills
}

// SetArgs copies arguments into the command, so that they stay on their caller's stack.
func (c *Command) SetArgs(args []Arg) { c.Args = append(c.Args[:0], args...) }

// Describe says what the command is among the events of a trace, and how many bytes it moves; 0 if
// nobody knows. A call of a communicator says so itself, and an event takes no time: the class of
// both is trace.Classes.
func (c *Command) Describe() (class trace.Class, name string, bytes int) {
	switch c.Kind {
	case DoCopy:
		return trace.Copy, "Copy", c.N
	case DoFill:
		return trace.Copy, "Fill", c.N * c.Type.Size()
	case DoPrefetch:
		return trace.Copy, "Prefetch", c.N
	case DoKernel:
		return trace.Compute, c.Kernel.Name(), c.Args.EachOnce(c.Kernel.Source().Indices)
	case DoLibrary:
		if c.Library.Describe != nil {
			name, bytes = c.Library.Describe(c.Args)
			return trace.Compute, name, bytes
		}
		return trace.Compute, c.Library.Name, 0
	case DoFunc:
		return trace.Compute, "HostFunc", 0
	case DoGraph:
		return trace.Replay, "graph", 0
	case DoWait:
		return trace.Wait, "wait for a stream", 0
	}
	return trace.Classes, "", 0
}

// CollectiveCall is a call of a communicator, as queues have it.
type CollectiveCall interface {
	// Run makes the call on the host, in its turn in MPI. It notes the call among the events of on.
	Run(on *trace.Thread) error
	// Issue hands the call to its transport on a GPU, as command number seq of the queue. seq is 0
	// in a capture. work is the scratch memory of the plan.
	Issue(q Issuer, seq uint64, work unsafe.Pointer) error
	// Touches calls fn with the memory that the call reads or writes, and returns the call's name.
	Touches(fn func(b *Block, p unsafe.Pointer, bytes int, writes bool)) string
	// Captured adds the call to what a capture has of its communicator.
	Captured(parties []Party) []Party
	// Traced returns the communicator as traces have it; nil if there is no trace.
	Traced() *trace.Ledger
	// String describes the call in reports.
	String() string
}

// Issuer is a queue of a GPU while a call is issued on it.
type Issuer interface {
	Stream() *cuda.Stream
	// Hand has the host do a job while the stream waits for it.
	Hand(j HostJob) error
}

// Plan has what a queue of a GPU must know of a call before it issues the call.
type Plan struct {
	By    any  // whoever has the calls that are by it in one order; nil if nobody has
	Alone bool // no other rank takes part
	Fills bool // memory is filled with values of 8 bytes
	Bytes int  // of scratch memory
	// For traces: the call, its calls if it is a group, and the ranks of its communicator.
	What  *coll.Call
	Group trace.Group
	Size  int
}

// Direct is a queue of a GPU on which its caller can make calls itself.
type Direct interface {
	Queue
	Stream() *cuda.Stream
	// Ready says why the queue takes no more commands, or nil.
	Ready() error
	// Now makes room for a call that no command stands for. It returns the scratch memory of the
	// plan. The call gets its place in the order of collectives together with what take takes.
	Now(p *Plan, take func()) (work unsafe.Pointer, err error)
	// Count counts a command that the caller has issued on the stream.
	Count()
	// Used notes that the last command that was counted uses a block, which may be nil.
	Used(b *Block)
}

// Party is what a capture has of a communicator.
type Party interface {
	// Replays says that a replay of a capture is about to be handed to a GPU, as number seq of q.
	Replays(q Queue, seq uint64)
	// Traced returns the communicator as traces have it; nil if there is no trace.
	Traced() *trace.Ledger
	// Closed says that it makes no more calls.
	Closed() bool
}
