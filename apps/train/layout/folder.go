package layout

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/host"
	"lockstep/internal/runfiles"
	"lockstep/internal/safetensors"
	"lockstep/spmd"
)

// A folder of weights is a modern model, see modernfolder.go, or GPT-2 as Hugging Face's
// transformers keep it: config.json and model.safetensors, or several such files and their index.
//
// The tensors have the names of Params. Matrices of layers are stored (inputs, outputs), the
// embeddings (tokens, channels) without padding.
const (
	hfConfigFile  = "config.json"
	hfWeightsFile = "model.safetensors"
	hfIndexFile   = "model.safetensors.index.json"
)

// hfConfig is the part of config.json that determines the computation. Source: class GPT2Config of
// transformers, whose defaults hold for missing values.
type hfConfig struct {
	ModelType     string  `json:"model_type"`
	Vocab         int     `json:"vocab_size"`
	Positions     int     `json:"n_positions"`
	Channels      int     `json:"n_embd"`
	Layers        int     `json:"n_layer"`
	Heads         int     `json:"n_head"`
	Inner         *int    `json:"n_inner"`
	Epsilon       float64 `json:"layer_norm_epsilon"`
	Scale         bool    `json:"scale_attn_weights"`
	ScaleByLayer  bool    `json:"scale_attn_by_inverse_layer_idx"`
	CrossAttends  bool    `json:"add_cross_attention"`
	TieEmbeddings bool    `json:"tie_word_embeddings"`

	modernConfig // and the name of the activation function, which both have
}

var hfDefaults = hfConfig{Vocab: 50257, Positions: 1024, Channels: 768, Layers: 12, Heads: 12,
	Epsilon: NormEpsilon, Scale: true, TieEmbeddings: true, modernConfig: modernConfig{Activation: "gelu_new"}}

// shape returns the shape of the model, or why this program cannot compute it.
func (c *hfConfig) shape() (Config, error) {
	if c.ModelType == modernType {
		return c.modernShape()
	}
	for _, unlike := range []struct {
		yes  bool
		what string
	}{
		{c.ModelType != "gpt2", fmt.Sprintf("model_type is %q, want gpt2 or %s", c.ModelType, modernType)},
		{c.Inner != nil && *c.Inner != 4*c.Channels, "n_inner is not 4 times n_embd"},
		// Both names are the tanh form.
		{c.Activation != "gelu_new" && c.Activation != "gelu_pytorch_tanh",
			fmt.Sprintf("activation_function is %q, want gelu_new", c.Activation)},
		{c.Epsilon != NormEpsilon,
			fmt.Sprintf("layer_norm_epsilon is %g, want %g", c.Epsilon, NormEpsilon)},
		{!c.Scale, "scale_attn_weights is false"},
		{c.ScaleByLayer, "scale_attn_by_inverse_layer_idx is true"},
		{c.CrossAttends, "add_cross_attention is true"},
		{!c.TieEmbeddings, "tie_word_embeddings is false: the output weights are the token embedding here"},
	} {
		if unlike.yes {
			return Config{}, errors.New(unlike.what)
		}
	}
	cfg := Config{Layers: c.Layers, Heads: c.Heads, Channels: c.Channels, SeqMax: c.Positions, Vocab: c.Vocab}
	return cfg, cfg.Validate()
}

// hfTensor is a tensor of a folder.
type hfTensor struct {
	path string // of its file
	safetensors.Tensor
}

// Folder is a folder of weights that holds all of a model and nothing else.
type Folder struct {
	Dir     string
	Cfg     Config
	tensors map[string]hfTensor // by the names of Params, and lm_head.weight if it is there
}

const hfHead = "lm_head.weight"

// OpenFolder checks a folder: everything but the numbers. Errors are about the input.
func OpenFolder(dir string) (*Folder, error) {
	h := &Folder{Dir: dir}
	if err := h.open(); err != nil {
		return nil, fmt.Errorf("--init-from %s: %w", dir, err)
	}
	return h, nil
}

