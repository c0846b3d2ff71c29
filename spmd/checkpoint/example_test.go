package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
)

// Three ranks save an array of which each has a part. Two ranks go on with it.
func ExampleManager() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	const n = 10
	type work = func(m *checkpoint.Manager, part checkpoint.Item, x spmd.Buffer[int32], off int) error
	on := func(ranks int, do work) error {
		return spmd.Local(context.Background(), spmd.Config{Device: "host", LogLevel: "error"}, ranks,
			func(_ context.Context, w *spmd.World) error {
				mine := spmd.ShardOf(n, w.Rank(), w.Size())
				x, err := spmd.Alloc[int32](w, mine.Len)
				if err != nil {
					return err
				}
				m, err := checkpoint.Open(w, dir, checkpoint.Config{})
				if err != nil {
					return err
				}
				return errors.Join(do(m, checkpoint.Sharded("x", x, mine.Off, n), x, mine.Off), m.Close())
			})
	}
	fmt.Println(on(3, func(m *checkpoint.Manager, part checkpoint.Item, x spmd.Buffer[int32], off int) error {
		for i := range x.Len() {
			x.Set(i, int32(off+i))
		}
		return m.Save(100, "notes", part)
	}))
	fmt.Println(on(2, func(m *checkpoint.Manager, part checkpoint.Item, x spmd.Buffer[int32], off int) error {
		step, err := m.Load(nil, part)
		if off > 0 {
			fmt.Println("step", step, "and the second rank begins with", x.At(0))
		}
		return err
	}))
	// Output:
	// <nil>
	// step 100 and the second rank begins with 5
	// <nil>
}
