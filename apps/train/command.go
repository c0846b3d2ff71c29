package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/spmd"
)

// command is the command that the first argument asks for: what to do with a run's checkpoint.
// Without one the program trains.
type command struct {
	name, does string // one line, for --help
	// nil if the command starts no ranks
	open func(fs *pflag.FlagSet) (run func(context.Context, *spmd.World) error, check func(ranks int) error)
}

var commands = []command{
	{"sample", "writes text with the model of a checkpoint", openSample},
	{"eval", "measures the loss of a checkpoint's model on text", openEval},
	{"export", "writes the weights of a checkpoint for other programs", openExport},
	{"tokens", "writes the tokens of texts to a file, for other programs too", openTokens},
	{"plan", planned, nil},
}

// runCommand runs the command that the command line begins with. It returns false if there is none.
func runCommand() bool {
	at := 1
	asked := cli.CompletionAsked(os.Args[1:])
	if asked { // behind what the shell asks with
		at = 2
	}
	if len(os.Args) <= at || strings.HasPrefix(os.Args[at], "-") {
		return false
	}
	if asked && len(os.Args) == at+1 && os.Args[at] != "" {
		cli.PrintCompletions(cli.Stdout, completed(os.Args[at]), cli.Nothing, os.Args[1] == cli.CompleteRequest)
		return true
	}
	for _, c := range commands {
		if c.name != os.Args[at] {
			continue
		}
		if c.open == nil {
			runPlan(slices.Delete(os.Args[1:], at-1, at))
		}
		os.Args = slices.Delete(os.Args, at, at+1)
		// The folder may follow the command.
		if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") && !asked {
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

// onHost makes a command run on the host unless --device is given: a GPU would only be in the way.
func onHost(fs *pflag.FlagSet) error {
	if fs.Changed("device") {
		return nil
	}
	return fs.Set("device", "host")
}

// misspelt returns an error if the first argument is nearly a command. It removes the other
// arguments, which are for that command.
func misspelt() error {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		return nil
	}
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	typed := os.Args[1]
	near := cli.Nearest(names, typed)
	if near == "" {
		return nil
	}
	os.Args = os.Args[:1]
	return fmt.Errorf("unknown command %q; did you mean %s?", typed, near)
}

// completed returns the commands that begin with the typed text, as a shell shows them.
func completed(typed string) (lines []string) {
	for _, c := range commands {
		if strings.HasPrefix(c.name, typed) {
			lines = append(lines, c.name+"\t"+c.does)
		}
	}
	return lines
}

// showCommands lists the commands, with lines that one may type.
func showCommands(fs *pflag.FlagSet) {
	fmt.Fprintln(fs.Output(), "train learns from text. Before the flags there may be a command; each has its own "+
		"--help:")
	for _, c := range commands {
		fmt.Fprintf(fs.Output(), "  %-8s %s\n", c.name, c.does)
	}
	fmt.Fprint(fs.Output(), `
Examples:
  mpirun -np 4 bin/train --model modern-tiny --steps 300
  mpirun -np 8 bin/train --model gpt2 --tokens gpt2 --data books/ --global-batch 64 --checkpoint runs/a
  mpirun -np 4 bin/train sample runs/a --prompt "func main"

`)
}
