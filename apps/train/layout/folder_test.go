package layout

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	rand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/text"
	"lockstep/internal/safetensors"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// hfFile is a safetensors file as a short Python program would read it.
type hfFile map[string]struct {
	Type    string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int   `json:"data_offsets"`
	Format  string   `json:"format"`
	data    []uint32 // of F32
}

func readHF(t *testing.T, path string) hfFile {
	t.Helper()
	b, err := os.ReadFile(path)
	testkit.Must(t, err)
	n := binary.LittleEndian.Uint64(b)
	f := hfFile{}
	testkit.Must(t, json.Unmarshal(b[8:8+n], &f))
	for name, x := range f {
		for i := 8 + int(n) + x.Offsets[0]; i < 8+int(n)+x.Offsets[1]; i += 4 {
			x.data = append(x.data, binary.LittleEndian.Uint32(b[i:]))
		}
		f[name] = x
	}
	return f
}

// awkward returns an arena with numbers of all kinds. The padding of the vocabulary is zero.
func awkward(cfg Config, seed uint64) []float32 {
	params, _, n := Of(cfg)
	x := make([]float32, n)
	rng := rand.New(rand.NewPCG(seed, 9))
	for _, p := range params {
		for i := range p.Len {
			x[p.Off+i] = float32(rng.NormFloat64())
		}
		special := []float32{float32(math.Copysign(0, -1)), math.SmallestNonzeroFloat32, -math.MaxFloat32,
			float32(math.Inf(1)), 0}
		copy(x[p.Off:], special[:min(len(special), p.Len)])
		if p.Name == "wte.weight" {
			clear(x[p.Off+cfg.Vocab*cfg.Channels : p.Off+p.Len])
		}
	}
	return x
}

// loaded returns the arena of a folder's weights.
func loaded(h *Folder) ([]float32, error) {
	params, _, n := Of(h.Cfg)
	arena := make([]float32, n)
	for _, p := range params {
		x, err := h.Tensor(p)
		if err != nil {
			return nil, err
		}
		copy(arena[p.Off:], x)
	}
	return arena, nil
}

// put makes a file of a folder.
func put(t *testing.T, dir, name, content string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666))
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })
}

// A folder of weights holds what transformers look for, each element in its place, and gives back
// the same bits.
func TestWeightsRoundTrip(t *testing.T) {
	for _, tok := range []text.Tokenizer{text.Bytes{}, text.NewGPT2()} {
		cfg := Config{Layers: 2, Heads: 3, Channels: 36, SeqMax: 10, Vocab: tok.IDs()}
		dir := filepath.Join(t.TempDir(), "a", "b")
		arena := awkward(cfg, 1)
		if _, err := WriteFolder(dir, cfg, tok, arena, nil, nil); err != nil {
			t.Fatal(err)
		}
		// Another one at once is refused, and one that waited looks again.
		errs := make([]error, 2)
		for i, check := range []func() error{
			func() error { return errors.New("it is taken") },
			func() error { _, errs[1] = WriteFolder(dir, cfg, tok, arena, nil, nil); return errs[1] },
		} {
			_, errs[0] = WriteFolder(dir, cfg, tok, arena, nil, check)
			want := []string{"it is taken", "another export writes to it"}[i]
			if errs[i] == nil || errs[i].Error() != want {
				t.Errorf("%v, want %s", errs, want)
			}
		}
		f := readHF(t, filepath.Join(dir, "model.safetensors"))
		if f["__metadata__"].Format != "pt" {
			t.Errorf("the file says of itself %+v", f["__metadata__"])
		}
		params, _, _ := Of(cfg)
		if len(f) != len(params)+1 {
			t.Errorf("%d tensors, want %d", len(f)-1, len(params))
		}
		for _, p := range params {
			rows, cols := 1, p.Shape[0]
			if len(p.Shape) == 2 {
				rows, cols = p.Shape[0], p.Shape[1]
			}
			shape, at := []int{rows, cols}, func(i, j int) int { return i*cols + j }
			switch {
			case len(p.Shape) == 1:
				shape = []int{cols}
			case p.Name == "wte.weight":
				shape[0], rows = cfg.Vocab, cfg.Vocab
			case strings.HasPrefix(p.Name, "h."): // a Conv1D
				shape, at = []int{cols, rows}, func(i, j int) int { return j*rows + i }
			}
			x, ok := f[p.Name]
			if !ok || x.Type != "F32" || !slices.Equal(x.Shape, shape) {
				t.Fatalf("%s is %s %v, want F32 %v", p.Name, x.Type, x.Shape, shape)
			}
			for i := range rows {
				for j := range cols {
					if got, want := x.data[at(i, j)], math.Float32bits(arena[p.Off+i*cols+j]); got != want {
						t.Fatalf("%s (%d,%d) has bits %x, want %x", p.Name, i, j, got, want)
					}
				}
			}
		}
		var config map[string]any
		b, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err == nil {
			err = json.Unmarshal(b, &config)
		}
		testkit.Must(t, err)
		for key, want := range map[string]any{"model_type": "gpt2", "n_layer": 2.0, "n_head": 3.0, "n_embd": 36.0,
			"n_positions": 10.0, "vocab_size": float64(cfg.Vocab), "activation_function": "gelu_new",
			"eos_token_id": float64(tok.Separator())} {
			if config[key] != want {
				t.Errorf("config.json has %s %v, want %v", key, config[key], want)
			}
		}
		for _, name := range []string{"vocab.json", "merges.txt", "tokenizer_config.json"} {
			if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != (tok.Width() == 2) {
				t.Errorf("%s of tokens %s: %v", name, tok.Name(), err)
			}
		}
		h, err := OpenFolder(dir)
		testkit.Must(t, err)
		if got, err := loaded(h); err != nil || !sameBits(got, arena) {
			t.Errorf("the weights read are other than those written, error %v", err)
		}
	}
}