func (h *Folder) open() error {
	text, err := runfiles.ReadSmall(filepath.Join(h.Dir, hfConfigFile))
	if err != nil {
		return err
	}
	c := hfDefaults
	if text, err = ownNames(text); err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", hfConfigFile, err)
	}
	if h.Cfg, err = c.shape(); err != nil {
		return fmt.Errorf("%s: %w", hfConfigFile, err)
	}
	files, err := h.files()
	if err != nil {
		return err
	}
	h.tensors = map[string]hfTensor{}
	for _, name := range files {
		if err := h.list(name); err != nil {
			return err
		}
	}
	return h.check()
}

// otherNames are other names that transformers accept for some of GPT-2's own. Source:
// attribute_map of class GPT2Config.
var otherNames = [][2]string{{"n_embd", "hidden_size"}, {"n_positions", "max_position_embeddings"},
	{"n_head", "num_attention_heads"},
	{"n_layer", "num_hidden_layers"}}

// ownNames returns a config.json with GPT-2's own names. It refuses one with both names of a number
// and different values.
func ownNames(text []byte) ([]byte, error) {
	var c map[string]json.RawMessage
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	for _, n := range otherNames {
		own, other := c[n[0]], c[n[1]]
		switch {
		case other == nil:
		case own == nil:
			c[n[0]] = other
		case string(own) != string(other):
			return nil, fmt.Errorf("%s is %s, and %s %s: they are two names of one number", n[0], own, n[1], other)
		}
	}
	return json.Marshal(c)
}

