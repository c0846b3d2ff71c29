// Train learns a GPT-2-style language model from text. It is data-parallel
// over the ranks of an MPI job:
//
//	mpirun -np 4 bin/train --model tiny --data my/texts
//
// README.md beside this file has the mathematics, the flags and the results to expect.
package main

import (
	"os"

	"github.com/spf13/pflag"

	"lockstep/apps/train/run"
	"lockstep/spmd"
	_ "lockstep/spmd/dashboard" // --dashboard
)

func main() {
	if runCommand() {
		return
	}
	fs := pflag.NewFlagSet("train", pflag.ContinueOnError)
	fs.Usage = func() { showCommands(fs) }
	o := run.New()
	o.Flags(fs)
	wrong := misspelt()
	spmd.Main(fs, o.Run, func(int) error { return wrong }, o.Check)
	if o.Early() {
		os.Exit(o.RequeueStatus)
	}
}
