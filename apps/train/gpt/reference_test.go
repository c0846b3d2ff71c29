package gpt

import (
	"fmt"
	"math"
	rand "math/rand/v2"
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
)

// These are the models again, in float64 and plain loops, as the reference for the fast ones. Each
// operation leaves on a tape how gradients go back through it. They share only the names and shapes
// of the tensors with the fast ones.

// reference returns the float64 model with the weights p, by name.
func reference(cfg layout.Config, p map[string][]float64) *refModel { return &refModel{cfg: cfg, p: p} }

// refModel holds the tensors by name; weights are (outputs, inputs).
type refModel struct {
	cfg  layout.Config
	p, g map[string][]float64 // weights, and their gradients
	tape []func()
}

// rows are numbers and their gradients.
type rows struct{ v, g [][]float64 }

func (m *refModel) newRows(n, c int) *rows { return m.rowsOf(refRows(n, c)) }

func (m *refModel) rowsOf(v [][]float64) *rows {
	x := &rows{v: v}
	if m.g != nil {
		x.g = refRows(len(v), len(v[0]))
	}
	return x
}

func (m *refModel) behind(back func()) {
	if m.g != nil {
		m.tape = append(m.tape, back)
	}
}

// Batch returns the mean loss over (b,t) tokens, and sets its gradient unless grad is nil.
func (m *refModel) Batch(tokens, targets []int32, t int, grad map[string][]float64) (loss float64) {
	m.g = grad
	for i := 0; i < len(tokens); i += t {
		m.tape = nil
		loss += classify(m.logits(tokens[i:i+t]), targets[i:i+t], 1/float64(len(tokens)))
		for k := len(m.tape) - 1; k >= 0; k-- {
			m.tape[k]()
		}
	}
	return loss
}

// classify returns the sum of the losses of logits z times scale, and sets the gradient of z.
func classify(z *rows, targets []int32, scale float64) (loss float64) {
	for t, target := range targets {
		top, sum := slices.Max(z.v[t]), 0.0
		for _, v := range z.v[t] {
			sum += math.Exp(v - top)
		}
		loss += scale * (math.Log(sum) + top - z.v[t][target])
		if z.g == nil {
			continue
		}
		for j, v := range z.v[t] {
			z.g[t][j] = scale * math.Exp(v-top) / sum
		}
		z.g[t][target] -= scale
	}
	return loss
}

// logits returns the logits of a decoder with any parts.
func (m *refModel) logits(tokens []int32) *rows {
	cfg := m.cfg
	L, C, T := cfg.Layers, cfg.Channels, len(tokens)
	head, tables, left := C/cfg.Heads, min(3, L/2), []*rows{}
	has := func(p layout.Parts) bool { return cfg.Parts&p != 0 }
	norm := func(x *rows, name string) *rows {
		if has(layout.RMSNorms) {
			return m.norm(x, C)
		}
		return m.layerNorm(x, name)
	}
	x, output, scale := m.lookUp("wte.weight", tokens), "wte", 1/math.Sqrt(float64(head))
	if has(layout.RMSNorms) {
		x, output = m.norm(x, C), "head"
	}
	if has(layout.Scaled) {
		scale = 0.12
	}
	if !has(layout.Rotary) {
		places := make([]int32, T)
		for t := range places {
			places[t] = int32(t)
		}
		x = m.sum(x, m.lookUp("wpe.weight", places))
	}
	activation := func(v float64) (float64, float64) {
		k := math.Sqrt(2 / math.Pi)
		th := math.Tanh(k * (v + 0.044715*v*v*v))
		return 0.5 * v * (1 + th), 0.5*(1+th) + 0.5*v*(1-th*th)*k*(1+3*0.044715*v*v)
	}
	if has(layout.ReLU2) {
		activation = func(v float64) (float64, float64) { return max(v, 0) * max(v, 0), 2 * max(v, 0) }
	}
	for l := range L {
		h := fmt.Sprintf("h.%d.", l)
		if has(layout.Skips) && l >= L-L/2 {
			x = m.sum(x, m.times(left[L-1-l], h+"skip", 0))
		}
		qkv := m.linear(norm(x, h+"ln_1"), h+"attn.c_attn", 3*C)
		q, k, v := m.columns(qkv, 0, C), m.columns(qkv, C, C), m.columns(qkv, 2*C, C)
		if has(layout.NormQK) {
			q, k = m.norm(q, head), m.norm(k, head)
		}
		if has(layout.Values) && (l < tables || l >= L-tables) {
			which := l
			if l >= tables {
				which = l - (L - tables)
			}
			table := m.lookUp(fmt.Sprintf("values.%d.weight", which), tokens)
			v = m.sum(m.times(v, h+"attn.values", 0), m.times(table, h+"attn.values", 1))
		}
		if has(layout.Rotary) {
			q, k = m.turn(q, head), m.turn(k, head)
		}
		window := 256
		if !has(layout.Windows) || (L-1-l)%4 == 0 {
			window = T
		}
		before := x
		x = m.sum(x, m.linear(m.attend(q, k, v, head, window, scale), h+"attn.c_proj", C))
		if !has(layout.Beside) {
			before = x
		}
		fc := m.linear(norm(before, h+"ln_2"), h+"mlp.c_fc", 4*C)
		x = m.sum(x, m.linear(m.each(fc, activation), h+"mlp.c_proj", C))
		left = append(left, x)
	}
	return m.linear(norm(x, "ln_f"), output, cfg.Vocab)
}

