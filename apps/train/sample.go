package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/run"
	"lockstep/apps/train/text"
	"lockstep/internal/cli"
	"lockstep/internal/readable"
	"lockstep/spmd"
)

// sampler is the command sample.
type sampler struct {
	checkpoint, prompt, dtype string
	tokens, topK              int
	temperature               float64
	ignoreEnd, within         bool
	json                      func() string
}

// sampleRecord is a line of --json.
type sampleRecord struct {
	Summary      bool    `json:"summary"`
	App          string  `json:"app"`
	DType        string  `json:"dtype"`
	Steps        int     `json:"steps"`
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"`
	FirstMs      float64 `json:"first_ms"` // from the prompt to the first token
	TokS         float64 `json:"tok_s"`    // of the tokens after the first; 0 without any
	Ranks        int     `json:"ranks"`
	Device       string  `json:"device"`
	Text         string  `json:"text"`
	IDs          []int32 `json:"ids"` // of the tokens that were written
}

func openSample(fs *pflag.FlagSet) (func(context.Context, *spmd.World) error, func(int) error) {
	s := &sampler{json: func() string { return fs.Lookup("json").Value.String() }}
	fs.StringVar(&s.checkpoint, "checkpoint", "", "`DIR` that the run has saved to; the newest checkpoint counts")
	fs.StringVar(&s.prompt, "prompt", "", "`TEXT` to go on from")
	fs.IntVar(&s.tokens, "max-tokens", 400,
		"tokens to write at most; the text ends sooner where the model ends the document")
	fs.BoolVar(&s.ignoreEnd, "ignore-end", false, "write --max-tokens tokens: the model may not end the document")
	fs.BoolVar(&s.within, "mid-document", false,
		"the prompt is out of the middle of a document: no end of text stands before it")
	fs.Float64Var(&s.temperature, "temperature", 0.8, "0 takes the likeliest token, 1 the model's own distribution")
	fs.IntVar(&s.topK, "top-k", 0, "draw from so many of the likeliest tokens only; 0 draws from all")
	fs.StringVar(&s.dtype, "dtype", "",
		"type of the activations: float32 or bfloat16 (default bfloat16 on a GPU, float32 on the host)")
	cli.Choices(fs, "dtype", "float32", "bfloat16")
	return s.run, func(ranks int) error { return cmp.Or(cli.Known(fs), s.check(ranks)) }
}

func (s *sampler) check(ranks int) error {
	switch {
	case ranks != 1:
		return fmt.Errorf("sample runs on one rank, not on %d: leave mpirun out", ranks)
	case s.tokens < 1:
		return fmt.Errorf("--max-tokens %d: must be at least 1", s.tokens)
	case s.within && s.prompt == "":
		return errors.New("--mid-document needs a --prompt: there would be nothing to go on from")
	case s.topK < 0:
		return fmt.Errorf("--top-k %d: must be at least 0", s.topK)
	case !(s.temperature >= 0 && ops.Finite(s.temperature)):
		return fmt.Errorf("--temperature %g: must be a number of at least 0", s.temperature)
	}
	return run.CheckFolder(s.checkpoint)
}

func (s *sampler) run(ctx context.Context, w *spmd.World) (err error) {
	p, err := run.OpenPast(w, s.checkpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	seq, err := p.Number("--seq")
	if err != nil || seq > p.Cfg.SeqMax {
		return spmd.Usage(fmt.Errorf("--checkpoint %s: not a checkpoint of train: --seq is %q",
			s.checkpoint, p.Settings["--seq"]))
	}
	dtype := run.DefaultDType(w, s.dtype)
	stream, err := w.NewStream("sample")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	d, free, err := openDecoder(w, p, stream, seq, dtype == "bfloat16")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close(), free()) }()
	w.Log().Info().Int("steps", p.Step).Int("params", p.Cfg.ParamCount()).Int("seq", seq).Str("tokens", p.Tok.Name()).
		Str("dtype", dtype).Msg("model")
	writer := text.NewWriter(d, p.Tok, seq, s.temperature, s.topK, w.Seed())
	writer.Within, writer.Ends = s.within, !s.ignoreEnd
	return s.write(ctx, w, writer, sampleRecord{Summary: true, App: "sample",
		DType: dtype, Steps: p.Step, Ranks: w.Size(), Device: w.Device()})
}

// openDecoder opens a decoder with the weights of a checkpoint. Call free after closing it.
func openDecoder(w *spmd.World, p *run.Past, s *spmd.Stream, seq int,
	half bool) (d gpt.Decoder, free func() error, err error) {
	if p.Cfg.Parts == 0 {
		weights, err := p.ToDevice(w, s, half)
		if err != nil {
			return nil, nil, err
		}
		if d, err = gpt.NewDecoder(s, p.Cfg, weights.Arena, weights.Half, seq); err != nil {
			return nil, nil, errors.Join(err, weights.Free())
		}
		return d, weights.Free, nil
	}
	state, model, err := gpt.Open(w, half, p.Cfg, 1, seq)
	if err != nil {
		return nil, nil, err
	}
	if err = p.LoadWeights(state.Weights); err == nil {
		err = state.Refresh(s)
	}
	if err == nil {
		d, err = gpt.Repeat(s, seq, p.Cfg.Vocab,
			func(tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error) {
				return model.Logits(s, tokens, before)
			})
	}
	if err != nil {
		return nil, nil, errors.Join(err, state.Close())
	}
	return d, state.Close, nil
}

// write writes the text as it comes, and then the measurements.
func (s *sampler) write(ctx context.Context, w *spmd.World, t *text.Writer, rec sampleRecord) error {
	out := io.Writer(cli.Stdout)
	if s.json() == "-" { // standard output is for the measurements
		out = os.Stderr
	}
	var pending, text []byte
	show := func(more []byte, all bool) error {
		pending = append(pending, more...)
		n := len(pending)
		if !all {
			n = wholeRunes(pending)
		}
		_, err := io.WriteString(out, readable.Text(string(pending[:n])))
		pending = pending[n:]
		return err
	}
	text = append(text, s.prompt...)
	if err := show(text, false); err != nil {
		return err
	}
	begin := time.Now()
	var first time.Duration
	err := t.Write(ctx, s.prompt, s.tokens, func(more []byte) error {
		if rec.Tokens++; rec.Tokens == 1 {
			first = time.Since(begin)
		}
		text = append(text, more...)
		return show(more, false)
	})
	if err != nil {
		return err
	}
	if n := rec.Tokens - 1; n > 0 {
		rec.TokS = float64(n) / (time.Since(begin) - first).Seconds()
	}
	if err := show([]byte("\n"), true); err != nil {
		return err
	}
	rec.FirstMs = float64(first.Microseconds()) / 1e3
	at := len(t.IDs) - rec.Tokens
	rec.IDs = t.IDs[at:]
	if rec.PromptTokens = at; !s.within {
		rec.PromptTokens-- // the end of text before it
	}
	rec.Text = string(text)
	w.Log().Info().Int("prompt_tokens", rec.PromptTokens).Int("tokens", rec.Tokens).
		Str("first_ms", spmd.Amount(rec.FirstMs, "")).Str("tok/s", spmd.Amount(rec.TokS, "")).Msg("done")
	return w.Emit(rec)
}

// wholeRunes returns how many bytes of b are not the beginning of an incomplete character.
func wholeRunes(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return len(b) - n
			}
			break
		}
	}
	return len(b)
}