// files returns the names of the files with the tensors.
func (h *Folder) files() ([]string, error) {
	if _, err := os.Stat(filepath.Join(h.Dir, hfWeightsFile)); !errors.Is(err, fs.ErrNotExist) {
		return []string{hfWeightsFile}, nil
	}
	text, err := runfiles.ReadSmall(filepath.Join(h.Dir, hfIndexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is neither %s nor %s", hfWeightsFile, hfIndexFile)
	}
	if err != nil {
		return nil, err
	}
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", hfIndexFile, err)
	}
	var names []string
	for _, name := range index.Files {
		if name != filepath.Base(name) {
			return nil, fmt.Errorf("%s: %q leads out of the folder", hfIndexFile, name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// list adds the tensors of one file.
func (h *Folder) list(name string) error {
	path := filepath.Join(h.Dir, name)
	f, st, err := runfiles.OpenRegular(path)
	if err != nil {
		return runfiles.ShortPath(err, path)
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return runfiles.ShortPath(err, path)
	}
	if err := runfiles.NotLFS(head[:n], path); err != nil {
		return err
	}
	tensors, err := safetensors.Parse(f, st.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, t := range tensors {
		short := strings.TrimPrefix(t.Name, "transformer.")
		if isMask(short) {
			continue
		}
		if _, twice := h.tensors[short]; twice {
			return fmt.Errorf("%s: there is a second tensor %s", name, short)
		}
		h.tensors[short] = hfTensor{path, t}
	}
	return nil
}

// isMask reports whether a tensor is the causal mask of a layer, which older files hold.
func isMask(name string) bool {
	var l int
	var what string
	n, err := fmt.Sscanf(name, "h.%d.attn.%s", &l, &what)
	return err == nil && n == 2 && (what == "bias" || what == "masked_bias")
}

// check compares the folder's tensors with the model's.
func (h *Folder) check() error {
	if h.Cfg.Layers > len(h.tensors) { // otherwise the list of wanted tensors might not fit in memory
		return fmt.Errorf("%s has %d layers, and there are %d tensors", hfConfigFile, h.Cfg.Layers, len(h.tensors))
	}
	params, _, _ := Of(h.Cfg)
	want := map[string][]int64{}
	if h.Cfg.Parts == 0 {
		want[hfHead] = []int64{int64(h.Cfg.Vocab), int64(h.Cfg.Channels)}
	}
	for _, p := range params {
		want[p.Name] = hfShape(p, h.Cfg)
		if _, ok := h.tensors[p.Name]; !ok {
			return fmt.Errorf("there is no tensor %s", p.Name)
		}
	}
	names := make([]string, 0, len(h.tensors))
	for name := range h.tensors {
		names = append(names, name)
	}
	slices.Sort(names) // every rank names the same
	for _, name := range names {
		t := h.tensors[name]
		shape, known := want[name]
		switch {
		case !known:
			return fmt.Errorf("there is a tensor %s, which such a model does not have", name)
		case !slices.Equal(t.Shape, shape):
			return fmt.Errorf("%s has shape %v, and the model %v", name, t.Shape, shape)
		case t.Type != "F32" && t.Type != "F16" && t.Type != "BF16":
			return fmt.Errorf("%s is %s, want F32, F16 or BF16", name, t.Type)
		}
	}
	return nil
}

// hfShape returns the shape of a parameter in a folder.
func hfShape(p Param, cfg Config) []int64 {
	switch {
	case p.InVocab():
		return []int64{int64(cfg.Vocab), int64(cfg.Channels)}
	case transposed(p, cfg):
		return []int64{int64(p.Shape[1]), int64(p.Shape[0])}
	}
	shape := make([]int64, len(p.Shape))
	for i, n := range p.Shape {
		shape[i] = int64(n)
	}
	return shape
}

// FolderLen returns how many numbers of a parameter a folder has.
func FolderLen(p Param, cfg Config) int {
	n := 1
	for _, d := range hfShape(p, cfg) {
		n *= int(d)
	}
	return n
}

// transposed reports whether a folder has the transpose of a parameter.
func transposed(p Param, cfg Config) bool {
	return cfg.Parts == 0 && cfg.Family(p) == Matrices
}

// FolderError is an error about what a folder holds.
type FolderError struct{ error }

// Tensor returns the numbers of a parameter in the order of an arena.
func (h *Folder) Tensor(p Param) ([]float32, error) {
	x, err := h.read(h.tensors[p.Name])
	if err != nil {
		return nil, err
	}
	if head, ok := h.tensors[hfHead]; ok && p.Name == "wte.weight" {
		y, err := h.read(head)
		if err != nil {
			return nil, err
		}
		if !slices.EqualFunc(x, y, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
			return nil, FolderError{fmt.Errorf("--init-from %s: %s is not %s: the output weights are the token "+
				"embedding here", h.Dir, hfHead, p.Name)}
		}
	}
	if transposed(p, h.Cfg) {
		y := make([]float32, len(x))
		transpose(y, x, p.Shape[1], p.Shape[0])
		x = y
	}
	return x, nil
}

// read returns the numbers of a tensor.
func (h *Folder) read(t hfTensor) ([]float32, error) {
	f, err := os.Open(t.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, t.Bytes)
	if _, err := f.ReadAt(b, t.Off); err != nil {
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	size := 2
	if t.Type == "F32" {
		size = 4
	}
	x := make([]float32, len(b)/size)
	le := binary.LittleEndian
	host.Parallel(len(x), 1<<14, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			switch t.Type {
			case "F32":
				x[i] = math.Float32frombits(le.Uint32(b[4*i:]))
			case "F16":
				x[i] = spmd.F16(le.Uint16(b[2*i:])).Float32()
			case "BF16":
				x[i] = spmd.BF16(le.Uint16(b[2*i:])).Float32()
			}
		}
	})
	for i, v := range x {
		if v != v {
			return nil, FolderError{fmt.Errorf("--init-from %s: number %d of %s is a NaN", h.Dir, i, t.Name)}
		}
	}
	return x, nil
}

// transpose writes dst(cols,rows) = src(rows,cols)ᵀ, by tiles that stay in the cache.
func transpose(dst, src []float32, rows, cols int) {
	const tile = 32
	host.Parallel((rows+tile-1)/tile, 8, func(lo, hi int) {
		for i0 := lo * tile; i0 < min(hi*tile, rows); i0 += tile {
			for j0 := 0; j0 < cols; j0 += tile {
				for i := i0; i < min(i0+tile, rows); i++ {
					for j := j0; j < min(j0+tile, cols); j++ {
						dst[j*rows+i] = src[i*cols+j]
					}
				}
			}
		}
	})
}
