package main

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/ddp"
)

// setting is one thing that the course of a run depends on.
type setting struct {
	name  string
	value string
	fixed bool // a run cannot go on with another value
}

// settings lists them for a run on the data with the given key.
func (o *options) settings(seed uint64, key []byte) []setting {
	float := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	return []setting{
		{"--layers", strconv.Itoa(o.layers), true},
		{"--heads", strconv.Itoa(o.heads), true},
		{"--channels", strconv.Itoa(o.channels), true},
		{"positions", strconv.Itoa(o.cfg.SeqMax), true},
		{"--seq", strconv.Itoa(o.seq), true},
		{"--tokens", o.tok.name(), true},
		{"the hash of --data", hex.EncodeToString(key), true},
		{"--seed", strconv.FormatUint(seed, 10), true},
		{"--global-batch", strconv.Itoa(o.globalBatch), false},
		{"--steps", strconv.Itoa(o.steps), false},
		{"--warmup-steps", strconv.Itoa(o.warmup), false},
		{"--lr", float(o.lr), false},
		{"--min-lr", float(o.minLR), false},
		{"--weight-decay", float(o.weightDecay), false},
		{"--beta1", float(o.beta1), false},
		{"--beta2", float(o.beta2), false},
		{"--clip", float(o.clip), false},
		{"--dtype", o.dtype, false},
		{"--fp8", o.fp8, false},
	}
}

// saved is what a checkpoint holds beside the tensors. The place in the data is
// the number of sequences: epoch, order and offset follow from it and the seed, as
// everything random does.
type saved struct {
	Sequences int               `json:"sequences"` // learned from
	Settings  map[string]string `json:"settings"`
	// Exponents of the scales of 8-bit floats, for the next step; empty where there are none.
	Scales []int `json:"fp8_scales,omitempty"`
	record
}

// setting is one of Settings; what the run did not know yet is off.
func (s *saved) setting(name string) string {
	if was, ok := s.Settings[name]; ok || name != "--fp8" {
		return was
	}
	return fp8Off.String()
}

// saver keeps the checkpoints of a run. The nil saver keeps none.
type saver struct {
	*checkpoint.Manager
	o     *options
	w     *spmd.World
	key   []byte // of the data
	found *saved // in the checkpoint to go on from; nil where a run begins
	begun bool   // a save of this run was
	good  bool   // and one is complete
}

