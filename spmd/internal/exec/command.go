package exec

import (
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Kind says what a command is.
type Kind uint8

// The kinds. What a command of a kind has of the fields of Command stands behind it.
const (
	DoCopy     Kind = iota // Dst, Src, N bytes
	DoFill                 // Dst, N, Type, Bits
	DoPrefetch             // Dst, N bytes, Place
	DoKernel               // Kernel, Grid, Args
	DoLibrary              // Library, Args, N bytes of workspace
	DoFunc                 // Func
	DoGraph                // Graph, Notes
	DoCall                 // Call, Notes
	DoRecord               // of the queue alone
	DoWait                 // of the queue alone
)

var kindNames = [...]string{DoCopy: "Copy", DoFill: "Fill", DoPrefetch: "Prefetch", DoKernel: "kernel", DoLibrary: "library", DoFunc: "HostFunc", DoGraph: "graph",
	DoCall: "call", DoRecord: "Record", DoWait: "Wait"}

func (k Kind) String() string { return kindNames[k] }

// Command is one unit of work of a queue. One struct serves all kinds, so that a queue is an array of them and enqueueing
// allocates nothing. Fields that its kind does not have hold what an earlier command left.
type Command struct {
	Kind     Kind
	Type     elem.Type
	Dst, Src unsafe.Pointer
	N        int
	Bits     uint64
	Place    Place
	Kernel   *Kernel
	Grid     Grid
	Args     []Arg // the slot's own
	Library  *Library
	Func     func() error
	Graph    Graph
	Call     Call // the slot's own, to be used again by who enqueues another; nil before the first
	Notes    Notes
	Site     ccall.Site // where it was enqueued, if the queue needs that
}

// SetArgs copies arguments into the command, so that they stay on their caller's stack.
func (c *Command) SetArgs(args []Arg) { c.Args = append(c.Args[:0], args...) }

// Call is a call of a communicator, as queues have it.
type Call interface {
	// Run makes the call on the host, in the turn that it has in MPI.
	Run(turn uint64) error
	// String describes the call in reports.
	String() string
}

// Notes has account kept of commands that communicate.
type Notes interface {
	// Issued says that a command, which was enqueued at a site, is about to be handed to a GPU as number seq of q.
	Issued(q Queue, seq uint64, site *ccall.Site)
}
