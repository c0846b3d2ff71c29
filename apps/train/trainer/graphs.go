package trainer

import (
	"errors"
	"fmt"

	"lockstep/spmd"
)

// graphs replays the commands of micro-steps (--graph).
type graphs struct {
	s    *spmd.Stream
	made map[microKind]*spmd.Graph // of the kinds met so far
}

// openGraphs returns nil if micro-steps are not to become graphs.
func openGraphs(t *Trainer) (*graphs, error) {
	if want, err := t.wantGraphs(); err != nil || !want {
		return nil, err
	}
	x := &graphs{s: t.Stream, made: map[microKind]*spmd.Graph{}}
	t.keep(x.close)
	return x, nil
}

// wantGraphs reports whether micro-steps become graphs. By default they do on a GPU: a replay costs
// the host less than enqueuing again. It fails if --graph on asks for graphs that the communicator
// cannot be in.
func (t *Trainer) wantGraphs() (bool, error) {
	switch t.Graph {
	case "off":
		return false, nil
	case "on":
		if err := t.all.Capturable(); err != nil {
			return false, spmd.Usage(fmt.Errorf("--graph on: %w", err))
		}
		return true, nil
	}
	if t.World.OnHost() {
		return false, nil
	}
	if err := t.all.Capturable(); err != nil {
		t.World.Log().Info().AnErr("why", err).Msg("steps are not graphs")
		return false, nil
	}
	return true, nil
}

// run enqueues the commands of a micro-step. The first of a kind runs as commands, so that kernels
// are loaded and libraries have their memory. The second is captured, and replayed from then on.
//
// All ranks capture in the same step, since each ends every step with a micro-step of the same
// kind. Without graphs, when x is nil, run enqueues the commands.
func (x *graphs) run(k microKind, commands func() error) error {
	if x == nil {
		return commands()
	}
	g, met := x.made[k]
	switch {
	case !met:
		x.made[k] = nil
		return commands()
	case g == nil:
		var err error
		if g, err = x.s.Capture(commands); err != nil {
			return err
		}
		x.made[k] = g
	}
	return g.Launch(x.s)
}

// close waits for the replays and closes the graphs.
func (x *graphs) close() error {
	var errs []error
	for _, g := range x.made {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}
