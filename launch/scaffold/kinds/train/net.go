package main

import (
	"errors"
	"math"

	"lockstep/spmd"
	"lockstep/spmd/random"
)

// hidden is the number of hidden units. Each has a weight of the input, a bias and a weight of the
// output; the last parameter is the output's bias.
const (
	hidden = 24
	params = 3*hidden + 1
)

// The command writes kernels_spmd.go: the kernels in CUDA C++ for GPUs, and the functions that
// launch them. The results of a kernel are added up over all i.
//
//go:generate go run lockstep/spmd/spmdgen

// forward computes how wrong the net is for input x[i], into e[i], and half the square of that.
//
//spmd:kernel
//spmd:tolerance 1e-5
func forward(i int, e, x, p []float32) (loss float32) {
	x[i] = 2*x[i] - 1 // as they are drawn they are from 0 to 1
	y := p[3*hidden]
	for j := range hidden {
		y += p[2*hidden+j] * unit(p, j, x[i])
	}
	e[i] = y - float32(math.Sin(float64(4*x[i])))
	return e[i] * e[i] / 2
}

// unit returns the output of hidden unit j for an input.
func unit(p []float32, j int, x float32) float32 {
	return float32(math.Tanh(float64(p[j]*x + p[hidden+j])))
}

// backward computes the gradient of the sum of losses times scale by hidden unit i's parameters.
// The index behind the last unit stands for the output's bias.
//
//spmd:kernel
//spmd:tolerance 1e-4
func backward(i int, g, e, x, p []float32, scale float32) {
	if i == hidden {
		sum := float32(0)
		for k := range e {
			sum += e[k]
		}
		g[3*hidden] = scale * sum
		return
	}
	var ofInput, ofBias, ofOutput float32
	for k := range e {
		h := unit(p, i, x[k])
		slope := e[k] * p[2*hidden+i] * (1 - h*h)
		ofInput += slope * x[k]
		ofBias += slope
		ofOutput += e[k] * h
	}
	g[i], g[hidden+i], g[2*hidden+i] = scale*ofInput, scale*ofBias, scale*ofOutput
}

// update is a step of Adam. The means begin at 0, and so are smaller than they should be in the
// first steps: ofM and ofV make up for that.
//
//spmd:kernel
func update(i int, p, m, v, g []float32, rate, ofM, ofV float32) {
	m[i] += (g[i] - m[i]) * (1 - decayM)
	v[i] += (g[i]*g[i] - v[i]) * (1 - decayV)
	p[i] -= rate * ofM * m[i] / (float32(math.Sqrt(float64(ofV*v[i]))) + 1e-8)
}

const decayM, decayV = 0.9, 0.999

// net is the state of a training run, the same on all ranks but for the examples.
type net struct {
	w       *spmd.World
	s       *spmd.Stream
	p, m, v spmd.Buffer[float32] // parameters, and the means of Adam
	g, loss spmd.Buffer[float32] // the gradient, and behind it the loss
	both    spmd.Buffer[float32]
	x, e    spmd.Buffer[float32] // inputs of this rank's examples, and how wrong the net is for each
	batch   int
	mine    spmd.Shard // of a batch
}

func newNet(w *spmd.World, batch int) (*net, error) {
	n := &net{w: w, batch: batch, mine: spmd.ShardOf(batch, w.Rank(), w.Size())}
	mem, err := spmd.Alloc[float32](w, 4*params+1+2*n.mine.Len)
	if err != nil {
		return nil, err
	}
	take := func(count int) (b spmd.Buffer[float32]) {
		b, mem = mem.Slice(0, count), mem.Slice(count, mem.Len())
		return b
	}
	n.p, n.m, n.v, n.both = take(params), take(params), take(params), take(params+1)
	n.g, n.loss = n.both.Slice(0, params), n.both.Slice(params, params+1)
	n.x, n.e = take(n.mine.Len), take(n.mine.Len)
	if n.s, err = w.NewStream("anapp"); err != nil {
		return nil, err
	}
	begin := make([]float32, params)
	for i := range begin { // spread out, so that no two units are alike
		begin[i] = float32(math.Sin(float64(37*i + 1)))
	}
	return n, errors.Join(n.p.CopyFrom(begin), n.m.SetAll(0), n.v.SetAll(0))
}

// step enqueues a step with a number from 1 on: the gradient of this rank's examples, the sum over
// all ranks, and the update, which is the same on each. The examples of a step depend only on the
// seed and its number, not on how many ranks there are.
//
// Collective over c, which is on n.s.
func (n *net) step(c spmd.Comm, number int, rate float64) error {
	ofM, ofV := 1/(1-math.Pow(decayM, float64(number))), 1/(1-math.Pow(decayV, float64(number)))
	return errors.Join(
		random.Uniform(n.s, n.x, n.w.Seed(), number*n.batch+n.mine.Off),
		launchForward(n.s, n.loss, n.mine.Len, n.e, n.x, n.p),
		launchBackward(n.s, hidden+1, n.g, n.e, n.x, n.p, 1/float32(n.batch)),
		spmd.AllReduce(c, n.both, n.both, spmd.Sum),
		launchUpdate(n.s, params, n.p, n.m, n.v, n.g, float32(rate), float32(ofM), float32(ofV)))
}
