// Group starts two all-reduces and the messages of a ring together, as one operation.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("group", pflag.ExitOnError), group)
}

func group(_ context.Context, w *spmd.World) error {
	x, err := spmd.Alloc[int64](w, 4) // the two sums, a number to send, one received
	if err != nil {
		return err
	}
	r := int64(w.Rank())
	if err := x.CopyFrom([]int64{r, 10 * r, 100 * r, -1}); err != nil {
		return err
	}
	part := func(i int) spmd.Buffer[int64] { return x.Slice(i, i+1) }
	err = w.Comm().Group(func() error { // all start when this function returns: sending first does not block anybody
		return errors.Join(
			spmd.AllReduce(w.Comm(), part(0), part(0), spmd.Sum),
			spmd.AllReduce(w.Comm(), part(1), part(1), spmd.Max),
			spmd.Send(w.Comm(), part(2), (w.Rank()+1)%w.Size()),
			spmd.Recv(w.Comm(), part(3), (w.Rank()+w.Size()-1)%w.Size()),
		)
	})
	if err != nil {
		return err
	}
	if w.Rank() == 0 {
		fmt.Println("sum", x.At(0), "maximum", x.At(1), "from the left", x.At(3))
	}
	return nil
}
