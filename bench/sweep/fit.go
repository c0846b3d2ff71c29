package sweep

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/optimize"
)

// model is the time of an all-reduce of n bytes over p ranks of one node:
//
//	T(n, p) = the least of (start + step * steps(p) + volume(p) * n / bandwidth)
//
// over one algorithm or two. Sources: alpha-beta models (R. Hockney, 1994); the steps and volumes
// of the usual algorithms (R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective
// Communication Operations in MPICH, 2005).
type model struct {
	terms []fittedTerm
	rms   float64 // of ln(model/measured)
	worst float64 // the largest of them, without sign
	at    sample  // of the worst
}

// algorithm is described by its steps, which are messages that follow one another, and by its
// volume: how often the operand passes a rank's link.
type algorithm struct {
	name          string
	steps, volume func(p float64) float64
	formula       [2]string
}

func rounds(p float64) float64 { return math.Ceil(math.Log2(p) - 1e-9) }

// On one number of ranks all algorithms fit equally well, so the likeliest come first.
var (
	ring = algorithm{"ring", func(p float64) float64 { return 2 * (p - 1) },
		func(p float64) float64 { return 2 * (p - 1) / p }, [2]string{"2(p-1)", "2(p-1)/p"}}
	tree = algorithm{"tree, to its root and back", func(p float64) float64 { return 2 * rounds(p) },
		func(float64) float64 { return 2 }, [2]string{"2 log2 p", "2"}}
	oneShot = algorithm{"one-shot, each rank reads all others", func(p float64) float64 { return p - 1 },
		func(p float64) float64 { return p - 1 }, [2]string{"(p-1)", "(p-1)"}}
	doubling = algorithm{"recursive doubling", rounds, rounds, [2]string{"log2 p", "log2 p"}}
)

// candidates are the choices of a fit. A single algorithm is for all sizes. The first of two is for
// large operands, so its volume does not grow with the ranks. The same one twice stands for an
// algorithm with two protocols.
var candidates = [][]algorithm{
	{ring}, {tree}, {oneShot}, {doubling},
	{ring, oneShot}, {ring, doubling}, {ring, tree}, {ring, ring},
	{tree, oneShot}, {tree, doubling}, {tree, ring}, {tree, tree},
}

// fittedTerm is an algorithm with its fitted parameters.
type fittedTerm struct {
	algorithm
	startUS float64
	stepUS  float64
	gbps    float64
	points  int // that this term decides
}

// sample is a measured point.
type sample struct {
	bytes, ranks, us float64
}

func (f fittedTerm) us(bytes, ranks float64) float64 {
	return f.startUS + f.stepUS*f.steps(ranks) + f.volume(ranks)*bytes/f.gbps/1e3
}

// us returns T, and the index of its term.
func (m model) us(bytes, ranks float64) (us float64, term int) {
	us = math.Inf(1)
	for i, f := range m.terms {
		if t := f.us(bytes, ranks); t < us {
			us, term = t, i
		}
	}
	return us, term
}

// ofLogs returns the model with parameters given as logarithms: for each term the start, the time
// of a step and the time of a byte. A term that the points cannot tell is 0: the start if all are
// on one number of ranks, and the time of a byte if all have one size.
func ofLogs(x []float64, of []algorithm, points []sample) model {
	var m model
	for i, a := range of {
		f := fittedTerm{algorithm: a, startUS: math.Exp(x[3*i]), stepUS: math.Exp(x[3*i+1]),
			gbps: math.Exp(-x[3*i+2]) / 1e3}
		if same(points, func(p sample) float64 { return p.ranks }) {
			f.startUS = 0
		}
		if same(points, func(p sample) float64 { return p.bytes }) {
			f.gbps = math.Inf(1)
		}
		m.terms = append(m.terms, f)
	}
	return m
}

// same reports whether all points have one value.
func same(points []sample, of func(sample) float64) bool {
	return !slices.ContainsFunc(points, func(p sample) bool { return of(p) != of(points[0]) })
}

// leastDecided is how many points each of two algorithms must decide, since it has
// three parameters.
const leastDecided = 3

// leastError is the error, in logarithms, below which one fit is as good as another.
const leastError = 0.005

