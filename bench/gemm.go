package main

import (
	"context"
	"fmt"
	rand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// gemmBench measures the matrix products of a GPT-2, with the epilogues of training and without.
type gemmBench struct {
	w                      *spmd.World
	s                      *spmd.Stream
	events                 [2]*spmd.Event
	c, vocab               int
	x, y, aux, res         spmd.Buffer[spmd.BF16] // activations of up to 4 c columns
	weights, logits, small spmd.Buffer[spmd.BF16]
	grad                   spmd.Buffer[float32] // of weights
	vector                 spmd.Buffer[float32]
	dump                   spmd.Buffer[spmd.BF16] // a gradient of weights in 16 bits
}

// gemmLine is one product: m rows of C, n columns, k terms.
type gemmLine struct {
	name, epilogue string
	m, n, k        int
	run            func() error
	times          int // that a graph holds it
	before, after  *spmd.Graph
}

// gemmCommand is bench gemm.
func gemmCommand() error {
	fs := pflag.NewFlagSet("bench gemm", pflag.ExitOnError)
	rows := fs.IntSlice("rows", []int{65536, 8192}, "tokens of a step")
	channels := fs.Int("channels", 768, "width of the model")
	vocab := fs.Int("vocab", 50304, "width of the head, whose rows go in chunks of up to 8,192")
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		for _, n := range *rows {
			if err := gemmTable(w, n, *channels, *vocab); err != nil {
				return err
			}
		}
		return nil
	}, func(ranks int) error {
		if ranks != 1 || *channels < 8 || *channels%8 != 0 || *vocab < 8 || *vocab%8 != 0 ||
			slices.Min(append([]int{1}, *rows...)) < 1 {
			return fmt.Errorf("bench gemm: one rank, rows above 0, channels and vocab multiples of 8")
		}
		return nil
	})
	return nil
}

func gemmTable(w *spmd.World, rows, channels, vocab int) error {
	g := &gemmBench{w: w, c: channels, vocab: vocab}
	var err error
	if g.s, err = w.NewStream("gemm"); err != nil {
		return err
	}
	for i := range g.events {
		if g.events[i], err = w.NewEvent(); err != nil {
			return err
		}
		defer g.events[i].Close()
	}
	chunk := min(rows, 8192)
	r := rand.New(rand.NewPCG(1, 2))
	for _, b := range []struct {
		to *spmd.Buffer[spmd.BF16]
		n  int
	}{{&g.x, 4 * rows * channels}, {&g.y, 4 * rows * channels}, {&g.aux, 4 * rows * channels},
		{&g.res, rows * channels},
		{&g.weights, channels * max(vocab, 4*channels)}, {&g.logits, chunk * vocab}, {&g.small, max(vocab, 4*channels)},
		{&g.dump, channels * max(vocab, 4*channels)}} {
		if *b.to, err = spmd.Alloc[spmd.BF16](w, b.n); err != nil {
			return err
		}
		defer b.to.Free()
		if err := fillRandom(*b.to, r); err != nil {
			return err
		}
	}
	if g.grad, err = spmd.Alloc[float32](w, g.weights.Len()); err != nil {
		return err
	}
	defer g.grad.Free()
	if g.vector, err = spmd.Alloc[float32](w, g.small.Len()); err != nil {
		return err
	}
	defer g.vector.Free()
	lines := g.lines(rows, chunk)
	defer func() {
		for i := range lines {
			lines[i].close()
		}
	}()
	for i := range lines {
		if err := g.capture(&lines[i], &lines[i].before); err != nil {
			return fmt.Errorf("%s %s: %w", lines[i].name, lines[i].epilogue, err)
		}
	}
	if err := blas.Tune(w); err != nil {
		return err
	}
	for i := range lines {
		if err := g.capture(&lines[i], &lines[i].after); err != nil {
			return err
		}
	}
	if err := g.heat(lines); err != nil {
		return err
	}
	fmt.Printf("%d rows, %d channels, bfloat16, on %s\n%-16s %-22s %18s %18s\n%-16s %-22s %8s %9s %8s %9s\n",
		rows, channels, w.Device(),
		"", "", "first choice", "tuned", "product", "epilogue", "ms", "TFLOP/s", "ms", "TFLOP/s")
	for i := range lines {
		l := &lines[i]
		first, tuned, err := g.compare(l)
		if err != nil {
			return err
		}
		flops := 2 * float64(l.m) * float64(l.n) * float64(l.k)
		fmt.Printf("%-16s %-22s %8.4f %9.0f %8.4f %9.0f\n",
			l.name, l.epilogue, first.Seconds()*1e3, flops/first.Seconds()/1e12,
			tuned.Seconds()*1e3, flops/tuned.Seconds()/1e12)
	}
	return g.s.Close()
}

