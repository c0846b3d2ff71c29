package run

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"lockstep/apps/train/ops"
	"lockstep/apps/train/text"
	"lockstep/apps/train/trainer"
	"lockstep/internal/schedule"
	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// StepRecord is one step in the measurement file.
type StepRecord struct {
	Step     int      `json:"step"` // from 1
	Loss     float64  `json:"loss" unit:"nats a token"`
	LR       float64  `json:"lr"`
	GradNorm float64  `json:"grad_norm"`
	Tokens   int      `json:"tokens"` // learned from so far
	TokS     float64  `json:"tok_s" unit:"tokens a second"`
	Ms       float64  `json:"ms"`
	ValLoss  *float64 `json:"val_loss,omitempty" unit:"nats a token"` // of a validation behind it
}

// skippedRecord is a step that was left out. It has no numbers that may not be finite.
type skippedRecord struct {
	Step     int      `json:"step"`
	Skipped  bool     `json:"skipped"`
	Loss     *float64 `json:"loss"`
	LR       float64  `json:"lr"`
	GradNorm *float64 `json:"grad_norm"`
	Tokens   int      `json:"tokens"`
	TokS     float64  `json:"tok_s"`
	Ms       float64  `json:"ms"`
	ValLoss  *float64 `json:"val_loss,omitempty"`
}

// SummaryRecord is the last line of the measurement file.
type SummaryRecord struct {
	Summary     bool     `json:"summary"`
	App         string   `json:"app"`
	Model       string   `json:"model"`
	DType       string   `json:"dtype"`
	Params      int      `json:"params"`
	Steps       int      `json:"steps"`
	Tokens      int      `json:"tokens"`
	TokS        float64  `json:"tok_s"` // of this run's steps but the first
	MFU         float64  `json:"mfu"`   // 0 if the device's peak is unknown
	LossFirst   float64  `json:"loss_first"`
	LossLast    float64  `json:"loss_last"`
	ValLoss     *float64 `json:"val_loss"`      // null without validation
	Skipped     int      `json:"skipped_steps"` // their loss or norm was not finite
	Ranks       int      `json:"ranks"`
	Nodes       int      `json:"nodes"`
	Device      string   `json:"device"`
	Collectives string   `json:"collectives"`

	Needs int `json:"needs_bytes"` // what a rank was going to need of its device
	Peak  int `json:"peak_bytes"`  // of the rank with the most; both without the memory of libraries

	Parts  int `json:"tp,omitempty"` // of each layer
	Stages int `json:"pp,omitempty"` // of a pipeline
	// the part of a step in which stages wait, by the times that balance them
	Bubble float64 `json:"bubble,omitempty"`

	Idle []float64 `json:"idle,omitempty"` // each stage's, measured with --summary or --trace after the first step
}

// report tells of the steps: log lines and a bar for people, JSON for programs.
type report struct {
	record
	o     *Options
	w     *spmd.World
	bar   *telemetry.Work
	data  *trainer.Dataset
	from  int           // steps of runs before this one
	steps int           // reported so far, those included
	good  int           // of this start that have changed the weights
	took  time.Duration // of the steps of this run but the first
	only  time.Duration // of the first, in which things are tuned and compiled

	saving *saving // nil without checkpoints
}

// record is a report's memory of a run from one start to the next.
type record struct {
	First float64  `json:"loss_first"`
	Last  float64  `json:"loss_last"`
	Val   *float64 `json:"val_loss"` // of the last validation
	// steps that were left out, since their loss or norm was not finite
	Skipped int `json:"skipped,omitempty"`
}

// newReport returns a report that begins at t's step. c has the checkpoints, or is nil.
func newReport(o *Options, w *spmd.World, t *trainer.Trainer, c *saver) *report {
	bar := telemetry.StartWork(w, "training", int64(o.steps), "steps").Quiet().From(int64(t.First))
	r := &report{record: c.record(), o: o, w: w, bar: bar, data: t.Data, from: t.First, steps: t.First}
	if c != nil {
		r.saving = c.saving
	}
	return r
}