func (m *refModel) lookUp(name string, tokens []int32) *rows {
	C := m.cfg.Channels
	y := m.newRows(len(tokens), C)
	for t, token := range tokens {
		copy(y.v[t], m.p[name][int(token)*C:])
	}
	m.behind(func() {
		for t, token := range tokens {
			for c, d := range y.g[t] {
				m.g[name][int(token)*C+c] += d
			}
		}
	})
	return y
}

// linear adds the bias that has the weight's name, if there is one.
func (m *refModel) linear(x *rows, name string, out int) *rows {
	w, dw, b, db := m.p[name+".weight"], m.g[name+".weight"], m.p[name+".bias"], m.g[name+".bias"]
	y := m.rowsOf(refLinear(x.v, w, b, out))
	m.behind(func() { addTo(x.g, refLinearBack(y.g, x.v, w, dw, db)) })
	return y
}

func (m *refModel) layerNorm(x *rows, name string) *rows {
	w, dw, b, db := m.p[name+".weight"], m.g[name+".weight"], m.p[name+".bias"], m.g[name+".bias"]
	y := m.rowsOf(refNorm(x.v, w, b))
	m.behind(func() { addTo(x.g, refNormBack(y.g, x.v, w, dw, db)) })
	return y
}

// norm divides each piece of a row by the root of its mean square.
func (m *refModel) norm(x *rows, size int) *rows {
	y := m.newRows(len(x.v), len(x.v[0]))
	pieces := func(do func(t, lo, hi int, inv float64)) {
		for t := range x.v {
			for lo := 0; lo < len(x.v[t]); lo += size {
				hi, mean := lo+size, 0.0
				for _, v := range x.v[t][lo:hi] {
					mean += v * v / float64(size)
				}
				do(t, lo, hi, 1/math.Sqrt(mean+1.1920929e-7))
			}
		}
	}
	pieces(func(t, lo, hi int, inv float64) {
		for i := lo; i < hi; i++ {
			y.v[t][i] = x.v[t][i] * inv
		}
	})
	m.behind(func() {
		pieces(func(t, lo, hi int, inv float64) {
			// y_i = x_i·inv, and inv changes by -inv³·x_j/size with x_j.
			along := 0.0
			for i := lo; i < hi; i++ {
				along += y.g[t][i] * x.v[t][i]
			}
			for j := lo; j < hi; j++ {
				x.g[t][j] += y.g[t][j]*inv - along*inv*inv*inv*x.v[t][j]/float64(size)
			}
		})
	})
	return y
}

