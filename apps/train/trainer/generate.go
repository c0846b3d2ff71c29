package trainer

import (
	"context"
	"errors"

	"lockstep/apps/train/decode"
	"lockstep/apps/train/text"
)

// ToGenerate has this rank ready to generate, and says whether all ranks have to, together;
// else one rank alone may. Every rank of the trainer calls it.
func (t *Trainer) ToGenerate() (together bool, err error) {
	return t.sharder != nil && t.sharder.EveryPass(), t.gather()
}

// Generate returns n tokens of text that the model writes after the beginning of a
// document and the prompt, together with the prompt. It blocks. ToGenerate says who calls it;
// all that do get the same text.
func (t *Trainer) Generate(ctx context.Context, tok text.Tokenizer, prompt string, n int, temperature float64, seed uint64) (text []byte, err error) {
	var d decode.Decoder
	if t.sharder != nil && t.sharder.EveryPass() {
		d, err = newRepeater(t)
	} else {
		d, err = decode.New(t.Stream, t.State.Cfg, t.State.Weights, t.State.Half, t.Seq)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	text = []byte(prompt)
	err = decode.NewWriter(d, tok, t.Seq, temperature, 0, seed).Write(ctx, prompt, n, false, func(more []byte) error {
		text = append(text, more...)
		return nil
	})
	return text, err
}
