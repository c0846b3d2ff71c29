package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/internal/safetensors"
	"lockstep/spmd"
)

// exporter is the command export.
type exporter struct {
	checkpoint, to string
	force          bool
}

func openExport(fs *pflag.FlagSet) (func(context.Context, *spmd.World) error, func(int) error) {
	e := &exporter{}
	fs.StringVar(&e.checkpoint, "checkpoint", "", "`DIR` that the run has saved to; the newest checkpoint counts")
	fs.StringVar(&e.to, "to", "", "`FOLDER` to write: Hugging Face's GPT-2, config.json and model.safetensors, and the files of the tokenizer where the tokens are GPT-2's")
	fs.BoolVar(&e.force, "force", false, "write to a folder that is not empty, replacing files of these names")
	return e.run, func(ranks int) error {
		if !fs.Changed("device") { // a GPU would only be in the way
			if err := fs.Set("device", "host"); err != nil {
				return err
			}
		}
		return e.check(ranks)
	}
}

func (e *exporter) check(ranks int) error {
	if ranks != 1 {
		return fmt.Errorf("export runs on one rank, not on %d: leave mpirun out", ranks)
	}
	if err := checkFolder(e.checkpoint); err != nil {
		return err
	}
	if e.to == "" {
		return errors.New("--to is missing: the folder to write")
	}
	return e.checkTarget()
}

// leftover begins the names of folders that an export which did not end has left.
const leftover = ".export-"

// checkTarget refuses a folder that holds anything, unless forced.
func (e *exporter) checkTarget() error {
	entries, err := os.ReadDir(e.to)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--to %s: %w", e.to, errors.Unwrap(err))
	}
	for _, f := range entries {
		if !e.force && !strings.HasPrefix(f.Name(), leftover) {
			return fmt.Errorf("--to %s: the folder holds %s, and may hold more: name another one, or replace files with --force", e.to, f.Name())
		}
	}
	return nil
}

func (e *exporter) run(_ context.Context, w *spmd.World) (err error) {
	p, err := openPast(w, e.checkpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	_, _, n := layout(p.cfg)
	arena, err := spmd.AllocPinned[float32](w, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, arena.Free()) }()
	if err := p.loadWeights(arena); err != nil {
		return err
	}
	bytes, err := writeWeights(e.to, p.cfg, p.tok, arena.Host())
	if err != nil {
		return fmt.Errorf("--to %s: %w", e.to, err)
	}
	w.Log().Info().Int("steps", p.step).Int("params", p.cfg.ParamCount()).Int64("bytes", bytes).Str("to", e.to).Msg("exported")
	return nil
}

// writeWeights writes a folder of weights, those of an arena, and returns the bytes of
// all files. Each gets its name when all are complete on disk.
func writeWeights(dir string, cfg Config, tok tokenizer, arena []float32) (bytes int64, err error) {
	_, err = os.Stat(dir)
	fresh := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil && fresh {
			os.Remove(dir) // if nothing is in it
		}
	}()
	old, err := filepath.Glob(filepath.Join(dir, leftover+"*"))
	if err != nil {
		return 0, err
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			return 0, err
		}
	}
	temp, err := os.MkdirTemp(dir, leftover)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(temp)
	x := &export{temp: temp, cfg: cfg, tok: tok, arena: arena}
	if err := x.write(); err != nil {
		return 0, err
	}
	for _, name := range x.names {
		if err := os.Rename(filepath.Join(temp, name), filepath.Join(dir, name)); err != nil {
			return 0, err
		}
	}
	return x.bytes, syncFolder(dir)
}

// syncFolder makes the names in a folder last.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// export is a folder of weights that is being written.
type export struct {
	temp  string
	cfg   Config
	tok   tokenizer
	arena []float32
	names []string // of the files so far
	bytes int64
}

// write writes all files; config.json last, since it is what others look for first.
func (x *export) write() error {
	if err := x.file(hfWeightsFile, x.weights); err != nil {
		return err
	}
	end := x.tok.separator()
	if t, ok := x.tok.(*gpt2Tokens); ok {
		vocab, merges, err := t.files()
		if err != nil {
			return err
		}
		const text = "<|endoftext|>"
		err = errors.Join(x.text("vocab.json", vocab), x.text("merges.txt", merges), x.json("tokenizer_config.json", map[string]any{
			"tokenizer_class": "GPT2Tokenizer", "model_max_length": x.cfg.SeqMax, "add_prefix_space": false,
			"bos_token": text, "eos_token": text, "unk_token": text,
		}))
		if err != nil {
			return err
		}
	}
	if err := x.json("generation_config.json", map[string]any{"bos_token_id": end, "eos_token_id": end}); err != nil {
		return err
	}
	return x.json(hfConfigFile, map[string]any{
		"architectures": []string{"GPT2LMHeadModel"}, "model_type": "gpt2", "torch_dtype": "float32",
		"vocab_size": x.cfg.Vocab, "n_positions": x.cfg.SeqMax, "n_ctx": x.cfg.SeqMax,
		"n_embd": x.cfg.Channels, "n_layer": x.cfg.Layers, "n_head": x.cfg.Heads, "n_inner": nil,
		"activation_function": "gelu_new", "layer_norm_epsilon": layerNormEpsilon, "initializer_range": 0.02,
		"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0,
		"tie_word_embeddings": true, "bos_token_id": end, "eos_token_id": end,
	})
}

func (x *export) json(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return x.text(name, append(b, '\n'))
}

func (x *export) text(name string, b []byte) error {
	return x.file(name, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// file writes one file and sees it on disk.
func (x *export) file(name string, write func(io.Writer) error) (err error) {
	f, err := os.OpenFile(filepath.Join(x.temp, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	x.names = append(x.names, name)
	x.bytes += st.Size()
	return nil
}

// weights writes model.safetensors.
func (x *export) weights(w io.Writer) error {
	params, _, _ := layout(x.cfg)
	tensors := make([]safetensors.Tensor, len(params))
	for i, p := range params {
		tensors[i] = safetensors.Tensor{Name: p.Name, Type: "F32", Shape: hfShape(p, x.cfg)}
	}
	// Readers of this format want to know where it comes from: "pt" is PyTorch.
	header, err := safetensors.LayoutMeta(map[string]string{"format": "pt"}, tensors)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	var b []byte
	for i, p := range params {
		v := x.arena[p.Off : p.Off+int(tensors[i].Bytes/4)] // without padding
		if transposed(p) {
			t := make([]float32, p.Len)
			transpose(t, v, p.Shape[0], p.Shape[1])
			v = t
		}
		b = b[:0]
		for _, f := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
