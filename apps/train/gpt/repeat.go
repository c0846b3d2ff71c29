package gpt

import (
	"errors"
	"fmt"

	"lockstep/spmd"
)

// repeating is a decoder for a model that may keep what it likes of a text.
type repeating struct {
	s      *spmd.Stream
	count  int                  // of the tokens so far
	tokens spmd.Buffer[int32]   // (T)
	out    spmd.Buffer[float32] // (V), pinned
	logits func(tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error)
	frees  []func() error
}

// Repeat returns a decoder of up to seq tokens. logits enqueues on s the logits of the token after
// others, of vocab different ones, and returns where they will be. The first before tokens were in
// the call before. All ranks that logits concerns call the decoder's methods together.
func Repeat(s *spmd.Stream, seq, vocab int,
	logits func(tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error)) (Decoder, error) {
	r := &repeating{s: s, logits: logits}
	var err error
	if r.out, err = pin[float32](&r.frees, s.World(), vocab); err != nil {
		return nil, err
	}
	if r.tokens, err = spmd.Alloc[int32](s.World(), seq); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.frees = append(r.frees, r.tokens.Free)
	return r, nil
}

func (r *repeating) Close() error {
	var errs []error
	for _, f := range r.frees {
		errs = append(errs, f())
	}
	r.frees = nil
	return errors.Join(errs...)
}

func (r *repeating) Len() int { return r.count }

func (r *repeating) Reset() { r.count = 0 }

func (r *repeating) Next(tokens []int32) ([]float32, error) {
	n := r.count + len(tokens)
	if len(tokens) == 0 || n > r.tokens.Len() {
		return nil, fmt.Errorf("%d tokens after %d, of at most %d", len(tokens), r.count, r.tokens.Len())
	}
	if err := r.tokens.Slice(r.count, n).CopyFrom(tokens); err != nil {
		return nil, err
	}
	logits, err := r.logits(r.tokens.Slice(0, n), r.count)
	if err != nil {
		return nil, err
	}
	r.count = n
	if err := spmd.Copy(r.s, r.out, logits); err != nil {
		return nil, err
	}
	return r.out.Host(), r.s.Synchronize()
}
