// Refused makes calls that cannot work. Each returns an error on every rank before anything is
// sent, and the program goes on.
package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("refused", pflag.ExitOnError), refused)
}

func refused(_ context.Context, w *spmd.World) error {
	x, err := spmd.Alloc[float32](w, 10)
	if err != nil {
		return err
	}
	tell := func(err error) {
		if err == nil || w.Rank() != 0 {
			return
		}
		_, what, _ := strings.Cut(err.Error(), ": ") // the place in the source stands before it
		fmt.Println("refused:", what)
	}
	_, err = spmd.Alloc[float32](w, -1)
	tell(err)
	tell(x.CopyFrom(make([]float32, 3)))
	tell(spmd.AllReduce(w.Comm(), x, x.Slice(0, 9), spmd.Sum))
	tell(spmd.Broadcast(w.Comm(), x, w.Size()))
	if err := x.Free(); err != nil {
		return err
	}
	tell(spmd.AllReduce(w.Comm(), x, x, spmd.Sum))
	return spmd.Barrier(w.Comm()) // all ranks are there, and nothing is in flight
}
