// Command anapp trains a small net, data-parallel: each rank has a part of every batch.
// See README.md.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	_ "lockstep/spmd/dashboard" // --dashboard
	"lockstep/spmd/hostdata"
	"lockstep/spmd/parallel"
	"lockstep/spmd/telemetry"
)

// config is every setting of a run.
type config struct {
	Steps, Batch int
	Rate         float64
	Checkpoint   string
	SaveEvery    int
}

func (c *config) flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Steps, "steps", 1500, "steps")
	fs.IntVar(&c.Batch, "batch", 256, "examples of a step, over all ranks")
	fs.Float64Var(&c.Rate, "rate", 0.02, "learning rate")
	fs.StringVar(&c.Checkpoint, "checkpoint", "", "`DIR` to save to; a run that is there goes on")
	fs.IntVar(&c.SaveEvery, "save-every", 500, "steps between checkpoints")
}

// check runs on every rank before MPI starts: the job ends with one line for bad input.
func (c *config) check(ranks int) error {
	switch {
	case c.Steps < 1:
		return fmt.Errorf("--steps %d: must be at least 1", c.Steps)
	case c.Batch < ranks:
		return fmt.Errorf("--batch %d: fewer examples than the %d ranks", c.Batch, ranks)
	case !(c.Rate > 0):
		return fmt.Errorf("--rate %g: must be above 0", c.Rate)
	case c.SaveEvery < 1:
		return fmt.Errorf("--save-every %d: must be at least 1", c.SaveEvery)
	}
	return nil
}

func main() {
	var c config
	fs := pflag.NewFlagSet("anapp", pflag.ExitOnError)
	c.flags(fs)
	spmd.Main(fs, func(ctx context.Context, w *spmd.World) error {
		loss, err := run(ctx, w, c)
		if err != nil {
			return err // on any rank: the job ends on all of them
		}
		w.Log().Info().Str("loss", spmd.Amount(loss, "")).Msg("done")
		return nil
	}, c.check)
}

// record is a line of --json.
type record struct {
	Step int     `json:"step"`
	Loss float64 `json:"loss"`
}

// look is how many steps are enqueued before the host looks at the loss.
const look = 50

// run trains, and returns the loss of the last step.
func run(ctx context.Context, w *spmd.World, c config) (loss float64, err error) {
	n, err := newNet(w, c.Batch)
	if err != nil {
		return 0, err
	}
	done := 0
	save := func() error { return nil }
	if c.Checkpoint != "" {
		var m *checkpoint.Manager
		if m, err = checkpoint.Open(w, c.Checkpoint, checkpoint.Config{}); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		state := []checkpoint.Item{
			checkpoint.Replicated("p", n.p), checkpoint.Replicated("m", n.m), checkpoint.Replicated("v", n.v),
		}
		if done, err = m.Load(&loss, state...); err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
			return 0, err
		}
		save = func() error { return m.Save(done, loss, state...) }
	}
	if err := parallel.SyncStart(w.Comm(), n.p); err != nil { // all ranks begin with rank 0's
		return 0, err
	}
	p := telemetry.StartWork(w, "training", int64(c.Steps-done), "steps")
	defer p.Done()
	for stop := false; done < c.Steps && !stop; {
		until := min(done+look-done%look, done+c.SaveEvery-done%c.SaveEvery, c.Steps)
		p.Add(int64(until - done))
		for done < until { // nothing waits in here
			done++
			if err := n.step(w.Comm().On(n.s), done, c.Rate); err != nil {
				return 0, err
			}
		}
		loss = float64(n.loss.At(0)) / float64(c.Batch) // waits for the steps
		p.Note("loss %.4f", loss)
		if err := w.Emit(record{done, loss}); err != nil {
			return 0, err
		}
		if stop, err = hostdata.AnyPreempted(ctx, w.Comm()); err != nil { // Slurm's warning, or Ctrl-C
			return 0, err
		}
		if done%c.SaveEvery == 0 || done == c.Steps || stop {
			if err := save(); err != nil {
				return 0, err
			}
		}
	}
	return loss, parallel.CheckSame(w.Comm(), "the parameters", n.p)
}
