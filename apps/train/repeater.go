package main

import (
	"errors"
	"fmt"

	"lockstep/spmd"
)

// repeater is a decoder where no rank has all weights: all ranks go through the whole text
// once more for each token, together, and take the logits of rank 0.
type repeater struct {
	t      *trainer
	count  int                  // of the tokens so far
	tokens spmd.Buffer[int32]   // (T)
	out    spmd.Buffer[float32] // (V), pinned
	frees  []func() error
}

// newRepeater returns a repeater of up to t.seq tokens. Every rank calls it, and its methods.
func newRepeater(t *trainer) (decoder, error) {
	r := &repeater{t: t}
	var err error
	if r.out, err = pin[float32](&r.frees, t.w, t.state.Cfg.Vocab); err != nil {
		return nil, err
	}
	if r.tokens, err = spmd.Alloc[int32](t.w, t.seq); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.frees = append(r.frees, r.tokens.Free)
	return r, nil
}

func (r *repeater) Close() error {
	var errs []error
	for _, f := range r.frees {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

func (r *repeater) len() int { return r.count }

func (r *repeater) reset() { r.count = 0 }

func (r *repeater) next(tokens []int32) ([]float32, error) {
	n := r.count + len(tokens)
	if n > r.tokens.Len() {
		return nil, fmt.Errorf("%d tokens, room for %d", n, r.tokens.Len())
	}
	if err := r.tokens.Slice(r.count, n).CopyFrom(tokens); err != nil {
		return nil, err
	}
	r.count = n
	t, x := r.t, r.t.sharder
	var logits spmd.Buffer[float32]
	err := x.around(t.s, x.forward, false, false, func() (err error) {
		logits, err = t.model.Logits(t.s, r.tokens.Slice(0, n))
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := spmd.Broadcast(t.c.On(t.s), logits, 0); err != nil {
		return nil, err
	}
	if err := spmd.Copy(t.s, r.out, logits); err != nil {
		return nil, err
	}
	return r.out.Host(), t.s.Synchronize()
}