// openSaver opens --checkpoint and looks for a run to go on with, whose global batch
// it takes unless the command line has one. Every rank calls it.
func (o *options) openSaver(w *spmd.World, key []byte) (*saver, error) {
	if o.checkpoint == "" {
		return nil, nil
	}
	c, err := checkpoint.Open(w, o.checkpoint, checkpoint.Config{Keep: o.keep, Saved: func(k checkpoint.Info) {
		w.Log().Info().Int("steps", k.Step).Str("to", k.Folder).Int64("bytes", k.Bytes).
			Str("seconds", fmt.Sprintf("%.2f", k.Took.Seconds())).Msg("checkpoint saved")
	}})
	if err != nil {
		return nil, spmd.Usage(fmt.Errorf("--checkpoint: %w", err))
	}
	s := &saver{Manager: c, o: o, w: w, key: key}
	if err := s.look(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (s *saver) look() error {
	o, found := s.o, new(saved)
	step, err := s.Load(found)
	switch none := errors.Is(err, checkpoint.ErrNotFound); {
	case none && o.resume == "must":
		return spmd.Usage(fmt.Errorf("--resume must: no checkpoint in %s", o.checkpoint))
	case none:
		return nil
	case err != nil:
		return err
	case o.resume == "never":
		return spmd.Usage(fmt.Errorf("--resume never: %s holds the checkpoint of a run, after %d steps: name another folder, or remove it", o.checkpoint, step))
	}
	if err := found.check(step, o.seq); err != nil {
		return spmd.Usage(fmt.Errorf("the checkpoint in %s is none of train's: %w", o.checkpoint, err))
	}
	if !o.given("global-batch") {
		n, err := found.number("--global-batch") // as checked before
		if err != nil {
			return err
		}
		if n < s.w.Size() {
			return spmd.Usage(fmt.Errorf("%s has a run with --global-batch %d, less than the %d ranks: each needs a sequence", o.checkpoint, n, s.w.Size()))
		}
		o.globalBatch, o.fixedGlobal = n, true
	}
	if was := found.Settings["--dtype"]; !o.given("dtype") && (was == "float32" || was == "bfloat16") {
		o.dtype = was
	}
	asked := "--fp8 " + o.fp8
	if was := found.setting("--fp8"); !o.given("fp8") && was != o.fp8 {
		if o.cfg.FP8, err = parseFP8(was); err != nil {
			return spmd.Usage(fmt.Errorf("the checkpoint in %s is none of train's: --fp8 is %q", o.checkpoint, was))
		}
		o.fp8, asked = was, fmt.Sprintf("%s has a run with --fp8 %s, which", o.checkpoint, was)
	}
	if err := checkFP8(s.w, o.cfg.FP8, o.dtype, asked); err != nil {
		return err
	}
	if err := cmp.Or(o.checkShard(asked), o.checkRecompute(asked)); err != nil {
		return spmd.Usage(err)
	}
	s.found = found
	_, err = s.compare()
	return err
}

// check refuses numbers that no run of so many steps can have come to, with sequences of
// seq tokens: the file may be anybody's.
func (s *saved) check(step, seq int) error {
	if n, err := s.number("--global-batch"); err != nil || n > maxNumber {
		return fmt.Errorf("--global-batch is %q", s.Settings["--global-batch"])
	}
	if step > maxNumber || s.Sequences < step || s.Sequences > step*maxNumber || s.Sequences > math.MaxInt64/2/seq {
		return fmt.Errorf("%d sequences of %d tokens in %d steps", s.Sequences, seq, step)
	}
	if s.Skipped < 0 || s.Skipped > step {
		return fmt.Errorf("%d of %d steps left out", s.Skipped, step)
	}
	return nil
}

// compare refuses a checkpoint that this run cannot go on from, and lists what else
// is set otherwise than when it was saved.
func (s *saver) compare() (changed []string, err error) {
	for _, now := range s.o.settings(s.w.Seed(), s.key) {
		was := s.found.setting(now.name)
		switch {
		case was == now.value:
		case now.fixed:
			return nil, spmd.Usage(fmt.Errorf("%s is %q, but %q in the run that %s holds: set it so, or name another folder for --checkpoint",
				now.name, now.value, was, s.o.checkpoint))
		default:
			changed = append(changed, fmt.Sprintf("%s from %s to %s", now.name, was, now.value))
		}
	}
	return changed, nil
}

// start makes t ready for the first step: of a new run, or of the one that was found.
// It blocks. Every rank calls it.
func (s *saver) start(t *trainer) error {
	if s == nil || s.found == nil {
		return t.begin(t.w.Seed())
	}
	found := new(saved) // it may be one before: the files are read again
	step, err := s.Load(found, t.items()...)
	if err != nil {
		return err
	}
	if err := found.check(step, s.o.seq); err != nil {
		return fmt.Errorf("the checkpoint in %s: %w", s.o.checkpoint, err)
	}
	s.found = found
	changed, err := s.compare()
	if err != nil {
		return err
	}
	for _, c := range changed {
		t.w.Log().Warn().Msg("the run goes on with another setting: " + c)
	}
	t.skipped = s.found.Skipped
	// Gradients are in proportion to the tokens of a step: other scales suit another global batch.
	same := s.found.setting("--fp8") == s.o.fp8 && s.found.Settings["--global-batch"] == strconv.Itoa(s.o.globalBatch)
	if same && usable(s.found.Scales, s.o.cfg.fp8Sites()) {
		t.scales = s.found.Scales
	}
	t.data.before = s.found.Sequences - step*t.data.global
	if err := t.startAt(step); err != nil {
		return err
	}
	if err := t.audit(step); err != nil {
		return err
	}
	if s.o.initFrom != "" {
		t.w.Log().Info().Msg("the weights are those of the checkpoint, not of --init-from")
	}
	t.w.Log().Info().Int("steps", step).Int("sequences", s.found.Sequences).Str("from", s.o.checkpoint).Msg("resumed")
	return nil
}

// record returns what the reports of the run so far left.
func (s *saver) record() record {
	if s == nil || s.found == nil {
		return record{}
	}
	return s.found.record
}

// save begins to save t after a number of steps, which have been read. It returns
// when the next step may begin. Where the save before has failed that is an error if
// it was the first: the folder is no good. Later it is a warning, since the run can
// still come to its end. Every rank calls it.
func (s *saver) save(t *trainer, steps int, rec record) error {
	switch err := s.Wait(); {
	case err != nil && !s.good:
		return err
	case err != nil:
		s.w.Log().Warn().Err(err).Msg("the run goes on; if it is interrupted now it resumes from an older checkpoint")
	default:
		s.good = s.begun
	}
	meta := saved{Sequences: t.data.number(steps, 0), Settings: map[string]string{}, record: rec}
	for _, now := range s.o.settings(s.w.Seed(), s.key) {
		meta.Settings[now.name] = now.value
	}
	if err := t.s.Synchronize(); err != nil {
		return err
	}
	if e := t.state.fp8; e != nil {
		var err error
		if meta.Scales, err = e.scales(); err != nil {
			return err
		}
	}
	if err := s.Save(steps, meta, t.items()...); err != nil {
		return err
	}
	s.begun = true
	s.w.Log().Debug().Int("steps", steps).Str("to", s.o.checkpoint).Msg("saving")
	return nil
}

// replicas are the arenas that are the same on all ranks.
func (t *trainer) replicas() []arena {
	var same []arena
	for _, a := range t.arenas() {
		if !a.shared {
			same = append(same, a)
		}
	}
	return same
}

// arenas are the numbers that a run keeps for each parameter.
func (t *trainer) arenas() []arena {
	mode, weights := t.state.Cfg.Shard.Mode, t.state.Weights
	if mode == shardParameters {
		weights = t.state.sharded.weights
	}
	return []arena{{"model.", mode == shardParameters, weights}, {"adam.m.", mode != shardOff, t.adam.M}, {"adam.v.", mode != shardOff, t.adam.V}}
}

// arena is a buffer with all parameters, or one number for each of them.
type arena struct {
	prefix string // of its tensors' names
	shared bool   // this rank has its shard only
	spmd.Buffer[float32]
}

// of returns what this rank has of a parameter in an arena: its elements from skip on.
func (m *State) of(a arena, p Param) (skip int, have spmd.Buffer[float32]) {
	if !a.shared {
		return 0, a.Slice(p.Off, p.Off+p.Len)
	}
	skip, at, n := m.sharded.Own(p.Group, p.Off, p.Off+p.Len)
	return skip, a.Slice(at, at+n)
}

// items are the tensors of a checkpoint: together with the number of steps and of
// sequences they are all that the next step depends on. --shard does not change them.
func (t *trainer) items() []checkpoint.Item {
	var items []checkpoint.Item
	for _, a := range t.arenas() {
		for _, p := range t.state.Params {
			skip, have := t.state.of(a, p)
			if a.shared {
				items = append(items, checkpoint.Sharded(a.prefix+p.Name, have, skip, p.Len))
			} else {
				items = append(items, checkpoint.Replicated(a.prefix+p.Name, have))
			}
		}
	}
	return items
}

// audit fails where what is to be the same on all ranks differs after a number of steps: the
// weights and moments that are not shared. It names the first tensor that does. It blocks. Every rank of c
// calls it.
func (t *trainer) audit(steps int) error {
	if err := t.gather(); err != nil {
		return err
	}
	if err := t.s.Synchronize(); err != nil {
		return err
	}
	if t.sharder != nil {
		if err := ddp.CheckSame(t.c, fmt.Sprintf("the number of updates after %d steps", steps), t.adam.counts); err != nil {
			return err
		}
	}
	if e := t.state.fp8; e != nil {
		if err := ddp.CheckSame(t.c, fmt.Sprintf("the scales of 8-bit floats after %d steps", steps), e.up); err != nil {
			return err
		}
	}
	for _, a := range t.replicas() {
		err := ddp.CheckSame(t.c, fmt.Sprintf("%sweights after %d steps", a.prefix, steps), a.Buffer)
		if err == nil {
			continue
		}
		for _, p := range t.state.Params {
			name := fmt.Sprintf("%s%s after %d steps", a.prefix, p.Name, steps)
			if err := ddp.CheckSame(t.c, name, a.Slice(p.Off, p.Off+p.Len)); err != nil {
				return err
			}
		}
		return err
	}
	return nil
}
