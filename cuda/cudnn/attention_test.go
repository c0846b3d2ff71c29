package cudnn

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

type ptr = unsafe.Pointer

// machine is a device with a stream, pinned memory and cuDNN. It is given back when the test ends.
type machine struct {
	t    *testing.T
	d    *cuda.Device
	s    *cuda.Stream
	h    *Handle
	host ptr
	size int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t}
	var err error
	if m.d, err = cuda.Open(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.try(m.d.Close()) })
	if m.s, err = m.d.NewStream(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.try(m.s.Close()) })
	if m.h, err = Open(m.d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.try(m.h.Close()) })
	t.Cleanup(func() { m.try(m.s.Synchronize()) })
	return m
}

func (m *machine) try(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Error(err)
	}
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// stage returns n bytes of pinned memory, which the next call may use again.
func (m *machine) stage(n int) []byte {
	m.t.Helper()
	if n > m.size {
		p, err := m.d.MallocHost(n)
		m.must(err)
		m.t.Cleanup(func() { m.try(m.d.FreeHost(p)) })
		m.host, m.size = p, n
	}
	return unsafe.Slice((*byte)(m.host), n)
}

// alloc returns device memory in which every 16-bit and every 32-bit float is NaN.
func (m *machine) alloc(bytes int) ptr {
	m.t.Helper()
	p, err := m.d.Malloc(bytes + 256)
	m.must(err)
	m.t.Cleanup(func() { m.try(m.d.Free(p)) })
	m.poison(p, bytes)
	return p
}

func (m *machine) poison(p ptr, bytes int) { m.try(m.s.Fill(p, 1, 0xff, bytes)) }

// put returns device memory with the numbers of v, which are of type t already.
func (m *machine) put(t elem.Type, v []float64) ptr {
	m.t.Helper()
	p := m.alloc(len(v) * t.Size())
	b := m.stage(len(v) * t.Size())
	for i, x := range v {
		switch t {
		case elem.BFloat16:
			*(*elem.BF16)(ptr(&b[2*i])) = elem.ToBF16(float32(x))
		case elem.Float16:
			*(*elem.F16)(ptr(&b[2*i])) = elem.ToF16(float32(x))
		default:
			*(*float32)(ptr(&b[4*i])) = float32(x)
		}
	}
	m.try(m.s.Copy(p, m.host, len(b)))
	m.try(m.s.Synchronize())
	return p
}

// bits are n bytes of device memory.
func (m *machine) bits(p ptr, n int) string {
	m.t.Helper()
	b := m.stage(n)
	m.try(m.s.Copy(m.host, p, n))
	m.try(m.s.Synchronize())
	return string(b)
}

func (m *machine) take(p ptr, t elem.Type, n int) []float64 {
	m.t.Helper()
	b := []byte(m.bits(p, n*t.Size()))
	v := make([]float64, n)
	for i := range v {
		switch t {
		case elem.BFloat16:
			v[i] = float64((*elem.BF16)(ptr(&b[2*i])).Float32())
		case elem.Float16:
			v[i] = float64((*elem.F16)(ptr(&b[2*i])).Float32())
		default:
			v[i] = float64(*(*float32)(ptr(&b[4*i])))
		}
	}
	return v
}

func round(t elem.Type, x float64) float64 {
	if t == elem.Float16 {
		return float64(elem.ToF16(float32(x)).Float32())
	}
	return float64(elem.ToBF16(float32(x)).Float32())
}

// normals are n numbers of type t.
func normals(r *rand.Rand, t elem.Type, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = round(t, r.NormFloat64())
	}
	return v
}

// reference is attention of one head of one sequence in float64, by its definition: q, k and v are
// (tokens, size).
type reference struct {
	tokens, size int
	p            []float64 // (tokens, tokens)
	out, lse     []float64
}

func attend(tokens, size int, q, k, v []float64) *reference {
	r := &reference{tokens, size, make([]float64, tokens*tokens), make([]float64, tokens*size), make([]float64, tokens)}
	for i := range tokens {
		p := r.p[i*tokens:][:i+1]
		sum := 0.0
		for j := range p {
			p[j] = math.Exp(dot(q[i*size:][:size], k[j*size:]) / math.Sqrt(float64(size)))
			sum += p[j]
		}
		r.lse[i] = math.Log(sum)
		for j := range p {
			p[j] /= sum
			for c := range size {
				r.out[i*size+c] += p[j] * v[j*size+c]
			}
		}
	}
	return r
}

// gradients are those of q, k and v for the gradient of out.
func (r *reference) gradients(q, k, v, dout []float64) (dq, dk, dv []float64) {
	n := r.tokens * r.size
	dq, dk, dv = make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range r.tokens {
		do := dout[i*r.size:][:r.size]
		d := dot(do, r.out[i*r.size:])
		for j := range i + 1 {
			p := r.p[i*r.tokens+j]
			ds := p * (dot(do, v[j*r.size:]) - d) / math.Sqrt(float64(r.size))
			for c := range r.size {
				dv[j*r.size+c] += p * do[c]
				dq[i*r.size+c] += ds * k[j*r.size+c]
				dk[j*r.size+c] += ds * q[i*r.size+c]
			}
		}
	}
	return dq, dk, dv
}

