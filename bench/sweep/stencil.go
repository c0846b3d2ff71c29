package sweep

import (
	"fmt"
	"slices"
	"strconv"

	"lockstep/bench/measure"
)

// stencilSides returns this framework and, on the host, the C program, with the grid of
// scaling on n ranks.
func (s *sweep) stencilSides(program []string, n, each int,
	scaled func([]measure.Measured, error) ([]measure.Measured, error)) []side {
	rows := s.app.grid * each
	sides := []side{{measure.Ours, n, func() ([]measure.Measured, error) {
		var all []measure.Measured
		for _, graph := range s.Graph {
			lines, err := s.measurements(slices.Concat(program,
				[]string{"--size", fmt.Sprintf("%dx%d", rows, s.app.grid),
					"--graph=" + strconv.FormatBool(graph), "--iters", strconv.Itoa(s.app.iters)}))
			if err != nil {
				return nil, err
			}
			all = append(all, lines...)
		}
		return scaled(all, nil)
	}}}
	if s.has("c") {
		sides = append(sides, side{measure.StencilPeer, n, func() ([]measure.Measured, error) {
			const steps, warmup = 10, 3 // the application's own
			cmd, err := s.CStencil(n, rows, s.app.grid, steps, s.app.iters, warmup)
			if err != nil {
				return nil, err
			}
			return scaled(s.measurements(cmd))
		}})
	}
	return sides
}
