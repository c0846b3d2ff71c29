package layout

// Rates are the speeds of a GPU in the parts of a pass.
type Rates struct {
	Products  float64 // operations a second of matrix products of bfloat16
	Attention float64 // operations a second of attention: 7·T·C a token and layer in both passes
	Norm      float64 // seconds for a number of a LayerNorm's, both passes
	Logit     float64 // seconds for a logit, both passes
}

// Measured is the rates of an H200, fitted to the kernels of a step of gpt2 with 64 sequences.
// Source: bench/results/train.
var Measured = Rates{Products: 607e12, Attention: 301e12, Norm: 7.45e-12, Logit: 1.15e-12}

// Times are measured seconds that a token takes in both passes: in a layer, and in the head with
// all else that is there once. The zero value stands for the times from Measured.
type Times struct{ Layer, Head float64 }

// LayerTime returns how many seconds both passes of a whole layer take for a token of a sequence of
// seq. HeadTime returns how many they take in this rank's part of the head.
func (cfg Config) LayerTime(seq int) float64 {
	if cfg.Times.Layer > 0 {
		return cfg.Times.Layer
	}
	C, r := float64(cfg.Channels), Measured
	return 6*12*C*C/r.Products + 7*float64(seq)*C/r.Attention + C*r.Norm
}

func (cfg Config) HeadTime() float64 {
	_, rows, _ := cfg.OwnVocab()
	if cfg.Times.Layer > 0 {
		return cfg.Times.Head * float64(rows) / float64(cfg.PaddedVocab())
	}
	V, r := float64(rows), Measured
	return V * (6*float64(cfg.Channels)/r.Products + r.Logit)
}