// fillRandom fills b with normal numbers, which repeat.
func fillRandom(b spmd.Buffer[spmd.BF16], r *rand.Rand) error {
	n := min(b.Len(), 1<<20)
	v := make([]spmd.BF16, n)
	for i := range v {
		v[i] = spmd.ToBF16(float32(r.NormFloat64() / 4))
	}
	for at := 0; at < b.Len(); at += n {
		end := min(at+n, b.Len())
		if err := b.Slice(at, end).CopyFrom(v[:end-at]); err != nil {
			return err
		}
	}
	return nil
}

// capture captures a graph of some repetitions of a product, with its present algorithm.
func (g *gemmBench) capture(l *gemmLine, to **spmd.Graph) error {
	if l.times == 0 {
		if _, err := g.elapsed(l.run); err != nil { // what is done the first time
			return err
		}
		one, err := g.elapsed(l.run)
		if err != nil {
			return err
		}
		l.times = int(min(max(2*time.Millisecond/max(one, time.Microsecond), 1), 50))
	}
	graph, err := g.s.Capture(func() error {
		for range l.times {
			if err := l.run(); err != nil {
				return err
			}
		}
		return nil
	})
	*to = graph
	return err
}

func (l *gemmLine) close() {
	for _, graph := range []*spmd.Graph{l.before, l.after} {
		if graph != nil {
			_ = graph.Close() // an error has come up before
		}
	}
}

