package trainer

import "math"

// Growth is how many sequences steps take, over all ranks. They begin with First and double after
// each of equal parts of Steps, up to Last. If First is 0 all steps take Last.
type Growth struct{ First, Last, Steps int }

// grows reports whether there is more than one size.
func (g Growth) grows() bool { return 0 < g.First && g.First < g.Last }

// parts returns the number of sizes.
func (g Growth) parts() int {
	n := 1
	for size := g.First; g.grows() && size < g.Last; size *= 2 {
		n++
	}
	return n
}

// size returns the size of a part.
func (g Growth) size(part int) int {
	if !g.grows() || part == g.parts()-1 {
		return g.Last
	}
	return g.First << part
}

// begin returns the first step of a part.
func (g Growth) begin(part int) int { return (part*g.Steps + g.parts() - 1) / g.parts() }

// At returns how many sequences a step takes.
func (g Growth) At(step int) int {
	part := g.parts() - 1
	for part > 0 && step < g.begin(part) {
		part--
	}
	return g.size(part)
}

// Before returns how many sequences the steps before one take.
func (g Growth) Before(step int) int {
	n := 0
	for part := range g.parts() {
		end := step
		if part+1 < g.parts() {
			end = min(step, g.begin(part+1))
		}
		n += g.size(part) * max(0, end-g.begin(part))
	}
	return n
}

// Begins lists the first step of each size.
func (g Growth) Begins() (steps []int) {
	for part := range g.parts() {
		steps = append(steps, g.begin(part))
	}
	return steps
}

// Rate returns the factor of a step's learning rate. The noise of a gradient grows with the root of
// the sequences that the step has less.
func (g Growth) Rate(step int) float64 { return math.Sqrt(float64(g.At(step)) / float64(g.Last)) }
