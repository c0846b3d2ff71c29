package traintest

import (
	"math"
	rand "math/rand/v2"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// FlatTokens returns tokens of two bytes; token i is i.
func FlatTokens(n int) (body []byte) {
	for i := range n {
		body = append(body, byte(i), byte(i>>8))
	}
	return body
}

// RandomFloats draws n numbers of a normal distribution.
func RandomFloats(n int, scale float64, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 3))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(scale * rng.NormFloat64())
	}
	return x
}

// Small is the model of the tests, with a vocabulary that needs padding and a head of 16 channels.
var Small = layout.Config{Layers: 2, Heads: 2, Channels: 32, SeqMax: 24, Vocab: 61}

// SmallModern is a modern model of the tests, with all parts. It has an odd number of layers, so
// that the middle one has neither a skip nor a table. Its width is no multiple of a warp's.
var SmallModern = layout.Config{Layers: 3, Heads: 2, Channels: 48, SeqMax: 24, Vocab: 61,
	Parts: layout.Presets["modern"].Parts}

// SmallThird is a third decoder, of parts of both others: rotary positions with GPT-2's norms, and
// layers whose attention and MLP are side by side.
var SmallThird = layout.Config{Layers: 2, Heads: 2, Channels: 32, SeqMax: 24, Vocab: 61,
	Parts: layout.Rotary | layout.Beside}

// RandomParams draws every tensor, also biases and LayerNorms, so that no gradient is near zero for
// lack of signal. Wide layers get smaller weights, since the softmax would magnify every rounding.
func RandomParams(cfg layout.Config, seed uint64) map[string][]float64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	params, _, _ := layout.Of(cfg)
	std := 0.15 * min(1, math.Sqrt(32/float64(cfg.Channels)))
	ps := map[string][]float64{}
	for _, p := range params {
		x := make([]float64, p.Len)
		for i := range x {
			x[i] = std * rng.NormFloat64()
			if strings.HasSuffix(p.Name, ".weight") && !p.Decay {
				x[i]++
			}
			x[i] = float64(float32(x[i])) // the same values in both models
		}
		if p.InVocab() {
			clear(x[cfg.Vocab*cfg.Channels:])
		}
		ps[p.Name] = x
	}
	return ps
}

// RandomTokens draws n tokens below vocab.
func RandomTokens(n, vocab int, seed uint64) []int32 {
	rng := rand.New(rand.NewPCG(seed, 2))
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(rng.IntN(vocab))
	}
	return x
}

// LoadParams copies the tensors of p into an arena.
func LoadParams(t *testing.T, params []layout.Param, weights spmd.Buffer[float32], p map[string][]float64) {
	t.Helper()
	for _, q := range params {
		x := make([]float32, q.Len)
		for i, v := range p[q.Name] {
			x[i] = float32(v)
		}
		if err := weights.Slice(q.Off, q.Off+q.Len).CopyFrom(x); err != nil {
			t.Fatal(err)
		}
	}
}

// RandomWords returns n bytes of random words, which a model can learn.
func RandomWords(n int) []byte {
	rng := rand.New(rand.NewPCG(3, 4))
	words := strings.Fields("func return if else for range int string error nil := == package import")
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[rng.IntN(len(words))] + " ")
	}
	return []byte(b.String()[:n])
}

// ZeroLike returns zeros in the shapes of p.
func ZeroLike(p map[string][]float64) map[string][]float64 {
	g := map[string][]float64{}
	for name, x := range p {
		g[name] = make([]float64, len(x))
	}
	return g
}
