// Command bench measures the framework and its yardsticks on this machine, in turn, and writes one
// JSON line for each comparison:
//
//	make bench                                 all rows
//	bin/bench --only reduce                    one group
//	bin/bench --only gpu                       all groups that need GPUs
//	bin/bench --llmc path/to/train_gpt2        training too, against that program
//	bin/bench sweep                            collectives by size, the apps by ranks, with plots
//	bin/bench ways                             which sizes NCCL's symmetric kernels carry faster
//	bin/bench train                            GPT-2s learn on GPUs, beside PyTorch
//	bin/bench ttl --text FILE                  seconds to a loss on a GPU, beside PyTorch's
//	bin/bench loss --text FILE                 a GPT-2's loss on a GPU, step by step beside PyTorch's
//
// It runs programs that are already built, so it needs no Go. It compiles the C programs.
// bench/README.md describes rows and fields.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"lockstep/bench/measure"
	"lockstep/bench/sweep"
	"lockstep/internal/cli"
)

func main() {
	if err := os.Setenv("LOCKSTEP_RUNS", "off"); err != nil { // measured programs keep no run folders
		panic(err)
	}
	run := runner
	if args := os.Args[1:]; cli.CompletionAsked(args) && len(args) > 2 && !strings.HasPrefix(args[1], "-") {
		args[0], args[1] = args[1], args[0] // the command first
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sweep":
			run = sweep.Command
		case "ways":
			run = sweep.Ways
		case "rank":
			run = func() error { measure.Calls(); return nil }
		case "sweep-rank":
			run = func() error { measure.Collectives(); return nil }
		case "train":
			run = trainCommand
		case "loss":
			run = lossCommand
		case "ttl":
			run = ttlCommand
		default:
			os.Args = slices.Insert(os.Args, 1, "")
		}
		os.Args = slices.Delete(os.Args, 1, 2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of this command without a subcommand.
type bench struct{ measure.Harness }

func runner() error {
	var only []string
	var b bench
	fs := pflag.NewFlagSet("bench", pflag.ExitOnError)
	fs.StringSliceVar(&only, "only", nil,
		"what to run: "+strings.Join(measure.Sets, ", ")+", or groups: "+strings.Join(names(), ", ")+" (default all)")
	fs.StringVar(&b.Out, "out", "bench/results",
		"`DIR` for host.jsonl and gpu.jsonl; rows of groups that are not run are kept")
	fs.StringVar(&b.Bin, "bin", "bin", "`DIR` of the built programs reduce, matvec, stencil and train")
	fs.StringVar(&b.CSources, "c-sources", "bench/c", "`DIR` of the C programs' sources")
	fs.StringVar(&b.Commit, "commit", "", "what the programs were built from (default what git says here)")
	fs.IntVar(&b.Rounds, "rounds", measure.DefaultRounds, "turns of each side; the median counts")
	fs.StringVar(&b.LLMC, "llmc", "",
		"llm.c's train_gpt2, built for this machine, to compare training with; it is run in its folder")
	if err := measure.Parse(fs); err != nil {
		return err
	}
	for _, o := range only {
		if !slices.Contains(names(), o) && !slices.Contains(measure.Sets, o) {
			return fmt.Errorf("--only %s: want %s, %s",
				o, strings.Join(measure.Sets, ", "), strings.Join(names(), ", "))
		}
	}
	if b.Rounds < 1 {
		return fmt.Errorf("--rounds %d: must be at least 1", b.Rounds)
	}
	defer func() { os.RemoveAll(b.Dir) }()
	if err := b.Prepare(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal ends this process
	measure.Interrupted = ctx
	var failed []error
	for _, set := range measure.Sets {
		if err := b.runSet(set, only); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// runSet runs the groups of a set that were asked for, and writes its file.
func (b *bench) runSet(set string, only []string) error {
	var run []*group
	for i, g := range groups {
		if g.set == set && (len(only) == 0 || slices.Contains(only, g.name) || slices.Contains(only, set)) {
			run = append(run, &groups[i])
		}
	}
	switch {
	case len(run) == 0:
		return nil
	case set == measure.GPUSet && len(b.GPUs) == 0:
		fmt.Fprintf(os.Stderr, "bench: %s is skipped: %s\n", set, b.WhyNoGPU)
		return nil
	}
	file := filepath.Join(b.Out, set+".jsonl")
	rows, err := measure.ReadRows(file)
	if err != nil {
		return err
	}
	var failed []error
	defer b.Doing.Done()
	measured := 0
	for i, g := range run {
		if measure.Interrupted.Err() != nil {
			failed = append(failed, fmt.Errorf("interrupted: what had been measured before is in %s", file))
			break
		}
		b.Set, b.Group, b.Rows = g.set, g.name, nil
		b.Doing.Say(g.name, i+1, len(run), measured)
		err := g.run(b)
		measured += len(b.Rows)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", g.name, err))
		}
		rows = merge(rows, b.Rows, g.name, err == nil)
		if err := measure.WriteRows(file, rows); err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
	b.Doing.Done()
	measure.Print(rows)
	return errors.Join(failed...)
}

// merge puts the new rows of a group among the others, in the order of groups. A group that
// ended well keeps only its new rows. A group that failed keeps the old rows that it did not
// measure again.
func merge(rows, measured []measure.Row, name string, whole bool) []measure.Row {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r measure.Row) bool {
		return r.Bench == name && (whole ||
			slices.ContainsFunc(measured, func(m measure.Row) bool { return m.What == r.What }))
	})
	rows = append(rows, measured...)
	place := names()
	slices.SortStableFunc(rows, func(a, b measure.Row) int {
		return cmp.Compare(slices.Index(place, a.Bench), slices.Index(place, b.Bench))
	})
	return rows
}
