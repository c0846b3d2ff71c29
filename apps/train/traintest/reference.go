package traintest

import (
	"fmt"
	"math"

	"lockstep/apps/train/layout"
)

// Reference returns the float64 model with the weights p, by name.
func Reference(cfg layout.Config, p map[string][]float64) *refModel {
	return &refModel{layers: cfg.Layers, heads: cfg.Heads, channels: cfg.Channels, vocab: cfg.Vocab, p: p}
}

// ZeroLike returns zeros in the shapes of p.
func ZeroLike(p map[string][]float64) map[string][]float64 {
	g := map[string][]float64{}
	for name, x := range p {
		g[name] = make([]float64, len(x))
	}
	return g
}

// This is the model again, in float64 and plain loops, with its own hand-written backward pass, as
// the reference for the fast one. It shares only the names and shapes of the tensors with it.

// refModel holds the tensors by name; weights are (outputs, inputs).
type refModel struct {
	layers, heads, channels, vocab int
	p                              map[string][]float64
}

// refLayer has the results that the forward pass of a layer leaves for the backward pass.
type refLayer struct {
	x, ln1, qkv, att, res, ln2, fc, act [][]float64
	prob                                [][][]float64 // [head][query][key]
}

const refEps = 1e-5

// Sequence adds the mean loss of one sequence, times scale, to loss, and the gradient to grad
// unless that is nil.
func (m *refModel) Sequence(tokens, targets []int32, scale float64, grad map[string][]float64) (loss float64) {
	T, C := len(tokens), m.channels
	x := refRows(T, C)
	for t := range T {
		for c := range C {
			x[t][c] = m.p["wte.weight"][int(tokens[t])*C+c] + m.p["wpe.weight"][t*C+c]
		}
	}
	acts := make([]refLayer, m.layers)
	for l := range acts {
		h := fmt.Sprintf("h.%d.", l)
		a := &acts[l]
		a.x = x
		a.ln1 = RefNorm(a.x, m.p[h+"ln_1.weight"], m.p[h+"ln_1.bias"])
		a.qkv = refLinear(a.ln1, m.p[h+"attn.c_attn.weight"], m.p[h+"attn.c_attn.bias"], 3*C)
		a.att, a.prob = m.attention(a.qkv)
		a.res = refAdd(a.x, refLinear(a.att, m.p[h+"attn.c_proj.weight"], m.p[h+"attn.c_proj.bias"], C))
		a.ln2 = RefNorm(a.res, m.p[h+"ln_2.weight"], m.p[h+"ln_2.bias"])
		a.fc = refLinear(a.ln2, m.p[h+"mlp.c_fc.weight"], m.p[h+"mlp.c_fc.bias"], 4*C)
		a.act = refRows(T, 4*C)
		for t := range T {
			for j, v := range a.fc[t] {
				a.act[t][j] = 0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
			}
		}
		x = refAdd(a.res, refLinear(a.act, m.p[h+"mlp.c_proj.weight"], m.p[h+"mlp.c_proj.bias"], C))
	}
	lnf := RefNorm(x, m.p["ln_f.weight"], m.p["ln_f.bias"])
	logits := refLinear(lnf, m.p["wte.weight"], nil, m.vocab)
	dlogits := refRows(T, m.vocab)
	for t := range T {
		top := math.Inf(-1)
		for _, v := range logits[t] {
			top = max(top, v)
		}
		sum := 0.0
		for _, v := range logits[t] {
			sum += math.Exp(v - top)
		}
		loss += scale * (math.Log(sum) + top - logits[t][targets[t]])
		for j, v := range logits[t] {
			dlogits[t][j] = scale * math.Exp(v-top) / sum
		}
		dlogits[t][targets[t]] -= scale
	}
	if grad == nil {
		return loss
	}

	dx := RefNormBack(refLinearBack(dlogits, lnf, m.p["wte.weight"], grad["wte.weight"], nil),
		x, m.p["ln_f.weight"], grad["ln_f.weight"], grad["ln_f.bias"])
	for l := m.layers - 1; l >= 0; l-- {
		h := fmt.Sprintf("h.%d.", l)
		a := &acts[l]
		d := refLinearBack(dx, a.act, m.p[h+"mlp.c_proj.weight"], grad[h+"mlp.c_proj.weight"],
			grad[h+"mlp.c_proj.bias"])
		for t := range T {
			for j, v := range a.fc[t] {
				k := math.Sqrt(2 / math.Pi)
				th := math.Tanh(k * (v + 0.044715*v*v*v))
				d[t][j] *= 0.5*(1+th) + 0.5*v*(1-th*th)*k*(1+3*0.044715*v*v)
			}
		}
		d = refLinearBack(d, a.ln2, m.p[h+"mlp.c_fc.weight"], grad[h+"mlp.c_fc.weight"], grad[h+"mlp.c_fc.bias"])
		dx = refAdd(dx, RefNormBack(d, a.res, m.p[h+"ln_2.weight"], grad[h+"ln_2.weight"], grad[h+"ln_2.bias"]))

		d = refLinearBack(dx, a.att, m.p[h+"attn.c_proj.weight"], grad[h+"attn.c_proj.weight"],
			grad[h+"attn.c_proj.bias"])
		d = m.attentionBack(d, a.qkv, a.prob)
		d = refLinearBack(d, a.ln1, m.p[h+"attn.c_attn.weight"], grad[h+"attn.c_attn.weight"],
			grad[h+"attn.c_attn.bias"])
		dx = refAdd(dx, RefNormBack(d, a.x, m.p[h+"ln_1.weight"], grad[h+"ln_1.weight"], grad[h+"ln_1.bias"]))
	}
	for t := range T {
		for c := range C {
			grad["wte.weight"][int(tokens[t])*C+c] += dx[t][c]
			grad["wpe.weight"][t*C+c] += dx[t][c]
		}
	}
	return loss
}

