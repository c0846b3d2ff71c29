// Broadcastzeros sends rank 0's zeros to every rank, once in the order of a stream and
// once by a call that blocks.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

func main() {
	spmd.Main(pflag.NewFlagSet("broadcastzeros", pflag.ExitOnError), broadcastZeros)
}

func broadcastZeros(_ context.Context, w *spmd.World) error {
	x, err := spmd.Alloc[float32](w, 1000)
	if err != nil {
		return err
	}
	defer x.Free()

	// On a stream: both calls return at once. The zeros are valid for later work in s, and for the
	// host after Synchronize.
	s, err := w.NewStream("zeros")
	if err != nil {
		return err
	}
	if err := errors.Join(x.SetAll(1+float32(w.Rank())), zeroOnRoot(s, x), spmd.Broadcast(w.Comm().On(s), x, 0),
		s.Synchronize()); err != nil {
		return err
	}
	onStream, err := hostdata.AllGather(w.Comm(), x.At(999))
	if err != nil {
		return err
	}

	// Blocking: the input has to be valid when the call is made, and the zeros are valid for
	// everybody when it returns.
	if err := errors.Join(x.SetAll(1+float32(w.Rank())), zeroOnRoot(s, x), s.Synchronize(),
		spmd.Broadcast(w.Comm(), x, 0)); err != nil {
		return err
	}
	blocking, err := hostdata.AllGather(w.Comm(), x.At(999))
	if err == nil && w.Rank() == 0 {
		fmt.Println("on a stream:", onStream, "blocking:", blocking)
	}
	return err
}

func zeroOnRoot(s *spmd.Stream, x spmd.Buffer[float32]) error {
	if s.World().Rank() != 0 {
		return nil
	}
	return spmd.Fill(s, x, 0)
}
