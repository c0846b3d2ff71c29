package layout

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lockstep/internal/safetensors"
	"lockstep/spmd/telemetry"
)

// Leftover begins the names of folders that an unfinished export has left.
const Leftover = ".export-"

// Tokens are a model's tokens, as a folder keeps them.
type Tokens interface {
	Separator() int32                         // the token behind each document
	Files() (vocab, merges []byte, err error) // vocab.json and merges.txt, or none
}

// WriteFolder writes the weights of an arena to a folder, and returns the bytes of all files. Files
// get their names when all are complete on disk. told, which may be nil, gets the bytes of
// weights written. check, which may be nil, looks at the folder while no other export can write.
func WriteFolder(dir string, cfg Config, tok Tokens, arena []float32,
	told *telemetry.Work, check func() error) (bytes int64, err error) {
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
	d, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	if unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK { // not every file system has locks
		return 0, errors.New("another export writes to it")
	}
	if check != nil {
		if err := check(); err != nil {
			return 0, err
		}
	}
	old, err := filepath.Glob(filepath.Join(dir, Leftover+"*"))
	if err != nil {
		return 0, err
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			return 0, err
		}
	}
	temp, err := os.MkdirTemp(dir, Leftover)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(temp)
	x := &export{temp: temp, cfg: cfg, tok: tok, arena: arena, told: told}
	if err := x.write(); err != nil {
		return 0, err
	}
	if err := removeOthers(dir); err != nil {
		return 0, err
	}
	for _, name := range x.names {
		if err := os.Rename(filepath.Join(temp, name), filepath.Join(dir, name)); err != nil {
			return 0, err
		}
	}
	return x.bytes, d.Sync()
}

// ofModels are the names of files that make a folder a model, for any program. Those of another
// model would be taken for this one's. config.json is first, so that nobody takes the folder for a
// model meanwhile.
var ofModels = []string{"config.json", "model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin",
	"pytorch_model.bin.index.json", "tf_model*.h5", "flax_model*.msgpack", "generation_config.json", "vocab.json",
	"merges.txt", "tokenizer.json", "tokenizer.model",
	"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template*"}

// removeOthers removes another model's files from a folder.
func removeOthers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, pattern := range ofModels {
		for _, e := range entries {
			if is, err := filepath.Match(pattern, e.Name()); err != nil || !is || e.IsDir() {
				continue
			}
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// export is a folder of weights that is being written.
type export struct {
	temp  string
	cfg   Config
	tok   Tokens
	arena []float32
	told  *telemetry.Work
	names []string // of the files so far
	bytes int64
}

// write writes all files. config.json is last, since others look for it first.
func (x *export) write() error {
	if x.cfg.Parts != 0 && x.cfg.Parts&Modern != Modern {
		return fmt.Errorf("no folder of weights has parts %v", x.cfg.Parts)
	}
	if err := x.file(hfWeightsFile, x.weights); err != nil {
		return err
	}
	end := x.tok.Separator()
	vocab, merges, err := x.tok.Files()
	if err != nil {
		return err
	}
	if vocab != nil {
		const text = "<|endoftext|>"
		err = errors.Join(x.text("vocab.json", vocab), x.text("merges.txt", merges),
			x.json("tokenizer_config.json", map[string]any{
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
	if x.cfg.Parts != 0 {
		return x.json(hfConfigFile, struct {
			Type      string `json:"model_type"`
			Vocab     int    `json:"vocab_size"`
			Positions int    `json:"n_positions"`
			Channels  int    `json:"n_embd"`
			Layers    int    `json:"n_layer"`
			Heads     int    `json:"n_head"`
			Inner     int    `json:"n_inner"`
			modernConfig
			Tied  bool  `json:"tie_word_embeddings"`
			Begin int32 `json:"bos_token_id"`
			End   int32 `json:"eos_token_id"`
		}{modernType, x.cfg.Vocab, x.cfg.SeqMax, x.cfg.Channels, x.cfg.Layers, x.cfg.Heads, 4 * x.cfg.Channels,
			modernOf(x.cfg), false, end, end})
	}
	return x.json(hfConfigFile, map[string]any{
		"architectures": []string{"GPT2LMHeadModel"}, "model_type": "gpt2", "torch_dtype": "float32",
		"vocab_size": x.cfg.Vocab, "n_positions": x.cfg.SeqMax, "n_ctx": x.cfg.SeqMax,
		"n_embd": x.cfg.Channels, "n_layer": x.cfg.Layers, "n_head": x.cfg.Heads, "n_inner": nil,
		"activation_function": "gelu_new", "layer_norm_epsilon": NormEpsilon, "initializer_range": 0.02,
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

// file writes one file and syncs it to disk.
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
	params, _, _ := Of(x.cfg)
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
		if transposed(p, x.cfg) {
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
		x.told.Add(int64(len(b)))
	}
	return nil
}