func (m *refModel) times(x *rows, name string, i int) *rows {
	y, k := m.newRows(len(x.v), len(x.v[0])), m.p[name][i]
	for t := range x.v {
		for c, v := range x.v[t] {
			y.v[t][c] = k * v
		}
	}
	m.behind(func() {
		for t := range x.v {
			for c, d := range y.g[t] {
				x.g[t][c] += k * d
				m.g[name][i] += d * x.v[t][c]
			}
		}
	})
	return y
}

func (m *refModel) sum(a, b *rows) *rows {
	y := m.rowsOf(refAdd(a.v, b.v))
	m.behind(func() { addTo(a.g, y.g); addTo(b.g, y.g) })
	return y
}

func (m *refModel) columns(x *rows, first, n int) *rows {
	y := m.newRows(len(x.v), n)
	for t := range x.v {
		copy(y.v[t], x.v[t][first:])
	}
	m.behind(func() {
		for t := range x.v {
			for c, d := range y.g[t] {
				x.g[t][first+c] += d
			}
		}
	})
	return y
}

func (m *refModel) each(x *rows, f func(float64) (y, slope float64)) *rows {
	y := m.newRows(len(x.v), len(x.v[0]))
	for t := range x.v {
		for c, v := range x.v[t] {
			y.v[t][c], _ = f(v)
		}
	}
	m.behind(func() {
		for t := range x.v {
			for c, v := range x.v[t] {
				_, slope := f(v)
				x.g[t][c] += slope * y.g[t][c]
			}
		}
	})
	return y
}

// turn multiplies the complex numbers of each head's halves by e^(-i·position·frequency).
func (m *refModel) turn(x *rows, head int) *rows {
	y := m.newRows(len(x.v), len(x.v[0]))
	apply := func(y, x [][]float64, sign float64) {
		for t := range x {
			for lo := 0; lo < len(x[t]); lo += head {
				for i := range head / 2 {
					frequency := 0.0
					if n := head / 4; i < n {
						frequency = math.Exp(-math.Log(1024) * float64(i) / float64(n-1))
					}
					sin, cos := math.Sincos(sign * float64(t) * frequency)
					re, im := lo+i, lo+i+head/2
					y[t][re] += x[t][re]*cos + x[t][im]*sin
					y[t][im] += x[t][im]*cos - x[t][re]*sin
				}
			}
		}
	}
	apply(y.v, x.v, 1)
	m.behind(func() { apply(x.g, y.g, -1) })
	return y
}

// attend multiplies scores by scale. It sees at most window tokens before the query's group of 128.
func (m *refModel) attend(q, k, v *rows, head, window int, scale float64) *rows {
	T := len(q.v)
	y := m.newRows(T, len(q.v[0]))
	for lo := 0; lo < len(q.v[0]); lo += head {
		for i := range T {
			p, sum := make([]float64, i+1), 0.0
			for j := max(0, i-i%128-window); j <= i; j++ {
				for c := lo; c < lo+head; c++ {
					p[j] += scale * q.v[i][c] * k.v[j][c]
				}
				p[j] = math.Exp(p[j])
				sum += p[j]
			}
			for j := range p {
				p[j] /= sum
				for c := lo; c < lo+head; c++ {
					y.v[i][c] += p[j] * v.v[j][c]
				}
			}
			m.behind(func() {
				dp, mean := make([]float64, i+1), 0.0
				for j := range p {
					for c := lo; c < lo+head; c++ {
						dp[j] += y.g[i][c] * v.v[j][c]
						v.g[j][c] += p[j] * y.g[i][c]
					}
					mean += p[j] * dp[j]
				}
				for j := range p {
					ds := scale * p[j] * (dp[j] - mean)
					for c := lo; c < lo+head; c++ {
						q.g[i][c] += ds * k.v[j][c]
						k.g[j][c] += ds * q.v[i][c]
					}
				}
			})
		}
	}
	return y
}

func addTo(to, x [][]float64) {
	for t := range x {
		for c, v := range x[t] {
			to[t][c] += v
		}
	}
}

