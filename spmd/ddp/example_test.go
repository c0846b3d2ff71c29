package ddp_test

import (
	"context"
	"errors"
	"fmt"

	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

// The gradients of two layers are added over the ranks while the backward pass goes on: the last layer's first.
func ExampleReducer() {
	err := spmd.Local(context.Background(), spmd.Config{Device: "host", LogLevel: "error"}, 2, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("backward")
		last, err2 := spmd.Alloc[float32](w, 100)
		first, err3 := spmd.Alloc[float32](w, 100)
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		r, err := ddp.NewReducer(w.Comm(), []spmd.Buffer[float32]{last, first}, ddp.ReducerConfig{})
		if err != nil {
			return err
		}
		err = errors.Join(
			spmd.Fill(s, last, float32(1+w.Rank())), // stands for a layer's backward pass
			r.Ready(0, s),
			spmd.Fill(s, first, 10),
			r.Ready(1, s),
			r.Wait(s), // what comes now on s has the sums
			s.Synchronize())
		if w.Rank() == 0 {
			fmt.Println(last.At(0), first.At(99))
		}
		return errors.Join(err, r.Close())
	})
	fmt.Println(err)
	// Output:
	// 3 20
	// <nil>
}