func dot(a, b []float64) (s float64) {
	for i, x := range a {
		s += x * b[i]
	}
	return s
}

// trial is a shape with operands on the device.
type trial struct {
	*machine
	Shape
	a                          *Attention
	qkv, dout                  []float64
	pqkv, pdout, pout, plse, w ptr
	pdqkv                      ptr
}

func (m *machine) trial(s Shape, deterministic bool) *trial {
	m.t.Helper()
	a, err := m.h.NewAttention(s, deterministic, Choice{})
	m.must(err)
	m.t.Cleanup(func() { m.try(a.Close()) })
	r := rand.New(rand.NewPCG(uint64(s.Tokens), uint64(s.Size)))
	n := s.Batch * s.Tokens * s.Heads * s.Size
	t := &trial{machine: m, Shape: s, a: a, qkv: normals(r, s.Type, 3*n), dout: normals(r, s.Type, n)}
	t.pqkv, t.pdout = m.put(s.Type, t.qkv), m.put(s.Type, t.dout)
	t.pout, t.plse, t.pdqkv = m.alloc(2*n), m.alloc(4*s.Batch*s.Heads*s.Tokens), m.alloc(6*n)
	t.w = m.alloc(max(a.ForwardWorkspace(), a.BackwardWorkspace()))
	return t
}

func (t *trial) forward() error {
	return t.a.Forward(t.s, t.pout, t.plse, t.pqkv, t.w, t.a.ForwardWorkspace())
}

func (t *trial) backward() error {
	return t.a.Backward(t.s, t.pdqkv, t.pdout, t.pout, t.plse, t.pqkv, t.w, t.a.BackwardWorkspace())
}

// head returns part of a packed tensor (Batch, Tokens, parts, Heads, Size) as (Tokens, Size).
func (s Shape) head(v []float64, b, h, part, parts int) []float64 {
	out := make([]float64, 0, s.Tokens*s.Size)
	for i := range s.Tokens {
		at := (((b*s.Tokens+i)*parts+part)*s.Heads + h) * s.Size
		out = append(out, v[at:at+s.Size]...)
	}
	return out
}

// check runs both passes and compares up to heads heads, from the first and from the last, with
// float64.
func (t *trial) check(heads int) {
	t.t.Helper()
	t.poison(t.w, max(t.a.ForwardWorkspace(), t.a.BackwardWorkspace()))
	t.try(t.forward())
	t.poison(t.w, max(t.a.ForwardWorkspace(), t.a.BackwardWorkspace()))
	t.try(t.backward())
	s := t.Shape
	n := s.Batch * s.Tokens * s.Heads * s.Size
	out, dqkv := t.take(t.pout, s.Type, n), t.take(t.pdqkv, s.Type, 3*n)
	lse := t.take(t.plse, elem.Float32, s.Batch*s.Heads*s.Tokens)
	all := s.Batch * s.Heads
	for i := range min(heads, all) {
		at := i / 2
		if i%2 == 1 {
			at = all - 1 - i/2
		}
		b, h := at/s.Heads, at%s.Heads
		q, k, v, do := s.head(t.qkv, b, h, 0, 3), s.head(t.qkv, b, h, 1, 3), s.head(t.qkv, b, h, 2, 3),
			s.head(t.dout, b, h, 0, 1)
		r := attend(s.Tokens, s.Size, q, k, v)
		dq, dk, dv := r.gradients(q, k, v, do)
		name := fmt.Sprintf("%+v, sequence %d, head %d: ", s, b, h)
		t.near(name+"out", s.head(out, b, h, 0, 1), r.out)
		t.near(name+"dq", s.head(dqkv, b, h, 0, 3), dq)
		t.near(name+"dk", s.head(dqkv, b, h, 1, 3), dk)
		t.near(name+"dv", s.head(dqkv, b, h, 2, 3), dv)
		for i, want := range r.lse {
			if got := lse[(b*s.Heads+h)*s.Tokens+i]; !(math.Abs(got-want) < 1e-3) {
				t.t.Errorf("%slse of token %d is %v, want %v", name, i, got, want)
				break
			}
		}
	}
}

// near compares in norm over all, and over each row against the mean row: an error in a few rows
// hides from the first.
func (t *trial) near(name string, got, want []float64) {
	t.t.Helper()
	norm := func(v []float64) float64 { return math.Sqrt(dot(v, v)) }
	diff := make([]float64, len(want))
	for i := range diff {
		diff[i] = got[i] - want[i]
	}
	if rel := norm(diff) / norm(want); !(rel < 1e-2) {
		t.t.Errorf("%s: relative error %.2g", name, rel)
		return
	}
	mean := norm(want) / math.Sqrt(float64(t.Tokens))
	for i := range t.Tokens {
		d, w := norm(diff[i*t.Size:][:t.Size]), norm(want[i*t.Size:][:t.Size])
		if !(d < 0.03*(w+mean)) {
			t.t.Errorf("%s: token %d is off by %.2g of %.2g", name, i, d, w)
			return
		}
	}
}

func wantError(t *testing.T, err error, kind error, parts ...string) {
	t.Helper()
	if err == nil || kind != nil && !errors.Is(err, kind) {
		t.Errorf("got %v, want %v with %q", err, kind, parts)
	}
	testkit.Refused(t, err, parts...)
}