const refEps = 1e-5

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
		copy(y[t], bias)
		for o := range out {
			sum, row := y[t][o], w[o*len(x[t]):]
			for i, v := range x[t] {
				sum += row[i] * v
			}
			y[t][o] = sum
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
			wo, dwo, dxt := w[o*in:][:in], dw[o*in:][:in], dx[t][:in]
			for i, v := range x[t][:in] {
				dwo[i] += d * v
				dxt[i] += d * wo[i]
			}
		}
	}
	return dx
}

// refStats returns the mean of x and 1 over its deviation.
func refStats(x []float64) (mean, rstd float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	variance := 0.0
	for _, v := range x {
		variance += (v - mean) * (v - mean) / float64(len(x))
	}
	return mean, 1 / math.Sqrt(variance+refEps)
}

// refNorm returns the LayerNorm of each row.
func refNorm(x [][]float64, w, b []float64) [][]float64 {
	y := refRows(len(x), len(x[0]))
	for t := range x {
		mean, rstd := refStats(x[t])
		for c, v := range x[t] {
			y[t][c] = (v-mean)*rstd*w[c] + b[c]
		}
	}
	return y
}

// refNormBack returns the gradient of refNorm's input rows, and adds the gradients of its
// parameters.
func refNormBack(dy, x [][]float64, w, dw, db []float64) [][]float64 {
	dx := refRows(len(x), len(x[0]))
	for t := range x {
		mean, rstd := refStats(x[t])
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

// The reference's own gradients agree with central differences of its loss: the error of each
// element is compared with the tensor's largest gradient.
func TestReferenceGradients(t *testing.T) {
	// A squared ReLU's second derivative jumps at 0, more often within a larger step.
	compareDifferences(t, traintest.SmallModern, 1e-5, 5e-6)
	compareDifferences(t, traintest.SmallThird, 1e-3, 1e-6)
	all := compareDifferences(t, traintest.Small, 1e-3, 1e-6)
	traintest.Measured(t, "largest relative error of a float64 gradient against central differences", all)
}

// compareDifferences returns the largest error of some elements of each tensor.
//
// With five points the error is of fourth order. The step h can be so large that the rounding of
// the loss does not matter.
func compareDifferences(t *testing.T, cfg layout.Config, h, bound float64) (all float64) {
	t.Helper()
	m := reference(cfg, traintest.RandomParams(cfg, 1))
	in, targets := traintest.RandomTokens(10, cfg.Vocab, 3), traintest.RandomTokens(10, cfg.Vocab, 4)
	grad := traintest.ZeroLike(m.p)
	m.Batch(in, targets, 5, grad)
	loss := func(x *float64, v float64) float64 {
		old := *x
		*x = v
		defer func() { *x = old }()
		return m.Batch(in, targets, 5, nil)
	}
	params, _, _ := layout.Of(cfg)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, p := range params {
		x, g := m.p[p.Name], grad[p.Name]
		largest, worst := 0.0, 0.0
		for _, v := range g {
			largest = max(largest, math.Abs(v))
		}
		for range 8 {
			i := rng.IntN(p.Len)
			switch { // where a gradient may differ from zero
			case p.Name == "wpe.weight":
				i %= 5 * cfg.Channels
			case p.Name == "wte.weight" && !cfg.Has(layout.RMSNorms): // the head's, too
				i %= cfg.Vocab * cfg.Channels
			case p.InVocab() && p.Name != "head.weight":
				i = int(in[rng.IntN(len(in))])*cfg.Channels + i%cfg.Channels
			}
			v := x[i]
			d := (8*(loss(&x[i], v+h)-loss(&x[i], v-h)) - (loss(&x[i], v+2*h) - loss(&x[i], v-2*h))) / (12 * h)
			worst = max(worst, math.Abs(d-g[i])/largest)
		}
		if !(worst < bound) {
			t.Errorf("%s: largest relative error %.2g", p.Name, worst)
		}
		t.Logf("%-22s %.1e", p.Name, worst)
		all = max(all, worst)
	}
	return all
}
