package spmd

import "math"

// None is no rank: as the other end of a Send, Recv or SendRecv it leaves that message out. Nothing
// is sent, and a buffer to receive into is unchanged. A rank at the edge of a grid makes the same
// calls as one inside:
//
//	from, to := mesh.Shift("rows", 1) // None where there is no neighbour
//	err := spmd.SendRecv(c, halo, from, edge, to)
//
// The rest of the call is checked as ever. No arithmetic with ranks gives None. Source: mpi.h,
// MPI_PROC_NULL.
const None = math.MinInt32

// half makes the messages of a SendRecv that None has not left out.
func half[T Elem](c Comm, dst Buffer[T], from int, src Buffer[T], to int) error {
	if err := c.in().LeaveOut(c.queue(), "SendRecv", dst.block(), src.block()); err != nil {
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
