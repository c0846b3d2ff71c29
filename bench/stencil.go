package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
)

// stencilPeer is the name of c/stencil.c's sides. It begins with that of the peer.
const stencilPeer = "MPI from C, and OpenMP"

// cStencil is the command line of c/stencil.c on n ranks, which share out the cores.
func (b *harness) cStencil(n, rows, columns, steps, iters, warmup int) ([]string, error) {
	program, err := b.c("stencil", "mpicc", "-march=native", "-fopenmp", "-lm")
	if err != nil {
		return nil, err
	}
	cmd := append(unbound(n), "env", fmt.Sprintf("OMP_NUM_THREADS=%d", max(1, runtime.NumCPU()/n)), program)
	for _, v := range []int{rows, columns, steps, iters, warmup} {
		cmd = append(cmd, strconv.Itoa(v))
	}
	return cmd, nil
}

// unbound is mpirun for ranks that may use every core: a single one would have but one.
func unbound(n int) []string { return append(mpirun(n), "--bind-to", "none") }

// stencil compares the steps of apps/stencil with those of a C program, on one rank with all cores and on two: the same
// grid, and one as large for each of them.
func (b *bench) stencil() error {
	const (
		columns, iters, warmup = 4096, 20, 3
		steps                  = 10
	)
	for _, tc := range []struct {
		what        string
		ranks, rows int
	}{{"", 1, columns}, {", strong scaling", 2, columns}, {", weak scaling", 2, 2 * columns}} {
		theirs, err := b.cStencil(tc.ranks, tc.rows, columns, steps, iters, warmup)
		if err != nil {
			return err
		}
		ours := append(unbound(tc.ranks), b.program("stencil"), "--device", "host", "--json", "-", "--log-level", "warn",
			"--size", fmt.Sprintf("%dx%d", tc.rows, columns), "--steps", strconv.Itoa(steps), "--iters", strconv.Itoa(iters), "--warmup", strconv.Itoa(warmup))
		theirUS, ourUS, _, err := b.turns(theirs, ours)
		if err != nil {
			return err
		}
		b.compare(row{What: fmt.Sprintf("%d steps of %d x %d cells, float32%s", steps, tc.rows, columns, tc.what), Ranks: tc.ranks,
			Ours: median(ourUS), Unit: "us", Goal: 1}, stencilPeer, median(theirUS), false)
	}
	return nil
}

// stencilSides are this framework and, on the host, the C program, with the grid of scaling on n ranks.
func (s *sweep) stencilSides(program []string, n, each int, scaled func([]measured, error) ([]measured, error)) []side {
	rows := s.app.grid * each
	sides := []side{{ours, n, func() ([]measured, error) {
		var all []measured
		for _, graph := range s.graph {
			lines, err := s.measurements(slices.Concat(program, []string{"--size", fmt.Sprintf("%dx%d", rows, s.app.grid),
				"--graph=" + strconv.FormatBool(graph), "--iters", strconv.Itoa(s.app.iters)}))
			if err != nil {
				return nil, err
			}
			all = append(all, lines...)
		}
		return scaled(all, nil)
	}}}
	if s.has("c") {
		sides = append(sides, side{stencilPeer, n, func() ([]measured, error) {
			const steps, warmup = 10, 3 // the application's own
			cmd, err := s.cStencil(n, rows, s.app.grid, steps, s.app.iters, warmup)
			if err != nil {
				return nil, err
			}
			return scaled(s.measurements(cmd))
		}})
	}
	return sides
}