// upTo reports the steps before n that it has not reported yet. val is the validation
// after the last of them, or nil.
func (r *report) upTo(t *trainer.Trainer, n int, val *float64) error {
	for ; r.steps < n; r.steps++ {
		loss, norm, took, err := t.Read(r.steps)
		if err != nil {
			return err
		}
		if r.steps > r.from {
			r.took += took
		} else {
			r.only = took
		}
		perStep := r.data.Growth.At(r.steps) * r.o.Seq
		rec := StepRecord{Step: r.steps + 1, Loss: loss, LR: t.RateAt(r.steps), GradNorm: norm,
			Tokens: r.data.Number(r.steps+1, 0) * r.o.Seq,
			TokS:   float64(perStep) / took.Seconds(), Ms: float64(took.Nanoseconds()) / 1e6}
		if val != nil && r.steps == n-1 {
			rec.ValLoss, r.Val = val, val
		}
		if trainer.Bad(loss, norm) {
			err = r.skip(rec)
		} else {
			err = r.step(rec)
		}
		if err != nil {
			return err
		}
		r.bar.Add(1)
	}
	return nil
}

// step reports a step that has changed the weights.
func (r *report) step(rec StepRecord) error {
	if r.steps == r.Skipped { // it is the first
		r.First = rec.Loss
	}
	r.Last = rec.Loss
	r.good++
	if err := r.w.Emit(rec); err != nil {
		return err
	}
	note := ""
	if r.saving != nil {
		note = r.saving.note()
	}
	r.bar.Note("loss %.3f%s", rec.Loss, note)
	if rec.ValLoss != nil || r.steps == r.from || rec.Step == r.o.steps || rec.Step%r.o.logEvery == 0 {
		r.log(r.w.Log().Info(), rec, "step %d/%d")
	}
	return nil
}

// skip reports a step that was left out.
func (r *report) skip(rec StepRecord) error {
	r.Skipped++
	r.log(r.w.Log().Warn(), rec, "step %d/%d is left out: its loss or gradient is not finite")
	known := func(x float64) *float64 {
		if !ops.Finite(x) { // JSON has no such numbers
			return nil
		}
		return &x
	}
	return r.w.Emit(skippedRecord{rec.Step, true, known(rec.Loss), rec.LR, known(rec.GradNorm), rec.Tokens, rec.TokS,
		rec.Ms, rec.ValLoss})
}

// log writes a line about a step.
func (r *report) log(e *zerolog.Event, rec StepRecord, format string) {
	e = e.Str("loss", fmt.Sprintf("%.4f", rec.Loss)).Str("lr", spmd.Amount(rec.LR, "")).
		Str("norm", spmd.Amount(rec.GradNorm, "")).Str("ms", spmd.Amount(rec.Ms, "")).
		Str("tok/s", spmd.Amount(rec.TokS, ""))
	if rec.ValLoss != nil {
		e = e.Str("val_loss", fmt.Sprintf("%.4f", *rec.ValLoss))
	}
	e.Msgf(format, rec.Step, r.o.steps)
}

// interrupted reports a run that ends early and can resume.
func (r *report) interrupted(how string) {
	r.bar.Done()
	r.w.Log().Info().Int("steps", r.steps).Str("loss_last", fmt.Sprintf("%.4f", r.Last)).Msg(how)
}

