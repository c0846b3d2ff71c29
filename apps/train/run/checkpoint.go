package run

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/trainer"
	"lockstep/internal/runfiles"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
)

// setting is something that the course of a run depends on.
type setting struct {
	name  string
	value string
	fixed bool // a run cannot go on with another value
}

// settings lists the settings of a run on the data with the given key.
func (o *Options) settings(seed uint64, key []byte) []setting {
	float := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	return []setting{
		{"parts", o.Cfg.Parts.String(), true},
		{"--optimizer", o.optimizer, true},
		{"--layers", strconv.Itoa(o.layers), true},
		{"--heads", strconv.Itoa(o.heads), true},
		{"--channels", strconv.Itoa(o.channels), true},
		{"positions", strconv.Itoa(o.Cfg.SeqMax), true},
		{"--seq", strconv.Itoa(o.Seq), true},
		{"--tokens", o.Tok.Name(), true},
		{"the hash of --data", hex.EncodeToString(key), true},
		{"--seed", strconv.FormatUint(seed, 10), true},
		{"--global-batch", strconv.Itoa(o.GlobalBatch), false},
		{"--grow-batch", strconv.Itoa(o.growBatch), false},
		{"--steps", strconv.Itoa(o.steps), false},
		{"--schedule", o.schedule, false},
		{"--warmup-steps", strconv.Itoa(o.warmup), false},
		{"--lr", float(o.lr), false},
		{"--embed-lr", float(o.embedLR), false},
		{"--head-lr", float(o.headLR), false},
		{"--vector-lr", float(o.vectorLR), false},
		{"--min-lr", float(o.minLR), false},
		{"--weight-decay", float(o.weightDecay), false},
		{"--beta1", float(o.beta1), false},
		{"--beta2", float(o.beta2), false},
		{"--clip", float(o.clip), false},
		{"--dtype", o.DType, false},
		{"--fp8", o.FP8, false},
	}
}

// saved is the content of a checkpoint beside the tensors. The number of sequences is the place in
// the data: the seed and this number give epoch, order, offset, and everything random.
type saved struct {
	Sequences int               `json:"sequences"` // learned from
	Settings  map[string]string `json:"settings"`
	// exponents of the scales of 8-bit floats for the next step, if there are any
	Scales []int `json:"fp8_scales,omitempty"`
	record
}

// setting returns one of Settings. If the saving run did not know it, the value is from settled.
func (s *saved) setting(name string) string {
	if was, ok := s.Settings[name]; ok {
		return was
	}
	return settled[name]
}

// settled holds the values that runs had before a setting became a choice.
var settled = func() map[string]string {
	float := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	return map[string]string{"--fp8": layout.FP8Off.String(), "parts": layout.Parts(0).String(), "--grow-batch": "0",
		"--optimizer": adamW, "--schedule": cosine, "--embed-lr": float(trainer.DefaultMuon.Embeddings),
		"--head-lr": float(trainer.DefaultMuon.Heads), "--vector-lr": float(trainer.DefaultMuon.Vectors)}
}()

// saver keeps the checkpoints of a run. The nil saver keeps none.
type saver struct {
	*checkpoint.Manager
	o     *Options
	w     *spmd.World
	key   []byte // of the data
	found *saved // in the checkpoint to go on from; nil if a run begins
	step  int    // that it is of
	begun bool   // a save of this run was
	good  bool   // and one is complete

	saving *saving
}

