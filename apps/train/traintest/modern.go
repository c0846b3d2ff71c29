package traintest

import (
	"fmt"
	"math"

	"lockstep/apps/train/layout"
)

// This is a modern model again, in float64 and plain loops, as the reference for the fast one. Each
// operation leaves on a tape how gradients go back through it. It shares only the names and shapes
// of the tensors with the fast one.

// ModernReference returns the float64 model with the weights p, by name.
func ModernReference(cfg layout.Config, p map[string][]float64) *modernModel {
	return &modernModel{cfg: cfg, p: p}
}

type modernModel struct {
	cfg  layout.Config
	p, g map[string][]float64 // weights, and their gradients
	tape []func()
}

// rows are numbers and their gradients.
type rows struct{ v, g [][]float64 }

func newRows(n, c int) *rows { return &rows{refRows(n, c), refRows(n, c)} }

func (m *modernModel) behind(back func()) { m.tape = append(m.tape, back) }

// Batch returns the mean loss over (b,t) tokens, and sets its gradient unless grad is nil.
func (m *modernModel) Batch(tokens, targets []int32, t int, grad map[string][]float64) (loss float64) {
	m.g = grad
	if grad == nil {
		m.g = ZeroLike(m.p)
	}
	for i := 0; i < len(tokens); i += t {
		m.tape = nil
		loss += m.sequence(tokens[i:i+t], targets[i:i+t], 1/float64(len(tokens)))
		for k := len(m.tape) - 1; k >= 0 && grad != nil; k-- {
			m.tape[k]()
		}
	}
	return loss
}

func (m *modernModel) sequence(tokens, targets []int32, scale float64) float64 {
	cfg := m.cfg
	L, C, T := cfg.Layers, cfg.Channels, len(tokens)
	head := C / cfg.Heads
	x, left := m.norm(m.lookUp("wte.weight", tokens), C), []*rows{}
	tables := min(3, L/2)
	for l := range L {
		h := fmt.Sprintf("h.%d.", l)
		if cfg.Parts&layout.Skips != 0 && l >= L-L/2 {
			x = m.sum(x, m.times(left[L-1-l], h+"skip", 0))
		}
		qkv := m.linear(m.norm(x, C), h+"attn.c_attn.weight", 3*C)
		q, k, v := m.columns(qkv, 0, C), m.columns(qkv, C, C), m.columns(qkv, 2*C, C)
		if cfg.Parts&layout.NormQK != 0 {
			q, k = m.norm(q, head), m.norm(k, head)
		}
		if cfg.Parts&layout.Values != 0 && (l < tables || l >= L-tables) {
			which := l
			if l >= tables {
				which = l - (L - tables)
			}
			table := m.lookUp(fmt.Sprintf("values.%d.weight", which), tokens)
			v = m.sum(m.times(v, h+"attn.values", 0), m.times(table, h+"attn.values", 1))
		}
		window := 256
		if cfg.Parts&layout.Windows == 0 || (L-1-l)%4 == 0 {
			window = T
		}
		att := m.attend(m.turn(q, head), m.turn(k, head), v, head, window)
		x = m.sum(x, m.linear(att, h+"attn.c_proj.weight", C))
		fc := m.linear(m.norm(x, C), h+"mlp.c_fc.weight", 4*C)
		x = m.sum(x, m.linear(m.each(fc, func(z float64) (float64, float64) {
			return max(z, 0) * max(z, 0), 2 * max(z, 0)
		}), h+"mlp.c_proj.weight", C))
		left = append(left, x)
	}
	z := m.linear(m.norm(x, C), "head.weight", cfg.Vocab)
	loss := 0.0
	for t, target := range targets {
		sum := 0.0
		for _, v := range z.v[t] {
			sum += math.Exp(v)
		}
		loss += scale * (math.Log(sum) - z.v[t][target])
		for j, v := range z.v[t] {
			z.g[t][j] = scale * math.Exp(v) / sum
		}
		z.g[t][target] -= scale
	}
	return loss
}

func (m *modernModel) lookUp(name string, tokens []int32) *rows {
	C := m.cfg.Channels
	y := newRows(len(tokens), C)
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

func (m *modernModel) linear(x *rows, name string, out int) *rows {
	y := &rows{refLinear(x.v, m.p[name], nil, out), refRows(len(x.v), out)}
	m.behind(func() { addTo(x.g, refLinearBack(y.g, x.v, m.p[name], m.g[name], nil)) })
	return y
}

// norm divides each piece of a row by the root of its mean square.
func (m *modernModel) norm(x *rows, size int) *rows {
	y := newRows(len(x.v), len(x.v[0]))
	pieces := func(do func(x, y, dx, dy []float64, inv float64)) {
		for t := range x.v {
			for lo := 0; lo < len(x.v[t]); lo += size {
				hi, mean := lo+size, 0.0
				for _, v := range x.v[t][lo:hi] {
					mean += v * v / float64(size)
				}
				do(x.v[t][lo:hi], y.v[t][lo:hi], x.g[t][lo:hi], y.g[t][lo:hi], 1/math.Sqrt(mean+1.1920929e-7))
			}
		}
	}
	pieces(func(x, y, _, _ []float64, inv float64) {
		for i, v := range x {
			y[i] = v * inv
		}
	})
	m.behind(func() {
		pieces(func(x, _, dx, dy []float64, inv float64) {
			// y_i = x_i·inv, and inv changes by -inv³·x_j/size with x_j.
			along := 0.0
			for i, v := range x {
				along += dy[i] * v
			}
			for j, v := range x {
				dx[j] += dy[j]*inv - along*inv*inv*inv*v/float64(size)
			}
		})
	})
	return y
}

func (m *modernModel) times(x *rows, name string, i int) *rows {
	y, k := newRows(len(x.v), len(x.v[0])), m.p[name][i]
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

func (m *modernModel) sum(a, b *rows) *rows {
	y := &rows{refAdd(a.v, b.v), refRows(len(a.v), len(a.v[0]))}
	m.behind(func() { addTo(a.g, y.g); addTo(b.g, y.g) })
	return y
}

func (m *modernModel) columns(x *rows, first, n int) *rows {
	y := newRows(len(x.v), n)
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

func (m *modernModel) each(x *rows, f func(float64) (y, slope float64)) *rows {
	y := newRows(len(x.v), len(x.v[0]))
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
func (m *modernModel) turn(x *rows, head int) *rows {
	y := newRows(len(x.v), len(x.v[0]))
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

// attend sees at most window tokens before the query's group of 128.
func (m *modernModel) attend(q, k, v *rows, head, window int) *rows {
	const scale = 0.12
	T := len(q.v)
	y := newRows(T, len(q.v[0]))
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
