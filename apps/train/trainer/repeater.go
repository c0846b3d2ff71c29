package trainer

import (
	"errors"
	"fmt"

	"lockstep/apps/train/decode"
	"lockstep/spmd"
)

// repeater is a decoder where no rank has all weights: all ranks go through the whole text
// once more for each token, together, and take the logits of rank 0.
type repeater struct {
	t      *Trainer
	count  int                  // of the tokens so far
	tokens spmd.Buffer[int32]   // (T)
	out    spmd.Buffer[float32] // (V), pinned
	frees  []func() error
}

// newRepeater returns a repeater of up to t.seq tokens. Every rank calls it, and its methods.
func newRepeater(t *Trainer) (decode.Decoder, error) {
	r := &repeater{t: t}
	var err error
	if r.out, err = decode.Pin[float32](&r.frees, t.World, t.State.Cfg.Vocab); err != nil {
		return nil, err
	}
	if r.tokens, err = spmd.Alloc[int32](t.World, t.Seq); err != nil {
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

func (r *repeater) Len() int { return r.count }

func (r *repeater) Reset() { r.count = 0 }

func (r *repeater) Next(tokens []int32) ([]float32, error) {
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
	err := x.Around(t.Stream, x.Forward, false, false, func() (err error) {
		logits, err = t.Model.Logits(t.Stream, r.tokens.Slice(0, n))
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := spmd.Broadcast(t.c.On(t.Stream), logits, 0); err != nil {
		return nil, err
	}
	if err := spmd.Copy(t.Stream, r.out, logits); err != nil {
		return nil, err
	}
	return r.out.Host(), t.Stream.Synchronize()
}
