// Recover saves after every step. It fails once, in its fourth step, and goes on from the
// third when it is started again:
//
//	launch run --restarts 1 -np 2 -- recover --checkpoint recovered
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/hostdata"
)

var recoverFolder string

func main() {
	fs := pflag.NewFlagSet("recover", pflag.ExitOnError)
	fs.StringVar(&recoverFolder, "checkpoint", "recovered", "folder of checkpoints")
	spmd.Main(fs, recovered)
}

func recovered(_ context.Context, w *spmd.World) (err error) {
	m, err := checkpoint.Open(w, recoverFolder, checkpoint.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }() // waits for the last save
	x, err := spmd.Alloc[int64](w, 10)
	if err != nil {
		return err
	}
	if err := x.SetAll(0); err != nil {
		return err
	}
	begun, err := m.Load(nil, checkpoint.Replicated("x", x))
	if err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
		return err
	}
	for step := begun; step < 5; step++ {
		if step == 3 && begun == 0 {
			return errors.New("it fails in its fourth step")
		}
		sum, err := hostdata.AllReduce(w.Comm(), int64(step), spmd.Sum)
		if err != nil {
			return err
		}
		if err := errors.Join(x.SetAll(x.At(0)+sum), m.Save(step+1, nil, checkpoint.Replicated("x", x))); err != nil {
			return err
		}
	}
	if w.Rank() == 0 {
		fmt.Printf("from step %d: %d\n", begun, x.At(0))
	}
	return nil
}
