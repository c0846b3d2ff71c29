package gpt

import (
	"errors"
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// growing is what decoders of a growing sequence have.
type growing struct {
	s      *spmd.Stream
	count  int                  // of the tokens so far
	tokens spmd.Buffer[int32]   // (T): those at once
	out    spmd.Buffer[float32] // (V): pinned
	space  layout.Space
}

func (g *growing) Len() int     { return g.count }
func (g *growing) Reset()       { g.count = 0 }
func (g *growing) Close() error { return g.space.Free() }

// pin makes b n elements of pinned memory.
func pin[T spmd.Elem](sp *layout.Space, n int, b *spmd.Buffer[T]) {
	if sp.Err == nil {
		*b, sp.Err = spmd.AllocPinned[T](sp.W, n)
	}
	if sp.Err == nil {
		sp.Frees = append(sp.Frees, b.Free)
	}
}

// repeating is a decoder for a model that may keep what it likes of a text.
type repeating struct {
	growing
	logits func(tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error)
}

// Repeat returns a decoder of up to seq tokens. logits enqueues on s the logits of the token after
// others, of vocab different ones, and returns where they will be. The first before tokens were in
// the call before. All ranks that logits concerns call the decoder's methods together.
func Repeat(s *spmd.Stream, seq, vocab int,
	logits func(tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error)) (Decoder, error) {
	r := &repeating{growing{s: s, space: layout.Space{W: s.World()}}, logits}
	pin(&r.space, vocab, &r.out)
	layout.Take(&r.space, seq, &r.tokens)
	if r.space.Err != nil {
		return nil, errors.Join(r.space.Err, r.Close())
	}
	return r, nil
}

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