// idleOf returns the part of the time that each stage of the pipeline waited, over all replicas and
// without the first step. It returns none if nothing was measured. Every rank calls it.
func idleOf(w *spmd.World, t *trainer.Trainer) ([]float64, error) {
	own, err := t.StageTime()
	if err != nil {
		return nil, err
	}
	var all [2][]int64 // of the ranks, those of a stage together
	for i, d := range [...]time.Duration{own.Whole, own.Waiting} {
		if all[i], err = text.GatherOne(w, w.Comm(), int64(d)); err != nil {
			return nil, err
		}
	}
	if slices.Max(all[0]) == 0 {
		return nil, nil
	}
	times := make([]schedule.Time, len(all[0]))
	for i := range times {
		times[i] = schedule.Time{Whole: time.Duration(all[0][i]), Waiting: time.Duration(all[1][i])}
	}
	ranks, idle := schedule.Idle(times), []float64(nil)
	n := len(ranks) / t.State.Cfg.Stage.Stages
	for stage := range slices.Chunk(ranks, n) {
		idle = append(idle, mean(stage))
	}
	return idle, nil
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// summary reports the whole run.
func (r *report) summary(t *trainer.Trainer, params int) error {
	s := SummaryRecord{Summary: true, App: "train", Model: r.o.model, DType: r.o.DType, Params: params, Steps: r.steps,
		Tokens: r.data.Number(r.steps, 0) * r.o.Seq, LossFirst: r.First, LossLast: r.Last, ValLoss: r.Val,
		Skipped: r.Skipped, Ranks: r.w.Size(), Nodes: r.w.Nodes(), Device: r.w.Device(), Collectives: r.w.Collectives()}
	n, from, took := r.steps-r.from-1, r.from+1, r.took
	if n == 0 {
		n, from, took = 1, r.from, r.only
	}
	if n > 0 {
		s.TokS = float64((r.data.Number(r.steps, 0)-r.data.Number(from, 0))*r.o.Seq) / took.Seconds()
		r.w.Summarize("tokens a second", fmt.Sprintf("%.0f", s.TokS))
		if peak := peakFlops(s.Device, s.DType); peak > 0 {
			s.MFU = s.TokS * r.o.Cfg.FlopsPerToken(r.o.Seq) / (peak * float64(s.Ranks))
			r.w.Summarize("MFU", fmt.Sprintf("%.1f %%", 100*s.MFU))
		}
	}
	peaks, err := text.GatherOne(r.w, r.w.Comm(), int64(r.w.MemoryPeak()))
	if err != nil {
		return err
	}
	s.Needs, s.Peak = r.o.need, int(slices.Max(peaks))
	r.bar.Done()
	e := r.w.Log().Info().Int("steps", s.Steps).Int("tokens", s.Tokens).
		Str("loss_first", fmt.Sprintf("%.4f", s.LossFirst)).
		Str("loss_last", fmt.Sprintf("%.4f", s.LossLast)).Str("memory", spmd.Amount(s.Peak, "B"))
	if n > 0 {
		e = e.Str("tok/s", spmd.Amount(s.TokS, ""))
	}
	if s.ValLoss != nil {
		e = e.Str("val_loss", fmt.Sprintf("%.4f", *s.ValLoss))
	}
	s.Parts = t.State.Cfg.Tensor.Ranks
	if cfg := t.State.Cfg; cfg.Stage.Stages > 1 {
		s.Stages, s.Bubble = cfg.Stage.Stages, cfg.Idle(r.o.Seq)
		e = e.Str("bubble", percent(s.Bubble))
		if s.Idle, err = idleOf(r.w, t); err != nil {
			return err
		}
		told := percent(s.Bubble)
		if len(s.Idle) > 0 {
			each := make([]string, len(s.Idle))
			for i, part := range s.Idle {
				each[i] = percent(part)
			}
			all := percent(mean(s.Idle))
			e = e.Str("bubble_measured", all)
			told += fmt.Sprintf(" calculated, %s measured; by stage %s", all, strings.Join(each, ", "))
		}
		r.w.Summarize("bubble of the pipeline", told)
	}
	if s.Skipped > 0 {
		e = e.Int("skipped", s.Skipped)
	}
	e.Msg("done")
	return r.w.Emit(s)
}
