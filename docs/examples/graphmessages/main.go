// Graphmessages captures messages between ranks that have sent each other none before, beside a
// goroutine that allocates.
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
	spmd.Main(pflag.NewFlagSet("graphmessages", pflag.ExitOnError), graphMessages)
}

func graphMessages(_ context.Context, w *spmd.World) error {
	s, err := w.NewStream("messages")
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[int32](w, 2)
	if err != nil {
		return err
	}
	if err := x.SetAll(int32(w.Rank())); err != nil {
		return err
	}
	allocated := make(chan error, 1)
	go func() { // a capture in one goroutine leaves the others alone
		b, err := spmd.Alloc[float32](w, 1<<20)
		if err == nil {
			err = b.Free()
		}
		allocated <- err
	}()
	left, right := (w.Rank()+w.Size()-1)%w.Size(), (w.Rank()+1)%w.Size()
	g, err := s.Capture(func() error { // a step around the ring
		return errors.Join(spmd.SendRecv(w.Comm().On(s), x.Slice(1, 2), left, x.Slice(0, 1), right),
			spmd.Copy(s, x.Slice(0, 1), x.Slice(1, 2)))
	})
	if err != nil {
		return err
	}
	for range 5 {
		if err := g.Launch(s); err != nil {
			return err
		}
	}
	if err := errors.Join(s.Synchronize(), <-allocated); err != nil {
		return err
	}
	held, err := hostdata.AllGather(w.Comm(), x.At(0))
	if err == nil && w.Rank() == 0 {
		fmt.Println("after 5 replays the ranks hold the numbers of", held)
	}
	return err
}