// hfSource is a folder of weights as others write it.
type hfSource struct {
	config  map[string]any
	tensors []hfSourceTensor
	shards  int // 0 for one file without an index
}

type hfSourceTensor struct {
	name, typ string
	shape     []int64
	data      []float32
}

var hfTiny = Config{Layers: 2, Heads: 2, Channels: 8, SeqMax: 6, Vocab: 256}

// hfFrom returns the folder of hfTiny's weights in an arena.
func hfFrom(arena []float32, typ, prefix string) *hfSource {
	s := &hfSource{config: map[string]any{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8,
		"n_positions": 6, "vocab_size": 256}}
	params, _, _ := Of(hfTiny)
	for _, p := range params {
		x := arena[p.Off : p.Off+p.Len]
		shape := []int64{int64(p.Shape[0])}
		if len(p.Shape) == 2 {
			shape = append(shape, int64(p.Shape[1]))
		}
		if strings.HasPrefix(p.Name, "h.") && len(shape) == 2 {
			y := make([]float32, len(x))
			for i := range p.Shape[0] {
				for j := range p.Shape[1] {
					y[j*p.Shape[0]+i] = x[i*p.Shape[1]+j]
				}
			}
			x, shape = y, []int64{shape[1], shape[0]}
		}
		s.tensors = append(s.tensors, hfSourceTensor{prefix + p.Name, typ, shape, x})
	}
	return s
}

func (s *hfSource) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	putJSON := func(name string, v any) {
		b, err := json.Marshal(v)
		testkit.Must(t, err)
		put(t, dir, name, string(b))
	}
	putJSON("config.json", s.config)
	files := map[string][]hfSourceTensor{}
	if s.shards == 0 {
		files["model.safetensors"] = s.tensors
	}
	where := map[string]string{}
	for i, x := range s.tensors {
		if s.shards > 0 {
			name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i%s.shards+1, s.shards)
			files[name] = append(files[name], x)
			where[x.name] = name
		}
	}
	if s.shards > 0 {
		putJSON("model.safetensors.index.json",
			map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": where})
	}
	for name, tensors := range files {
		var list []safetensors.Tensor
		var b []byte
		for _, x := range tensors {
			list = append(list, safetensors.Tensor{Name: x.name, Type: x.typ, Shape: x.shape})
			for _, v := range x.data {
				switch x.typ {
				case "F32":
					b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
				case "F16":
					b = binary.LittleEndian.AppendUint16(b, uint16(spmd.ToF16(v)))
				case "BF16":
					b = binary.LittleEndian.AppendUint16(b, uint16(spmd.ToBF16(v)))
				case "I8":
					b = append(b, byte(v))
				}
			}
		}
		header, err := safetensors.Layout(list)
		testkit.Must(t, err)
		put(t, dir, name, string(header)+string(b))
	}
	return dir
}

