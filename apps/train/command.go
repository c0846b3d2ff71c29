package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

// A command is the first argument: what to do with a run's checkpoint. Without one the
// program trains.
type command struct {
	name, does string // one line, for --help
	open       func(fs *pflag.FlagSet) (run func(context.Context, *spmd.World) error, check func(ranks int) error)
}

var commands = []command{
	{"sample", "writes text with the model of a checkpoint", openSample},
	{"eval", "measures the loss of a checkpoint's model on text", openEval},
	{"export", "writes the weights of a checkpoint for other programs", openExport},
}

// runCommand runs what the command line begins with; false where that is no command.
func runCommand() bool {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		return false
	}
	for _, c := range commands {
		if c.name != os.Args[1] {
			continue
		}
		os.Args = append(os.Args[:1], os.Args[2:]...)
		// The folder may stand right behind the command.
		if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
			os.Args = append([]string{os.Args[0], "--checkpoint"}, os.Args[1:]...)
		}
		fs := pflag.NewFlagSet("train "+c.name, pflag.ContinueOnError)
		fs.Usage = func() { fmt.Fprintf(fs.Output(), "train %s [CHECKPOINT_DIR] %s\n", c.name, c.does) }
		run, check := c.open(fs)
		spmd.Main(fs, run, check)
		return true
	}
	return false
}

// showCommands tells of the commands.
func showCommands(fs *pflag.FlagSet) {
	fmt.Fprintln(fs.Output(), "train learns from text. Before the flags there may be a command; each has its own --help:")
	for _, c := range commands {
		fmt.Fprintf(fs.Output(), "  %-8s %s\n", c.name, c.does)
	}
}
