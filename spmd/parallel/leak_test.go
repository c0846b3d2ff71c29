package parallel

import (
	"errors"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// The test opens and closes everything of spmd and parallel that a program opens, often, and counts
// what is left.
func TestNothingIsLeft(t *testing.T) {
	rounds := testkit.Few(t, "rounds", 1000, 10_000)
	spmdtest.RunInProcess(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		c, n := w.Comm(), w.Size()
		x := make([]spmd.Buffer[float32], 2)
		for i := range x {
			x[i] = spmdtest.Alloc[float32](t, w, 4*n)
		}
		parts := []spmd.Buffer[float32]{spmdtest.Alloc[float32](t, w, 4), spmdtest.Alloc[float32](t, w, 4)}
		round := func() error {
			var err error
			note := func(e error) { err = errors.Join(err, e) }
			s, e := w.NewStream("s")
			note(e)
			early, e := w.NewEvent()
			note(e)
			b, e := spmd.Alloc[int8](w, 100)
			note(e)
			half, e := c.Split(min(w.Rank(), 1), 0)
			note(e)
			if err != nil {
				return err
			}
			g, e := s.Capture(func() error {
				return errors.Join(spmd.Fill(s, b, 1), spmd.AllReduce(half.On(s), b, b, spmd.Max))
			})
			note(e)
			note(g.Launch(s))
			note(early.Record(s))
			note(early.Synchronize())
			r, e := NewReducer(c, x, ReducerConfig{})
			note(e)
			gather, e := NewGatherer(c, x, GathererConfig[float32]{})
			note(e)
			scatter, e := NewScatterer(c, x, parts, spmd.Sum)
			note(e)
			p, e := NewPipeline[float32](c, 8, 2)
			note(e)
			if err != nil {
				return err
			}
			return errors.Join(r.Close(), gather.Close(), scatter.Close(), p.Close(), g.Close(),
				early.Close(), early.Close(), s.Close(), half.Close(), b.Free())
		}
		spmdtest.NothingIsLeft(t, w, rounds, round)
	})
}