// heat makes the device work for a while: it is fastest when it is cold, and training is not.
func (g *gemmBench) heat(lines []gemmLine) error {
	for start := time.Now(); time.Since(start) < time.Second && !g.w.OnHost(); {
		for i := range lines {
			if err := lines[i].before.Launch(g.s); err != nil {
				return err
			}
		}
		if err := g.s.Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// compare returns the medians of some turns of either algorithm, in turn, since the device's clock
// changes by more than the difference.
func (g *gemmBench) compare(l *gemmLine) (first, tuned time.Duration, err error) {
	var times [2][]time.Duration
	for range 7 {
		for i, graph := range []*spmd.Graph{l.before, l.after} {
			d, err := g.elapsed(func() error { return graph.Launch(g.s) })
			if err != nil {
				return 0, 0, err
			}
			times[i] = append(times[i], d/time.Duration(l.times))
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	return times[0][3], times[1][3], nil
}

// elapsed returns the device's time for the commands of run.
func (g *gemmBench) elapsed(run func() error) (time.Duration, error) {
	if err := g.events[0].Record(g.s); err != nil {
		return 0, err
	}
	if err := run(); err != nil {
		return 0, err
	}
	if err := g.events[1].Record(g.s); err != nil {
		return 0, err
	}
	if err := g.s.Synchronize(); err != nil {
		return 0, err
	}
	return g.events[1].Elapsed(g.events[0])
}

// lines returns the products of forward, of the gradients of activations and of those of weights.
func (g *gemmBench) lines(rows, chunk int) []gemmLine {
	C, V := g.c, g.vocab
	var list []gemmLine
	type half = spmd.Buffer[spmd.BF16]
	of := func(b half, rows, cols int) blas.Matrix[spmd.BF16] {
		return blas.MatrixOf(b.Slice(0, rows*cols), rows, cols)
	}
	// option returns the operands of the named epilogues, for C (m, n) in 16 bits.
	option := func(names string, m, n int) blas.Options {
		var o blas.Options
		for _, name := range strings.Fields(names) {
			switch name {
			case "Bias":
				o.Bias = g.small.Slice(0, n).Arg()
			case "Residual":
				o.Residual = g.res.Slice(0, m*n).Arg()
			case "GELU":
				o.GELU = g.aux.Slice(0, m*n).Arg()
			case "DGELU":
				o.DGELU = g.aux.Slice(0, m*n).Arg()
			case "BiasGrad":
				o.BiasGrad = g.small.Slice(0, n).Arg()
			}
		}
		return o
	}
	forward := func(name string, rows, in, out int, x, y half, epilogues ...string) {
		for _, e := range epilogues {
			o := option(e, rows, out)
			o.TransB = true
			list = append(list, gemmLine{name: name + " fwd", epilogue: e, m: rows, n: out, k: in, run: func() error {
				return blas.Gemm(g.s, of(y, rows, out), of(x, rows, in), of(g.weights, out, in), o)
			}})
		}
	}
	dgrad := func(name string, rows, in, out int, dy, dx half, epilogues ...string) {
		for _, e := range epilogues {
			o := option(e, rows, in)
			list = append(list, gemmLine{name: name + " dgrad", epilogue: e, m: rows, n: in, k: out, run: func() error {
				return blas.Gemm(g.s, of(dx, rows, in), of(dy, rows, out), of(g.weights, out, in), o)
			}})
		}
	}
	wgrad := func(name string, rows, in, out int, dy, x half) {
		for _, e := range []string{"", "RowSums", "Accumulate", "bfloat16"} {
			o := blas.Options{TransA: true, Accumulate: e == "Accumulate"}
			if e == "RowSums" {
				o.RowSums = g.vector.Slice(0, out).Arg()
			}
			run := func() error {
				return blas.Gemm(g.s, blas.MatrixOf(g.grad.Slice(0, out*in), out, in), of(dy, rows, out),
					of(x, rows, in), o)
			}
			if e == "bfloat16" {
				run = func() error {
					return blas.Gemm(g.s, of(g.dump, out, in), of(dy, rows, out), of(x, rows, in), o)
				}
			}
			list = append(list, gemmLine{name: name + " wgrad", epilogue: strings.TrimSpace("float32 " + e), m: out,
				n: in, k: rows, run: run})
			if e == "bfloat16" {
				list[len(list)-1].epilogue = e
			}
		}
	}
	forward("qkv", rows, C, 3*C, g.x, g.y, "", "Bias")
	forward("proj", rows, C, C, g.x, g.y, "", "Bias", "Residual", "Bias Residual")
	forward("fc", rows, C, 4*C, g.x, g.y, "", "Bias", "GELU", "Bias GELU")
	forward("fcproj", rows, 4*C, C, g.x, g.y, "", "Bias", "Bias Residual")
	forward("head", chunk, C, V, g.x, g.logits, "")
	dgrad("head", chunk, C, V, g.logits, g.y, "")
	dgrad("fcproj", rows, 4*C, C, g.x, g.y, "", "DGELU", "DGELU BiasGrad")
	dgrad("fc", rows, C, 4*C, g.x, g.y, "", "Residual")
	dgrad("proj", rows, C, C, g.x, g.y, "")
	dgrad("qkv", rows, C, 3*C, g.x, g.y, "")
	wgrad("head", chunk, C, V, g.logits, g.x)
	wgrad("fcproj", rows, 4*C, C, g.x, g.y)
	wgrad("fc", rows, C, 4*C, g.x, g.y)
	wgrad("proj", rows, C, C, g.x, g.y)
	wgrad("qkv", rows, C, 3*C, g.x, g.y)
	return list
}
