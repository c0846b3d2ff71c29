package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/cuda/nvrtc"
	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/telemetry"
)

// checkBalance refuses a --balance that does not fit.
func (o *Options) checkBalance() error {
	if o.Given("balance") && o.pp == 1 {
		return fmt.Errorf("--balance %s has no meaning without --pp", o.balance)
	}
	return nil
}

// timePasses returns how many seconds both passes of a model take for a token, with batch
// sequences. The result is the same on every rank.
type timePasses func(w *spmd.World, cfg layout.Config, batch int) (seconds float64, err error)

// measureLayers balances the stages of a pipeline by measured times of a layer and of the
// head, if --balance asks for it. Every rank times both passes of a model of one layer and of
// two. The slowest rank counts.
//
// It keeps the given rates if the models do not fit into room bytes, or if the times make no
// sense. The cache folder of rank 0 keeps the times, so that later runs have the same stages. It
// blocks. Every rank calls it.
func (o *Options) measureLayers(w *spmd.World, room int, timed timePasses) error {
	if o.pp == 1 || o.balance == "rates" || o.balance == "auto" && o.onHost {
		return nil
	}
	const tokens = 8192 // products of more are no faster
	batch := min(max(1, o.Batch), max(1, tokens/o.Seq))
	cache, key := nvrtc.DefaultCache(), o.balanceKey(w, batch)
	kept, err := library.Choose(w, "--balance", func() (t layout.Times, err error) {
		if data, ok := cache.Get(key); ok && json.Unmarshal(data, &t) != nil {
			t = layout.Times{} // not what was put there: it is measured anew
		}
		return t, nil
	})
	if err != nil {
		return err
	}
	all := float64(batch * o.Seq) // tokens
	if kept.Layer > 0 {
		o.Cfg.Times = kept
		w.Log().Info().Str("layer", spmd.Amount(all*kept.Layer, "s")).Int("tokens", batch*o.Seq).
			Msg("stages are balanced by times of an earlier run, from the cache folder")
		return nil
	}
	var took [2]float64 // seconds a token
	for i := range took {
		cfg := o.Cfg.Whole()
		cfg.Layers, cfg.Shard = i+1, layout.Sharding{}
		need, err := gpt.MemoryNeeded(cfg, batch, o.Seq, o.DType == "bfloat16")
		if err != nil {
			return err
		}
		if need > room {
			w.Log().Info().Msgf("stages are balanced by the rates of an H200: timing a layer needs %s",
				spmd.Amount(need, "B"))
			return nil
		}
		if took[i], err = timed(w, cfg, batch); err != nil {
			return err
		}
	}
	layer, head := took[1]-took[0], 2*took[0]-took[1]
	if layer <= 0 || head < 0 {
		w.Log().Info().Msg("stages are balanced by the rates of an H200: the times of a layer and of the head vary " +
			"too much")
		return nil
	}
	// Quarters of a layer: small variations from run to run seldom change the stages.
	o.Cfg.Times = layout.Times{Layer: layer, Head: math.Round(4*head/layer) / 4 * layer}
	if w.Rank() == 0 {
		if data, err := json.Marshal(o.Cfg.Times); err == nil {
			_ = cache.Put(key, data) // the start has said why the folder keeps nothing
		}
	}
	w.Log().Info().Str("layer", spmd.Amount(all*layer, "s")).Str("head", spmd.Amount(all*head, "s")).
		Int("tokens", batch*o.Seq).Msg("timed what stages are balanced by")
	return nil
}

// balanceKey names everything that the times depend on.
func (o *Options) balanceKey(w *spmd.World, batch int) string {
	cfg := o.Cfg.Whole()
	cfg.Layers, cfg.Shard, cfg.Times = 0, layout.Sharding{}, layout.Times{}
	return fmt.Sprintf("times of a layer on %d ranks with %s: %+v, %s, %d sequences of %d tokens",
		w.Size(), w.Device(), cfg, o.DType, batch, o.Seq)
}

// timeHere is a timePasses that returns the slowest rank's time.
func (o *Options) timeHere(w *spmd.World, cfg layout.Config, batch int) (seconds float64, err error) {
	state, model, err := gpt.Open(w, o.DType == "bfloat16", cfg, batch, o.Seq)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	s, err := w.NewStream("timing")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	n := batch * o.Seq
	list := make([]int32, ops.SortedLen(n, cfg.Vocab))
	text := make([]int32, n)
	for i := range text {
		text[i] = int32(i % cfg.Vocab)
	}
	new(ops.Sorter).Sort(list, text, cfg.Vocab)
	var space layout.Space
	space.W = w
	b := gpt.Batch{B: batch, T: o.Seq}
	layout.Take(&space, n, &b.In, &b.Targets)
	layout.Take(&space, len(list), &b.Sorted)
	defer func() { err = errors.Join(err, space.Free()) }()
	if space.Err != nil {
		return 0, space.Err
	}
	if err := errors.Join(b.In.CopyFrom(text), b.Targets.CopyFrom(text), b.Sorted.CopyFrom(list),
		state.Refresh(s)); err != nil {
		return 0, err
	}
	t, err := telemetry.MeasureStream(w.Comm(), s, !o.onHost, 2, 5, func() error {
		return model.ForwardBackward(s, b, 1/float32(n), gpt.FromZero, nil)
	})
	return t.MinUS / 1e6 / float64(n), err
}
