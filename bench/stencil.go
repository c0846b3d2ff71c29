package main

import (
	"fmt"
	"strconv"

	"lockstep/bench/measure"
)

// stencil compares the steps of apps/stencil with those of a C program, on one rank with all cores
// and on two. The two share the same grid, or have one as large each.
func (b *bench) stencil() error {
	const (
		columns, iters, warmup = 4096, 20, 3
		steps                  = 10
	)
	for _, tc := range []struct {
		what        string
		ranks, rows int
	}{{"", 1, columns}, {", strong scaling", 2, columns}, {", weak scaling", 2, 2 * columns}} {
		theirs, err := b.CStencil(tc.ranks, tc.rows, columns, steps, iters, warmup)
		if err != nil {
			return err
		}
		ours := append(measure.Unbound(tc.ranks), b.Program("stencil"), "--device", "host", "--json", "-",
			"--log-level", "warn", "--size", fmt.Sprintf("%dx%d", tc.rows, columns), "--steps", strconv.Itoa(steps),
			"--iters", strconv.Itoa(iters), "--warmup", strconv.Itoa(warmup))
		theirUS, ourUS, _, err := b.turns(theirs, ours)
		if err != nil {
			return err
		}
		b.CompareTimes(measure.Row{What: fmt.Sprintf("%d steps of %d x %d cells, float32%s",
			steps, tc.rows, columns, tc.what), Ranks: tc.ranks,
			Ours: measure.Median(ourUS), Unit: "us", Goal: 1}, measure.StencilPeer, measure.Median(theirUS))
	}
	return nil
}
