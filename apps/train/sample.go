package main

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// writer continues a text.
type writer struct {
	decoder
	tok         tokenizer
	seq         int     // most tokens that the decoder looks at
	temperature float64 // 0 takes the likeliest token
	topK        int     // how many of the likeliest tokens are drawn from; 0 is all
	rng         *rand.Rand
	ids         []int32 // the text so far, from the separator that begins it on
}

func newWriter(d decoder, tok tokenizer, seq int, temperature float64, topK int, seed uint64) *writer {
	return &writer{decoder: d, tok: tok, seq: seq, temperature: temperature, topK: topK, rng: rand.New(rand.NewPCG(seed, 0x73616d706c65))}
}

// write writes up to n tokens after the beginning of a document and the prompt, and tells
// each with its text. Each is drawn from softmax(logits/temperature). Without ends the
// separator of documents never is, so that the text has its length; with it the text
// ends there. It blocks.
func (t *writer) write(ctx context.Context, prompt string, n int, ends bool, tell func(text []byte) error) error {
	ids, err := tokensOf(t.tok, prompt)
	if err != nil {
		return err
	}
	t.ids = append([]int32{t.tok.separator()}, ids...)
	t.reset()
	fresh := len(t.ids) // tokens that the decoder has not seen
	for range n {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if t.len()+fresh > t.seq {
			// There are no more positions: it goes on from the later half of the text.
			t.reset()
			fresh = min(len(t.ids), max(1, t.seq/2))
		}
		l, err := t.next(t.ids[len(t.ids)-fresh:])
		if err != nil {
			return err
		}
		if !ends {
			l[t.tok.separator()] = float32(math.Inf(-1))
		}
		keepTop(l, t.topK)
		id := int32(draw(l, t.temperature, t.rng.Float64()))
		if ends && id == t.tok.separator() {
			return nil
		}
		t.ids, fresh = append(t.ids, id), 1
		if err := tell(t.tok.decode([]int32{id})); err != nil {
			return err
		}
	}
	return nil
}

// tokensOf returns the tokens of a text.
func tokensOf(tok tokenizer, text string) ([]int32, error) {
	b, err := tok.encode(nil, []byte(text))
	if err != nil {
		return nil, err
	}
	f := inMemory(tok.width(), b)
	ids := make([]int32, f.len())
	f.read(ids, 0)
	return ids, nil
}

// toGenerate has this rank ready to generate, and says whether all ranks have to, together;
// else one rank alone may. Every rank of the trainer calls it.
func (t *trainer) toGenerate() (together bool, err error) {
	return t.sharder != nil && t.sharder.everyPass(), t.gather()
}

// generate returns n tokens of text that the model writes after the beginning of a
// document and the prompt, together with the prompt. It blocks. toGenerate says who calls it;
// all that do get the same text.
func (t *trainer) generate(ctx context.Context, tok tokenizer, prompt string, n int, temperature float64, seed uint64) (text []byte, err error) {
	var d decoder
	if t.sharder != nil && t.sharder.everyPass() {
		d, err = newRepeater(t)
	} else {
		d, err = newDecoder(t.s, t.state.Cfg, t.state.Weights, t.state.half, t.seq)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	text = []byte(prompt)
	err = newWriter(d, tok, t.seq, temperature, 0, seed).write(ctx, prompt, n, false, func(more []byte) error {
		text = append(text, more...)
		return nil
	})
	return text, err
}

// keepTop makes all but the k largest logits impossible; of equal ones the first count.
// 0 keeps all.
func keepTop(logits []float32, k int) {
	if k <= 0 || k >= len(logits) {
		return
	}
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(logits[j], logits[i]) })
	for _, i := range order[k:] {
		logits[i] = float32(math.Inf(-1))
	}
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