// Batch returns the mean loss over (b,t) tokens, and sets its gradient unless grad is nil.
func (m *refModel) Batch(tokens, targets []int32, t int, grad map[string][]float64) (loss float64) {
	for i := 0; i < len(tokens); i += t {
		loss += m.Sequence(tokens[i:i+t], targets[i:i+t], 1/float64(len(tokens)), grad)
	}
	return loss
}

func (m *refModel) attention(qkv [][]float64) (out [][]float64, prob [][][]float64) {
	T, C := len(qkv), m.channels
	hs := C / m.heads
	out = refRows(T, C)
	for h := range m.heads {
		p := refRows(T, T)
		for i := range T {
			sum := 0.0
			for j := 0; j <= i; j++ {
				dot := 0.0
				for c := range hs {
					dot += qkv[i][h*hs+c] * qkv[j][C+h*hs+c]
				}
				p[i][j] = math.Exp(dot / math.Sqrt(float64(hs))) // in float64 these scores cannot overflow
				sum += p[i][j]
			}
			for j := 0; j <= i; j++ {
				p[i][j] /= sum
				for c := range hs {
					out[i][h*hs+c] += p[i][j] * qkv[j][2*C+h*hs+c]
				}
			}
		}
		prob = append(prob, p)
	}
	return out, prob
}

func (m *refModel) attentionBack(dout, qkv [][]float64, prob [][][]float64) [][]float64 {
	T, C := len(qkv), m.channels
	hs := C / m.heads
	d := refRows(T, 3*C)
	for h := range m.heads {
		q, k, v := h*hs, C+h*hs, 2*C+h*hs
		for i := range T {
			p, dp, mean := prob[h][i], make([]float64, T), 0.0
			for j := 0; j <= i; j++ {
				for c := range hs {
					dp[j] += dout[i][h*hs+c] * qkv[j][v+c]
					d[j][v+c] += p[j] * dout[i][h*hs+c]
				}
				mean += p[j] * dp[j]
			}
			for j := 0; j <= i; j++ {
				ds := p[j] * (dp[j] - mean) / math.Sqrt(float64(hs))
				for c := range hs {
					d[i][q+c] += ds * qkv[j][k+c]
					d[j][k+c] += ds * qkv[i][q+c]
				}
			}
		}
	}
	return d
}

func refRows(n, c int) [][]float64 {
	x := make([][]float64, n)
	for i := range x {
		x[i] = make([]float64, c)
	}
	return x
}

func refAdd(a, b [][]float64) [][]float64 {
	s := refRows(len(a), len(a[0]))
	for i := range a {
		for j := range a[i] {
			s[i][j] = a[i][j] + b[i][j]
		}
	}
	return s
}

func refLinear(x [][]float64, w, bias []float64, out int) [][]float64 {
	y := refRows(len(x), out)
	for t := range x {
		for o := range out {
			if bias != nil {
				y[t][o] = bias[o]
			}
			for i, v := range x[t] {
				y[t][o] += w[o*len(x[t])+i] * v
			}
		}
	}
	return y
}

func refLinearBack(dy, x [][]float64, w, dw, db []float64) [][]float64 {
	in := len(x[0])
	dx := refRows(len(x), in)
	for t := range dy {
		for o, d := range dy[t] {
			if db != nil {
				db[o] += d
			}
			for i := range in {
				dw[o*in+i] += d * x[t][i]
				dx[t][i] += d * w[o*in+i]
			}
		}
	}
	return dx
}

// RefStats returns the mean of x and 1 over its deviation.
func RefStats(x []float64) (mean, rstd float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	variance := 0.0
	for _, v := range x {
		variance += (v - mean) * (v - mean) / float64(len(x))
	}
	return mean, 1 / math.Sqrt(variance+refEps)
}

// RefNorm returns the LayerNorm of each row.
func RefNorm(x [][]float64, w, b []float64) [][]float64 {
	y := refRows(len(x), len(x[0]))
	for t := range x {
		mean, rstd := RefStats(x[t])
		for c, v := range x[t] {
			y[t][c] = (v-mean)*rstd*w[c] + b[c]
		}
	}
	return y
}

// RefNormBack returns the gradient of RefNorm's input rows, and adds the gradients of its
// parameters.
func RefNormBack(dy, x [][]float64, w, dw, db []float64) [][]float64 {
	dx := refRows(len(x), len(x[0]))
	for t := range x {
		mean, rstd := RefStats(x[t])
		n := float64(len(x[t]))
		a, b := 0.0, 0.0
		for c, v := range x[t] {
			norm := (v - mean) * rstd
			dw[c] += dy[t][c] * norm
			db[c] += dy[t][c]
			a += dy[t][c] * w[c] / n
			b += dy[t][c] * w[c] * norm / n
		}
		for c, v := range x[t] {
			dx[t][c] = (dy[t][c]*w[c] - a - (v-mean)*rstd*b) * rstd
		}
	}
	return dx
}
