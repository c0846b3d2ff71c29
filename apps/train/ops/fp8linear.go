package ops

import (
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// FP8Linear is the 8-bit operands of a linear's products.
type FP8Linear struct {
	W, Across spmd.Buffer[spmd.F8E4M3] // (out,in), and the transpose
	By        spmd.Buffer[float32]     // (1): what these are multiplied by
	// casts of the input, and of the output's gradient, which is Wide if a classifier made it
	X, DY Cast
}

// Head returns the operands of the head, whose output's gradient is Wide, or nil if this
// stage has no head.
func (e *FP8) Head(name string, site int) *FP8Linear {
	q := e.Linear(name, site)
	if q == nil {
		return nil
	}
	q.DY.Codes, q.DY.Wide = spmd.Buffer[spmd.F8E4M3]{}, spmd.View[spmd.F8E5M2](q.DY.Codes)
	return q
}

// Linear returns the operands of a linear, by its weight's name and the first of its two sites. It
// returns nil if its products are of bfloat16.
func (e *FP8) Linear(name string, site int) *FP8Linear {
	castOf := func(site int) Cast {
		one := func(b spmd.Buffer[float32]) spmd.Buffer[float32] { return b.Slice(site, site+1) }
		return Cast{Codes: e.Operand, Up: one(e.Up),
			Down: e.down.Slice(Apart8*site, Apart8*site+1), Peak: one(e.Peak)}
	}
	for i, m := range e.mats {
		if e.names[i] == name {
			n, codes := m.Rows*m.Cols, e.codesOf(i)
			return &FP8Linear{W: codes.Slice(m.To, m.To+n), Across: codes.Slice(m.Across, m.Across+n),
				By: e.weightBy.Slice(Apart8*i, Apart8*i+1), X: castOf(site), DY: castOf(site + 1)}
		}
	}
	return nil
}

// Layer returns the operands of a layer's linears: qkv, the attention's projection, and the MLP's
// two. All are nil if the products of layers are of bfloat16.
func (e *FP8) Layer(l int) (of [4]*FP8Linear) {
	for i, name := range [...]string{"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"} {
		of[i] = e.Linear(fmt.Sprintf("h.%d.%s.weight", l, name), layout.HeadSites+layout.LayerSites*l+2*i)
	}
	return of
}

// Mode says what a pass computes, and what it does with 8-bit floats if its model has any.
type Mode struct {
	Grads    bool // computes gradients
	Casts    bool // makes the copies
	Records  bool // and enters their largest sizes, for the next step
	Products bool // multiplies the copies
}

// These are the modes of passes. Learns uses the scales of the step before, Calibrates finds the
// first ones, Evaluates leaves them alone.
var (
	Learns     = Mode{Grads: true, Casts: true, Records: true, Products: true}
	Calibrates = Mode{Grads: true, Casts: true, Records: true}
	Evaluates  = Mode{Casts: true, Products: true}
)

// Input returns the cast of a linear's input in such a pass. Grad returns the cast of its output's
// gradient. q may be nil.
func (m Mode) Input(q *FP8Linear) Cast {
	return m.castOf(q, func(q *FP8Linear) Cast { return q.X })
}

func (m Mode) Grad(q *FP8Linear) Cast {
	return m.castOf(q, func(q *FP8Linear) Cast { return q.DY })
}

func (m Mode) castOf(q *FP8Linear, which func(*FP8Linear) Cast) Cast {
	if q == nil || !m.Casts {
		return Cast{}
	}
	c := which(q)
	if !m.Records {
		c.Peak = spmd.Buffer[float32]{}
	}
	return c
}

// Product returns q if such a pass multiplies the copies, else nil.
func (m Mode) Product(q *FP8Linear) *FP8Linear {
	if !m.Products {
		return nil
	}
	return q
}

// Scaled returns o with the scales of a linear's weights and of a cast. Sums are fast, except those
// over the vocabulary: fast ones lose its many small gradients beside the target's.
func (q *FP8Linear) Scaled(o blas.Options, operand Cast) blas.Options {
	o.TransB, o.FastAccum, o.ScaleA, o.ScaleB = true, operand.Wide.Len() == 0, operand.Down.Arg(), q.By.Arg()
	return o
}