// fit finds the algorithms and parameters with the least squares of ln(model/measured). A second
// algorithm has to explain more than its parameters cost, by the Bayesian information criterion (G.
// Schwarz, 1978).
func fit(points []sample) (model, error) {
	var best model
	least := math.Inf(1)
	n := float64(len(points))
	for _, of := range candidates {
		if len(points) < leastPoints && len(of) > 1 {
			continue
		}
		x, err := leastSquares(points, of)
		if err != nil {
			return model{}, err
		}
		m := ofLogs(x, of, points)
		if few := m.deciding(points); few < leastDecided && len(of) > 1 {
			continue
		}
		score := n*math.Log(max(squares(points, m)/n, leastError*leastError)) + float64(len(x))*math.Log(n)
		if score < least-1e-6 {
			least, best = score, m
		}
	}
	if math.IsInf(least, 1) {
		return model{}, errors.New("no algorithm fits the points")
	}
	const nothing = 1e-6 // us
	for i := range best.terms {
		for _, us := range []*float64{&best.terms[i].startUS, &best.terms[i].stepUS} {
			if *us < nothing {
				*us = 0
			}
		}
	}
	for _, p := range points {
		us, _ := best.us(p.bytes, p.ranks)
		if e := math.Abs(math.Log(us / p.us)); e >= best.worst {
			best.worst, best.at = e, p
		}
	}
	best.rms = math.Sqrt(squares(points, best) / n)
	return best, nil
}

// deciding counts for each term the points that it decides, and returns the least count.
func (m model) deciding(points []sample) int {
	for _, p := range points {
		_, term := m.us(p.bytes, p.ranks)
		m.terms[term].points++
	}
	return slices.MinFunc(m.terms, func(a, b fittedTerm) int { return a.points - b.points }).points
}

func squares(points []sample, m model) float64 {
	sum := 0.0
	for _, p := range points {
		us, _ := m.us(p.bytes, p.ranks)
		e := math.Log(us / p.us)
		sum += e * e
	}
	return sum
}

// leastSquares finds the parameters of a candidate. It starts several times, since the least of two
// terms has several minima.
func leastSquares(points []sample, of []algorithm) ([]float64, error) {
	order := func(a, b sample) int { return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.ranks, b.ranks)) }
	first, last := slices.MinFunc(points, order), slices.MaxFunc(points, order)
	problem := optimize.Problem{Func: func(x []float64) float64 {
		m := ofLogs(x, of, points)
		if len(of) > 1 { // the first is the one for large operands
			if over := m.terms[0].us(last.bytes, last.ranks) / m.terms[1].us(last.bytes, last.ranks); over > 1 {
				return 1e3 * over * float64(len(points))
			}
		}
		return squares(points, m)
	}}
	settings := &optimize.Settings{MajorIterations: 5000,
		Converger: &optimize.FunctionConverge{Absolute: 1e-9, Iterations: 100}}
	// near takes the start and the steps from the smallest point, half of its time each, and a byte
	// from the largest, both times a factor.
	near := func(a algorithm, latency, perByte float64) []float64 {
		half := math.Log(latency * first.us / 2)
		return []float64{half, half - math.Log(a.steps(first.ranks)),
			math.Log(perByte * last.us / a.volume(last.ranks) / last.bytes)}
	}
	starts := [][]float64{near(of[0], 1, 1)}
	if len(of) > 1 {
		starts = nil
		// The factors say how much longer than in the points a step of the first and a byte of
		// the second take.
		for _, k := range [][2]float64{{2, 2}, {2, 16}, {8, 4}, {8, 16}} {
			starts = append(starts, slices.Concat(near(of[0], k[0], 1), near(of[1], 1, k[1])))
		}
	}
	var best []float64
	least := math.Inf(1)
	for _, x := range starts {
		for range 3 { // a simplex that has shrunk too early is begun anew
			r, err := optimize.Minimize(problem, x, settings, &optimize.NelderMead{})
			if err != nil && r == nil {
				return nil, err
			}
			x = r.X
		}
		if e := problem.Func(x); e < least {
			least, best = e, x
		}
	}
	if best == nil {
		return nil, errors.New("the points have no least squares")
	}
	return best, nil
}

// leastPoints is somewhat more than the parameters of two algorithms: with fewer points the fit has
// one. fewestPoints is the smallest number for any fit.
const leastPoints, fewestPoints = 9, 4

// poorFit is the error, in logarithms, beyond which a model predicts nothing.
const poorFit = 0.25
