// Command anapp solves a linear system whose rows are divided over the ranks. See README.md.
package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	_ "lockstep/spmd/dashboard" // --dashboard
	"lockstep/spmd/hostdata"
)

// config is every setting of a run.
type config struct {
	Side      int
	Tolerance float64
	MaxSteps  int
}

func (c *config) flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Side, "side", 256, "points of the grid in each direction")
	fs.Float64Var(&c.Tolerance, "tolerance", 1e-10, "end where the residual is this part of the first")
	fs.IntVar(&c.MaxSteps, "max-steps", 10_000, "fail after so many steps")
}

// check runs on every rank before MPI starts: the job ends with one line for bad input.
func (c *config) check(ranks int) error {
	switch {
	case c.Side < ranks:
		return fmt.Errorf("--side %d: fewer rows than the %d ranks", c.Side, ranks)
	case c.Side > 1<<20:
		return fmt.Errorf("--side %d: at most %d", c.Side, 1<<20)
	case !(c.Tolerance > 0 && c.Tolerance < 1):
		return fmt.Errorf("--tolerance %g: must be between 0 and 1", c.Tolerance)
	case c.MaxSteps < 1:
		return fmt.Errorf("--max-steps %d: must be at least 1", c.MaxSteps)
	}
	return nil
}

func main() {
	var c config
	fs := pflag.NewFlagSet("anapp", pflag.ExitOnError)
	c.flags(fs)
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		r, err := run(w, c)
		if err != nil {
			return err // on any rank: the job ends on all of them
		}
		w.Log().Info().Int("steps", r.Steps).Str("took", spmd.Amount(r.MS/1e3, "s")).
			Str("residual", spmd.Amount(r.Residual, "")).Str("max_err", spmd.Amount(r.MaxErr, "")).
			Msg("done") // --json has all digits
		return w.Emit(r) // rank 0 writes one line of JSON where --json says
	}, c.check)
}

// result is the line of --json about the whole run, behind the lines of its steps.
type result struct {
	Summary  bool    `json:"summary"`
	App      string  `json:"app"`
	Ranks    int     `json:"ranks"`
	Device   string  `json:"device"`
	Side     int     `json:"side"`
	Steps    int     `json:"steps"`
	MS       float64 `json:"ms"`
	Residual float64 `json:"residual"` // as a part of the first
	MaxErr   float64 `json:"max_err"`
	OK       bool    `json:"ok"`
}

// run solves the system whose answer is known, and compares.
func run(w *spmd.World, c config) (result, error) {
	r := result{Summary: true, App: "anapp", Ranks: w.Size(), Device: w.Device(), Side: c.Side}
	mine := spmd.ShardOf(c.Side, w.Rank(), w.Size()) // the rows that this rank holds
	want, right := system(c.Side, mine)
	v, err := newSolver(w, c.Side, mine.Len)
	if err != nil {
		return r, err
	}
	begun := time.Now()
	if r.Steps, r.Residual, err = v.solve(right, c.Tolerance, c.MaxSteps); err != nil {
		return r, err
	}
	r.MS = float64(time.Since(begun).Microseconds()) / 1e3
	got := make([]float64, len(want))
	if err := v.x.CopyTo(got); err != nil {
		return r, err
	}
	worst := []float64{0}
	for i := range want {
		worst[0] = max(worst[0], math.Abs(got[i]-want[i]))
	}
	if err := hostdata.AllReduceSlice(w.Comm(), worst, worst, spmd.Max); err != nil {
		return r, err
	}
	// The rest of the residual, and rounding, grow in the answer as the square of the side. The
	// first residual is as one over the side.
	bound := c.Tolerance*float64(c.Side) + 1e-15*float64(c.Side*c.Side)
	r.MaxErr = worst[0]
	if r.OK = r.MaxErr <= bound; !r.OK {
		return r, fmt.Errorf("the answer is wrong by %g, at most %g is allowed", r.MaxErr, bound)
	}
	return r, nil
}

// system returns the answer at the points of some rows, and the right side that belongs to it. The
// answer is x(1-x) y(1-y): the sums of differences of such a polynomial are exact.
func system(side int, rows spmd.Shard) (want, right []float64) {
	h := 1 / float64(side+1)
	for row := range rows.Len {
		for column := range side {
			x, y := h*float64(column+1), h*float64(rows.Off+row+1)
			want = append(want, x*(1-x)*y*(1-y))
			right = append(right, 2*h*h*(x*(1-x)+y*(1-y)))
		}
	}
	return want, right
}
