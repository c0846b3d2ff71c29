// Package transport describes what carries the calls of a communicator, and carries those between
// ranks that are goroutines of one process: without MPI, over plain memory. A Team of several ranks
// starts and ends in microseconds. Self carries those of a communicator of one rank on a device.
//
// Package carriers has the other transports: MPI on host memory, NCCL, kernels between GPUs that
// reach each other, MPI on device memory. route.Router decides once, when a call is issued, which
// of them carries it.
package transport

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
)

// Transport carries calls of one communicator. Every rank gives it the same collectives in the same
// order. It is used by one goroutine at a time.
type Transport interface {
	// Name returns what users and logs call it.
	Name() string
	// Caps returns what the transport can do. It is the same at all times, and on all ranks.
	Caps() *Caps
	// Do makes a call that Caps.Kinds has. One that is enqueued on q runs after what q
	// holds, and Do returns at once.
	Do(q Issuer, c coll.Call) error
	// Group makes messages that need each other and, where Caps.Merges, collectives: they
	// start together. work is device memory of Scratch bytes, which remains until they
	// are over. It keeps none of cs.
	Group(q Issuer, cs []coll.Call, work unsafe.Pointer) error
	// Scratch returns the bytes of device memory that Group needs for n messages.
	Scratch(n int) int
}

// Caps are what a transport can do.
type Caps struct {
	coll.Library       // what it does itself; the rest is made of that
	Host         bool  // it carries host memory, and has no queue: a call is over when Do returns
	Alone        bool  // no other rank takes part
	Merges       bool  // Group takes collectives
	Ordered      bool  // calls on different queues run in the order in which they were given to it
	Hands        bool  // it makes calls by Queue.Hand
	Now          bool  // a call that blocks its caller is made by it at once, on a Bare queue
	Blocks       bool  // so is each call that is not captured, since the library waits for all streams
	NoGraph      error // why graphs cannot hold its calls
}

// Issuer is a stream of a device, as transports see it.
type Issuer = exec.Issuer

// HostJob is a stream's work for the host.
type HostJob = exec.HostJob

// Bare is a queue whose jobs the caller does at once.
type Bare struct{ S *cuda.Stream }

func (b Bare) Stream() *cuda.Stream { return b.S }

// Hand implements Queue. Nothing holds the stream.
func (b Bare) Hand(j HostJob) error { return j.Run() }

// Memory says what a call does with memory that NCCL knows, or that may be faster.
type Memory uint8

// The bits of Memory.
const (
	FromSymmetric Memory = 1 << iota
	IntoSymmetric
	InPlace
)