// Others write folders with other types, a prefix, masks, a head, or several files.
func TestWeightsOfOthers(t *testing.T) {
	arena := awkward(hfTiny, 2)
	for i, v := range arena { // what every type holds
		v = max(-3, min(v, 3))
		arena[i] = float32(math.Round(float64(v)*16) / 16)
	}
	for _, typ := range []string{"F32", "F16", "BF16"} {
		for _, prefix := range []string{"", "transformer."} {
			for _, shards := range []int{0, 3} {
				s := hfFrom(arena, typ, prefix)
				s.shards = shards
				params, _, _ := Of(hfTiny)
				s.tensors = append(s.tensors,
					hfSourceTensor{prefix + "h.1.attn.bias", "I8", []int64{1, 1, 6, 6}, make([]float32, 36)},
					hfSourceTensor{prefix + "h.0.attn.masked_bias", "F32", nil, []float32{-1e4}},
					hfSourceTensor{"lm_head.weight", typ, []int64{256, 8},
						arena[params[len(params)-1].Off:][:256*8]})
				h, err := OpenFolder(s.write(t))
				if err != nil {
					t.Fatalf("%s, prefix %q, %d files: %v", typ, prefix, shards, err)
				}
				if got, err := loaded(h); err != nil || !slices.Equal(got, arena) {
					t.Errorf("%s, prefix %q, %d files: other weights, error %v", typ, prefix, shards, err)
				}
			}
		}
	}
	s := hfFrom(arena, "F32", "")
	s.tensors = append(s.tensors, hfSourceTensor{"lm_head.weight", "F32", []int64{256, 8}, make([]float32, 256*8)})
	h, err := OpenFolder(s.write(t))
	testkit.Must(t, err)
	if _, err := loaded(h); !errors.As(err, new(FolderError)) ||
		!strings.Contains(err.Error(), "lm_head.weight is not wte.weight") {
		t.Errorf("a head of its own: error %v", err)
	}
	s = hfFrom(arena, "F32", "")
	bad := &s.tensors[len(s.tensors)-1]
	bad.data[7] = float32(math.NaN())
	if h, err = OpenFolder(s.write(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := loaded(h); !errors.As(err, new(FolderError)) ||
		!strings.Contains(err.Error(), "number 7 of "+bad.name+" is a NaN") {
		t.Errorf("a NaN: error %v", err)
	}
}

// A folder with something else is refused, and the error says what is wrong.
func TestWeightsRefused(t *testing.T) {
	arena := awkward(hfTiny, 3)
	for want, change := range map[string]func(s *hfSource){
		"no tensor h.1.mlp.c_fc.weight": func(s *hfSource) {
			s.tensors = slices.DeleteFunc(s.tensors,
				func(x hfSourceTensor) bool { return x.name == "h.1.mlp.c_fc.weight" })
		},
		"tensor h.2.ln_1.bias, which such a model does not have": func(s *hfSource) {
			s.tensors = append(s.tensors, hfSourceTensor{"h.2.ln_1.bias", "F32", []int64{1}, []float32{1}})
		},
		"wpe.weight has shape [8 6], and the model [6 8]": func(s *hfSource) {
			i := slices.IndexFunc(s.tensors, func(x hfSourceTensor) bool { return x.name == "wpe.weight" })
			s.tensors[i].shape = []int64{8, 6}
		},
		"ln_f.bias is I8": func(s *hfSource) { s.tensors[1].typ = "I8" },
		"second tensor ln_f.bias": func(s *hfSource) {
			s.tensors = append(s.tensors, hfSourceTensor{"transformer.ln_f.bias", "F32", []int64{8},
				make([]float32, 8)})
		},
		`model_type is "llama"`:            func(s *hfSource) { s.config["model_type"] = "llama" },
		`activation_function is "relu"`:    func(s *hfSource) { s.config["activation_function"] = "relu" },
		"layer_norm_epsilon is 0.001":      func(s *hfSource) { s.config["layer_norm_epsilon"] = 1e-3 },
		"n_inner is not 4 times":           func(s *hfSource) { s.config["n_inner"] = 8 },
		"tie_word_embeddings is false":     func(s *hfSource) { s.config["tie_word_embeddings"] = false },
		"scale_attn_weights is false":      func(s *hfSource) { s.config["scale_attn_weights"] = false },
		"inverse_layer_idx is true":        func(s *hfSource) { s.config["scale_attn_by_inverse_layer_idx"] = true },
		"3 heads":                          func(s *hfSource) { s.config["n_head"] = 3 },
		"layers is 0":                      func(s *hfSource) { s.config["n_layer"] = 0 },
		"has 1000000 layers":               func(s *hfSource) { s.config["n_layer"] = 1000000 },
		"cannot unmarshal":                 func(s *hfSource) { s.config["n_layer"] = "two" },
		"vocabulary is -5, must be":        func(s *hfSource) { s.config["vocab_size"] = -5 },
		"wte.weight has shape [256 8], an": func(s *hfSource) { s.config["vocab_size"] = 257 },
	} {
		s := hfFrom(arena, "F32", "")
		change(s)
		if _, err := OpenFolder(s.write(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	for want, change := range map[string]func(dir string){
		"config.json: no such file": func(dir string) { os.Remove(filepath.Join(dir, "config.json")) },
		"neither model.safetensors nor": func(dir string) {
			os.Remove(filepath.Join(dir, "model.safetensors"))
		},
		"model.safetensors: 3 bytes": func(dir string) {
			put(t, dir, "model.safetensors", "abc")
		},
		"config.json: invalid character":        func(dir string) { put(t, dir, "config.json", "abc") },
		"model.safetensors: not a regular file": func(dir string) { remake(t, dir, "model.safetensors") },
		"bytes after the last tensor": func(dir string) {
			appendTo(t, filepath.Join(dir, "model.safetensors"), "more")
		},
		`"../x.safetensors" leads out of the fol`: func(dir string) { indexOnly(t, dir, "../x.safetensors") },
		"gone.safetensors: no such file":          func(dir string) { indexOnly(t, dir, "gone.safetensors") },
	} {
		dir := hfFrom(arena, "F32", "").write(t)
		change(dir)
		if _, err := OpenFolder(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func remake(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	testkit.Must(t, os.Remove(path))
	testkit.Must(t, os.Mkdir(path, 0o777))
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	testkit.Must(t, err)
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, f.Close())
}

func indexOnly(t *testing.T, dir, file string) {
	t.Helper()
	testkit.Must(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	put(t, dir, "model.safetensors.index.json", fmt.Sprintf(`{"weight_map":{"wte.weight":%q}}`, file))
}

// folderOf writes a folder of weights whose tokens are bytes, and returns it.
func folderOf(t *testing.T) string {
	t.Helper()
	dir, cfg := t.TempDir(), Config{Layers: 1, Heads: 2, Channels: 8, SeqMax: 6, Vocab: 256}
	if _, err := WriteFolder(dir, cfg, text.Bytes{}, awkward(cfg, 3), nil, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

// change replaces a file of a folder by the result of fn.
func change(t *testing.T, dir, file string, fn func(b []byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, file)
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, fn(b), 0o666)
	}
	testkit.Must(t, err)
}

// config.json may have the numbers of the shape by the names that transformers accept
// beside GPT-2's own.
func TestOtherNames(t *testing.T) {
	dir := folderOf(t)
	change(t, dir, "config.json", func(b []byte) []byte {
		s := string(b)
		for _, n := range otherNames {
			s = strings.Replace(s, `"`+n[0]+`"`, `"`+n[1]+`"`, 1)
		}
		return []byte(s)
	})
	h, err := OpenFolder(dir)
	testkit.Must(t, err)
	if h.Cfg.Heads != 2 || h.Cfg.Layers != 1 || h.Cfg.Channels != 8 || h.Cfg.SeqMax != 6 {
		t.Errorf("the shape is %+v", h.Cfg)
	}
	change(t, dir, "config.json", func(b []byte) []byte {
		return []byte(strings.Replace(string(b), "{", `{"n_head": 4,`, 1))
	})
	if _, err := OpenFolder(dir); err == nil ||
		!strings.Contains(err.Error(), "n_head is 4, and num_attention_heads 2: they are two names of one number") {
		t.Errorf("two values: %v", err)
	}
}

// A file that Git LFS has not fetched is named as that.
func TestPointerFiles(t *testing.T) {
	for _, file := range []string{"model.safetensors", "config.json"} {
		dir := folderOf(t)
		change(t, dir, file, func([]byte) []byte {
			return []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 548105171\n")
		})
		if _, err := OpenFolder(dir); err == nil || !strings.Contains(err.Error(), file+": a pointer file of Git LFS") {
			t.Errorf("%s: %v", file, err)
		}
	}
}
