package main

import (
	"context"
	"math"
	"math/rand/v2"

	"lockstep/spmd"
)

// generate returns n tokens of text that the model writes after the beginning of a
// document and the prompt, together with the prompt. Each token is drawn from
// softmax(logits/temperature); the separator of documents never is, so that the
// text has its length. It blocks. Not collective: one rank alone may write.
func (t *trainer) generate(ctx context.Context, tok tokenizer, prompt string, n int, temperature float64, seed uint64) ([]byte, error) {
	start, err := tok.encode(nil, []byte(prompt))
	if err != nil {
		return nil, err
	}
	ids := []int32{tok.separator()}
	f := tokenFile{header: tokenHeader{width: uint32(tok.width()), count: uint64(len(start) / tok.width())}, body: start}
	ids = append(ids, make([]int32, f.len())...)
	f.read(ids[1:], 0)

	in, err := spmd.AllocPinned[int32](t.w, t.seq)
	if err != nil {
		return nil, err
	}
	defer in.Free()
	logits, err := spmd.AllocPinned[float32](t.w, t.state.Cfg.Vocab)
	if err != nil {
		return nil, err
	}
	defer logits.Free()
	dev := t.loaders[1].in // as long as one sequence at least, and idle
	rng := rand.New(rand.NewPCG(seed, 0x73616d706c65))
	for range n {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		window := ids[max(0, len(ids)-t.seq):] // all the positions that there are
		part := in.Slice(0, len(window))
		if err := part.CopyFrom(window); err != nil {
			return nil, err
		}
		if err := spmd.Copy(t.s, dev.Slice(0, len(window)), part); err != nil {
			return nil, err
		}
		out, err := t.model.Logits(t.s, dev.Slice(0, len(window)))
		if err != nil {
			return nil, err
		}
		if err := spmd.Copy(t.s, logits, out); err != nil {
			return nil, err
		}
		if err := t.s.Synchronize(); err != nil {
			return nil, err
		}
		l := logits.Host()
		l[tok.separator()] = float32(math.Inf(-1))
		ids = append(ids, int32(draw(l, temperature, rng.Float64())))
	}
	return tok.decode(ids), nil
}

// draw returns i with probability softmax(logits/temperature)[i], for u uniform in
// [0, 1); at temperature 0 the i of the largest logit.
func draw(logits []float32, temperature, u float64) int {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	if temperature == 0 {
		return best
	}
	weight := func(x float32) float64 { return math.Exp(float64(x-logits[best]) / temperature) }
	sum := 0.0
	for _, x := range logits {
		sum += weight(x)
	}
	u *= sum
	for i, x := range logits {
		if u -= weight(x); u < 0 {
			return i
		}
	}
	return best // rounding has left a crumb
}
