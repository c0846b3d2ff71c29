// Train learns a GPT-2-style language model from text, data-parallel over the
// ranks of an MPI job:
//
//	mpirun -np 4 bin/train --model tiny --data my/texts
//
// README.md beside this file has the mathematics, the flags and what to expect.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"lockstep/internal/plain"
	"lockstep/spmd"
)

func main() {
	if runCommand() {
		return
	}
	fs := pflag.NewFlagSet("train", pflag.ContinueOnError)
	fs.Usage = func() { showCommands(fs) }
	o := newOptions()
	o.flags(fs)
	spmd.Main(fs, o.run, o.check)
	if o.early {
		os.Exit(o.requeueStatus)
	}
}

// run is the program, on every rank.
func (o *options) run(ctx context.Context, w *spmd.World) (err error) {
	var stop <-chan struct{} // without checkpoints a signal ends the job at once
	if o.checkpoint != "" {
		stop = spmd.Preempted(ctx)
	}
	if err := o.settle(w); err != nil {
		return err
	}
	f, err := o.openTokens(w)
	if err != nil {
		return usage(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	c, err := o.openSaver(w, f.key())
	if err != nil {
		return err
	}
	if c != nil {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	learned := f.len()
	if v, ok := f.(withVal); ok {
		learned = v.train.len()
	}
	if err := o.fit(w, learned); err != nil {
		return err
	}
	data, err := newDataset(f, o.seq, o.globalBatch, w.Seed())
	if err != nil {
		return usage(err) // the same on every rank: they have the same data
	}
	t, err := newTrainer(w, w.Comm(), o.trainConfig(), data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := c.start(t); err != nil {
		return usage(err)
	}
	if o.early, err = o.train(ctx, w, t, c, stop); err != nil || o.early {
		return err
	}
	if o.sample == 0 {
		return nil
	}
	together, err := t.toGenerate()
	if err != nil || w.Rank() != 0 && !together {
		return err
	}
	text, err := t.generate(ctx, o.tok, o.prompt, o.sample, o.temperature, w.Seed())
	if err != nil || w.Rank() != 0 {
		return err
	}
	out := io.Writer(os.Stdout)
	if o.json() == "-" { // standard output is for the measurements
		out = os.Stderr
	}
	_, err = fmt.Fprintf(out, "\n%s\n", plain.Text(string(text)))
	return err
}

// usage marks bad input as such for spmd.Main.
func usage(err error) error {
	if errors.As(err, new(inputError)) {
		return spmd.Usage(err)
	}
	return err
}

// openTokens reads the data, the ranks of each node together, and checks that all
// nodes have read the same.
func (o *options) openTokens(w *spmd.World) (tokenData, error) {
	f, err := o.readTokens(w, o.inputs)
	if err == nil && len(o.valInputs) > 0 {
		v, verr := o.readTokens(w, o.valInputs)
		if verr != nil {
			return nil, errors.Join(aboutVal(verr), f.Close())
		}
		f = withVal{f, v}
	}
	all := commGroup(w, w.Comm())
	var key []byte
	if err == nil {
		key = f.key()
	}
	keys, err := all.gather(key, err)
	if err != nil {
		return nil, err
	}
	for r, k := range keys {
		if string(k) != string(keys[0]) {
			return nil, errors.Join(badInput("--data: rank 0 and rank %d, on another node, read different contents", r), f.Close())
		}
	}
	return f, nil
}

// readTokens reads some inputs: texts, or token files of llm.c.
func (o *options) readTokens(w *spmd.World, inputs []input) (tokenData, error) {
	g, d := commGroup(w, w.NodeComm()), dataOptions{
		inputs: inputs, tokens: o.tok, cache: o.cache, threads: w.Threads(), log: *w.Log(),
		progress: func(what string, total int64) *meter { return newMeter(w, what, total, true) },
	}
	if isBin(inputs[0]) {
		return openBins(g, d)
	}
	f, err := openData(g, d)
	if err != nil {
		return nil, err // not a nil file in an interface
	}
	return f, nil
}

// commGroup makes a group of the ranks of a communicator.
func commGroup(w *spmd.World, c spmd.Comm) group {
	return group{c.Rank(), c.Size(), func(mine []byte) ([][]byte, error) {
		lens, err := gatherOne(w, c, int64(len(mine)))
		if err != nil {
			return nil, err
		}
		counts, total := make([]int, len(lens)), 0
		for r, n := range lens {
			counts[r] = int(n)
			total += int(n)
		}
		all, err := spmd.Alloc[uint8](w, total)
		if err != nil {
			return nil, err
		}
		defer all.Free()
		at := 0
		for _, n := range counts[:c.Rank()] {
			at += n
		}
		part := all.Slice(at, at+len(mine))
		if err := part.CopyFrom(mine); err != nil {
			return nil, err
		}
		if err := spmd.AllGatherV(c, all, part, counts); err != nil {
			return nil, err
		}
		flat, parts := make([]byte, total), make([][]byte, len(counts))
		if err := all.CopyTo(flat); err != nil {
			return nil, err
		}
		for r, n := range counts {
			parts[r], flat = flat[:n:n], flat[n:]
		}
		return parts, nil
	}}
}

// gatherOne returns every rank's v.
func gatherOne(w *spmd.World, c spmd.Comm, v int64) ([]int64, error) {
	b, err := spmd.Alloc[int64](w, c.Size())
	if err != nil {
		return nil, err
	}
	defer b.Free()
	mine := b.Slice(c.Rank(), c.Rank()+1)
	if err := mine.CopyFrom([]int64{v}); err != nil {
		return nil, err
	}
	if err := spmd.AllGather(c, b, mine); err != nil {
		return nil, err
	}
	all := make([]int64, c.Size())
	return all, b.CopyTo(all)
}
