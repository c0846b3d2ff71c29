package transport

import (
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/cuda"
	"lockstep/spmd/internal/peer"
)

// Backend opens transports that carry calls on device memory between ranks. The registry of
// package route has all of them.
type Backend interface {
	// Name is its value of --collectives.
	Name() string
	// Probe returns why this rank, whose communicators are like h, cannot use it; nil if it can. It
	// is asked before a device is open.
	Probe(h Host) error
	// Joins says that it connects the ranks itself. Then ranks may wait in Open for one that
	// failed. The transport of a part of a communicator is split from the whole's transport.
	// Without Joins the host makes the calls, through MPI.
	Joins() bool
	// Open makes the transport of a communicator of several ranks.
	//
	// Collective over at.Host, blocking, in the caller's turn; no collective is in flight.
	Open(at Site) (Opened, error)
}

// Versioned is a Backend of a library with a version; "" if it is not loaded.
type Versioned interface {
	Backend
	Version() string
}

// Site is where a backend opens a transport.
type Site struct {
	Host  Host // the communicator in host memory
	Dev   *cuda.Device
	Word  unsafe.Pointer // of the device's memory, never read
	Nodes int            // of the job
	Log   *zerolog.Logger
	Begin func(part string) (done func()) // of the start, for the log
	Else  string                          // why no better backend carries the calls, for Why
}

// Opened is a transport that a backend has opened.
type Opened interface {
	Transport
	// Why returns why it carries calls in the way that it does; "" if there is one way. doubtful
	// says that the way was asked for, though it may not work.
	Why() (why string, doubtful bool, err error)
	// Linked says that NVLink joins all GPUs, and that the caller has to keep the transport's calls
	// apart from other calls.
	Linked() bool
	// Peers are kernels between GPUs that it has itself, and closes; nil if it has none.
	Peers() *peer.Clique
	// Close gives it back. No graph may hold its calls any more. Collective.
	Close() error
}

// Splitter is an Opened of a backend that Joins.
type Splitter interface {
	Opened
	// Split makes the transport of a part, as the Split of its communicator does; nil if color is
	// below zero.
	Split(color, key int) (Opened, error)
	// Failure returns what has gone wrong on the device since a call returned; nil if nothing has.
	Failure() error
}