// openSaver opens --checkpoint and looks for a run to resume. It takes the global batch of that run
// unless the command line has one. Every rank calls it.
func (o *Options) openSaver(w *spmd.World, key []byte) (*saver, error) {
	if o.Checkpoint == "" {
		return nil, nil
	}
	if _, err := os.Stat(o.Checkpoint); o.resume == "must" && errors.Is(err, os.ErrNotExist) { // Open would make it
		return nil, o.noCheckpoint()
	}
	saving := &saving{w: w}
	c, err := checkpoint.Open(w, o.Checkpoint,
		checkpoint.Config{Keep: o.keep, OnTrial: true, Written: saving.written, Saved: func(k checkpoint.Info) {
			saving.end()
			w.Log().Info().Int("steps", k.Step).Str("to", k.Folder).Int64("bytes", k.Bytes).
				Str("seconds", fmt.Sprintf("%.2f", k.Took.Seconds())).Msg("checkpoint saved")
		}})
	if err != nil {
		return nil, spmd.Usage(fmt.Errorf("--checkpoint: %w", err))
	}
	s := &saver{Manager: c, o: o, w: w, key: key, saving: saving}
	if err := s.look(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (o *Options) noCheckpoint() error {
	return spmd.Usage(fmt.Errorf("--resume must: no checkpoint in %s", o.Checkpoint))
}

func (s *saver) look() error {
	o, found := s.o, new(saved)
	step, err := s.Load(found)
	switch none := errors.Is(err, checkpoint.ErrNotFound); {
	case none && o.resume == "must":
		return o.noCheckpoint()
	case none:
		return nil
	case err != nil:
		return err
	case o.resume == "never":
		return spmd.Usage(fmt.Errorf("--resume never: %s holds the checkpoint of a run, after %d steps: name "+
			"another folder, or remove it", o.Checkpoint, step))
	}
	if err := found.check(step, o.Seq); err != nil {
		return spmd.Usage(fmt.Errorf("the checkpoint in %s is none of train's: %w", o.Checkpoint, err))
	}
	if !o.Given("global-batch") {
		n, err := found.Number("--global-batch") // as checked before
		if err != nil {
			return err
		}
		if n < o.replicas(s.w.Size()) {
			return spmd.Usage(fmt.Errorf("%s has a run with --global-batch %d, less than the %d replicas of the "+
				"model: each needs a sequence", o.Checkpoint, n, o.replicas(s.w.Size())))
		}
		o.GlobalBatch, o.fixedGlobal = n, true
	}
	if !o.Given("grow-batch") {
		o.growBatch, err = strconv.Atoi(found.setting("--grow-batch"))
		if err != nil || o.growBatch < 0 || o.growBatch > maxNumber {
			return spmd.Usage(fmt.Errorf("the checkpoint in %s is none of train's: --grow-batch is %q",
				o.Checkpoint, found.setting("--grow-batch")))
		}
		if o.growBatch > 0 && o.growBatch < o.replicas(s.w.Size()) {
			return spmd.Usage(fmt.Errorf("%s has a run with --grow-batch %d, less than the %d replicas of the "+
				"model: each needs a sequence", o.Checkpoint, o.growBatch, o.replicas(s.w.Size())))
		}
	}
	o.takeRate()
	if was := found.Settings["--dtype"]; !o.Given("dtype") && (was == "float32" || was == "bfloat16") {
		o.DType = was
	}
	asked := "--fp8 " + o.FP8
	if was := found.setting("--fp8"); !o.Given("fp8") && was != o.FP8 {
		if o.Cfg.FP8, err = layout.ParseFP8(was); err != nil {
			return spmd.Usage(fmt.Errorf("the checkpoint in %s is none of train's: --fp8 is %q", o.Checkpoint, was))
		}
		o.FP8, asked = was, fmt.Sprintf("%s has a run with --fp8 %s, which", o.Checkpoint, was)
	}
	if err := ops.CheckFP8(s.w, o.Cfg.FP8, o.DType, asked); err != nil {
		return err
	}
	if err := o.Cfg.Validate(); err != nil {
		return spmd.Usage(err)
	}
	s.found = found
	_, err = s.compare()
	return err
}

// check refuses numbers that a run of so many steps, with sequences of seq tokens, cannot have come
// to. Anybody may have written the file.
func (s *saved) check(step, seq int) error {
	if n, err := s.Number("--global-batch"); err != nil || n > maxNumber {
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

// compare refuses a checkpoint that this run cannot resume from. It lists the other settings that
// differ from the saved ones.
func (s *saver) compare() (changed []string, err error) {
	for _, now := range s.o.settings(s.w.Seed(), s.key) {
		was := s.found.setting(now.name)
		switch {
		case was == now.value:
		case now.fixed:
			return nil, spmd.Usage(fmt.Errorf(
				"%s is %q, but %q in the run that %s holds: set it so, or name another folder for --checkpoint",
				now.name, now.value, was, s.o.Checkpoint))
		default:
			changed = append(changed, fmt.Sprintf("%s from %s to %s", now.name, was, now.value))
		}
	}
	return changed, nil
}

// start makes t ready for the first step, of a new run or of the found one. It
// blocks. Every rank calls it.
func (s *saver) start(t *trainer.Trainer) error {
	if s == nil || s.found == nil {
		return t.Begin(t.World.Seed())
	}
	found := new(saved) // it may be one before: the files are read again
	step, err := s.Load(found, t.ItemsToLoad()...)
	if err != nil {
		return err
	}
	if err := found.check(step, s.o.Seq); err != nil {
		return fmt.Errorf("the checkpoint in %s: %w", s.o.Checkpoint, err)
	}
	s.found, s.step = found, step
	changed, err := s.compare()
	if err != nil {
		return err
	}
	for _, c := range changed {
		t.World.Log().Warn().Msg("the run goes on with another setting: " + c)
	}
	t.Skipped = s.found.Skipped
	// Gradients are in proportion to the tokens of a step, so another
	// global batch needs other scales.
	same := s.found.setting("--fp8") == s.o.FP8 &&
		s.found.Settings["--global-batch"] == strconv.Itoa(s.o.GlobalBatch) &&
		s.found.setting("--grow-batch") == strconv.Itoa(s.o.growBatch)
	if same && ops.ScalesFit(s.found.Scales, s.o.Cfg.FP8Sites()) {
		t.Scales = s.found.Scales
	}
	t.Data.Before = s.found.Sequences - t.Data.Growth.Before(step)
	if err := t.StartAt(step); err != nil {
		return err
	}
	if err := t.Audit(step); err != nil {
		return err
	}
	if s.o.initFrom != "" {
		t.World.Log().Info().Msg("the weights are those of the checkpoint, not of --init-from")
	}
	t.World.Log().Info().Int("steps", step).Int("sequences", s.found.Sequences).Str("from", s.o.Checkpoint).
		Msg("resumed")
	if step >= s.o.steps {
		t.World.Log().Info().Msgf("--steps %d are done: no step is left, and a larger number goes on", s.o.steps)
	}
	return nil
}

// blame adds advice to the error of a step that has diverged. begun says that
// this start had no good step.
func (s *saver) blame(err error, begun bool) error {
	if s == nil || s.found == nil || !begun {
		return fmt.Errorf("%w; try a lower --lr, or --skip-bad-steps", err)
	}
	all, lerr := runfiles.Checkpoints(s.o.Checkpoint)
	at := slices.IndexFunc(all, func(k runfiles.Checkpoint) bool { return k.Step == s.step })
	if lerr == nil && at >= 0 {
		err = fmt.Errorf("%w; no step from %s on is a good one", err, all[at].Path)
		if at+1 < len(all) {
			return fmt.Errorf("%w; the checkpoint before it is %s: move %s away to go on from there",
				err, all[at+1].Path, all[at].Path)
		}
	}
	return fmt.Errorf("%w; there is no checkpoint before: begin in another folder, with a lower --lr", err)
}

// record returns what the reports of the run have left so far.
func (s *saver) record() record {
	if s == nil || s.found == nil {
		return record{}
	}
	return s.found.record
}

// save begins to save t after a number of steps, which have been read. It returns when the next
// step may begin. Every rank calls it.
//
// If the first save has failed, the next returns an error: the folder is no good. A later failure
// is a warning, since the run can still come to its end.
func (s *saver) save(t *trainer.Trainer, steps int, rec record) error {
	switch err := s.Wait(); {
	case err != nil && !s.good:
		return err
	case err != nil:
		s.saving.end()
		s.w.Log().Warn().Err(err).Msg("the run goes on; if it is interrupted now it resumes from an older checkpoint")
	default:
		s.good = s.begun
	}
	meta := saved{Sequences: t.Data.Number(steps, 0), Settings: map[string]string{}, record: rec}
	for _, now := range s.o.settings(s.w.Seed(), s.key) {
		meta.Settings[now.name] = now.value
	}
	if err := t.Stream.Synchronize(); err != nil {
		return err
	}
	if e := t.State.FP8; e != nil {
		var err error
		if meta.Scales, err = e.Scales(); err != nil {
			return err
		}
	}
	if err := s.Save(steps, meta, t.ItemsToSave()...); err != nil {
		return err
	}
	s.begun = true
	s.w.Log().Debug().Int("steps", steps).Str("to", s.o.Checkpoint).Msg("saving")
	return nil
}
