package spmd

import (
	"fmt"
	"math"

	"lockstep/internal/ccall"
)

// None is no rank: as the other end of a Send, Recv or SendRecv it leaves that message out. Nothing is sent, and what
// would be received into stays as it is. A rank at the edge of a grid makes the same calls as one inside:
//
//	from, to := mesh.Shift("rows", 1) // None where there is no neighbour
//	err := spmd.SendRecv(c, halo, from, edge, to)
//
// The rest of the call is checked as ever. No arithmetic with ranks has it as a result.
// Source: mpi.h, MPI_PROC_NULL.
const None = math.MinInt32

// leaveOut is a message whose other end is None: it refuses what any message refuses.
func (c Comm) leaveOut(op string, a, b *block) error {
	if err := c.check(op); err != nil {
		return err
	}
	w := c.st.w
	for _, blk := range [...]*block{a, b} {
		if err := w.checkBlock(blk); err != nil {
			return err
		}
	}
	switch {
	case c.st.open != nil && c.s != c.st.open.s:
		return fmt.Errorf("%s: a call in a Group on another stream than the group's", ccall.At())
	case c.st.open == nil && c.s == nil && w.capturing.Load() != 0:
		return fmt.Errorf("%s: a message that blocks in the middle of a capture: use comm.On(stream)", ccall.At())
	}
	return nil
}

// half is a SendRecv of which None leaves out one message or both.
func half[T Elem](c Comm, dst Buffer[T], from int, src Buffer[T], to int) error {
	if err := c.leaveOut("SendRecv", dst.blk, src.blk); err != nil {
		return err
	}
	switch {
	case to != None:
		return Send(c, src, to)
	case from != None:
		return Recv(c, dst, from)
	}
	return nil
}
