package trainer

import (
	"context"
	"errors"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/text"
	"lockstep/spmd"
)

// ToGenerate prepares this rank to generate. It says whether all ranks have to generate together;
// otherwise one rank alone may. Every rank of the trainer calls it.
func (t *Trainer) ToGenerate() (together bool, err error) {
	return t.sums.together(), t.sums.gather()
}

// Generate returns the prompt and n more tokens of text, which begins a document. It blocks.
// ToGenerate says who calls it. All callers get the same text.
func (t *Trainer) Generate(ctx context.Context, tok text.Tokenizer, prompt string, n int, temperature float64,
	seed uint64) (written []byte, err error) {
	var d gpt.Decoder
	cfg := t.State.Cfg
	switch {
	case t.sums.together():
		d, err = gpt.Repeat(t.Stream, t.Seq, cfg.Vocab, t.logitsOfAll)
	case cfg.Parts != 0:
		d, err = gpt.Repeat(t.Stream, t.Seq, cfg.Vocab,
			func(tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error) {
				return t.Model.Logits(t.Stream, tokens, before)
			})
	default:
		d, err = gpt.NewDecoder(t.Stream, cfg, t.State.Weights, t.State.Half, t.Seq)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	written = []byte(prompt)
	err = text.NewWriter(d, tok, t.Seq, temperature, 0, seed).Write(ctx, prompt, n, func(more []byte) error {
		written = append(written, more...)
		return nil
	})
	return written, err
}

// logitsOfAll enqueues the logits of the next token if no rank has all weights. All ranks go
// through the text together, and take the logits of rank 0.
func (t *Trainer) logitsOfAll(tokens spmd.Buffer[int32], before int) (logits spmd.Buffer[float32], err error) {
	err = t.sums.around(gpt.Pass{Forward: true}, func() (err error) {
		logits, err = t.Model.Logits(t.Stream, tokens, before)
		return err
	})
	if err == nil {
		err = spmd.Broadcast(t.c.On(t.Stream), logits, 0)
	}
	return logits, err
}
