package blas

import (
	"fmt"
	"strings"
	"sync"

	"lockstep/internal/elem"
	"lockstep/spmd"
)

// shape tells products apart in the summary of a run.
type shape struct {
	batch, m, n, k int
	typ, ctyp      elem.Type
	ta, tb         bool
	ops            operands
}

// names keeps the names of products that were called.
type names struct {
	mu sync.Mutex
	of map[shape]string
}

// mostNames bounds them: shapes may differ in each call.
const mostNames = 1 << 10

// describeGemm says how a Gemm stands in the summary, and how many bytes its operands have.
func (h *handle) describeGemm(a spmd.Args) (string, int) {
	p := decode(a)
	from, to := p.typ.Size(), p.ctyp.Size()
	c := p.m * p.n * to
	bytes := (p.m*p.k+p.k*p.n)*from + c
	for _, matrix := range [...]bool{p.beta != 0, p.ops&hasResidual != 0, p.ops&hasGELU != 0, p.ops&hasDGELU != 0} {
		if matrix { // read beside, or written
			bytes += c
		}
	}
	return h.names.name("Gemm", shape{p.batch, p.m, p.n, p.k, p.typ, p.ctyp, p.ta, p.tb, p.ops}), p.batch * bytes
}

// describeGemv is describeGemm of a Gemv, with each operand counted once.
func (h *handle) describeGemv(a spmd.Args) (string, int) {
	p := decode(a)
	s := shape{batch: 1, m: p.m, n: p.n, typ: p.typ, ctyp: p.typ, ta: p.ta}
	return h.names.name("Gemv", s), (p.m*p.n + p.m + p.n) * p.typ.Size()
}

// name returns the name of a product of a shape, such as "Gemm 8x768x3072 bfloat16 to float32 A^T,
// Bias".
func (l *names) name(kind string, s shape) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name, ok := l.of[s]; ok {
		return name
	}
	if len(l.of) == mostNames {
		return kind
	}
	name := fmt.Sprintf("%s %dx%d", kind, s.m, s.n)
	if kind == "Gemm" {
		name += fmt.Sprintf("x%d", s.k)
	}
	if s.batch > 1 {
		name = strings.Replace(name, " ", fmt.Sprintf(" %d of ", s.batch), 1)
	}
	name += " " + s.typ.String()
	if s.ctyp != s.typ {
		name += " to " + s.ctyp.String()
	}
	if s.ta {
		name += " A^T"
	}
	if s.tb {
		name += " B^T"
	}
	if s.ops != 0 {
		name += ", " + s.ops.String()
	}
	if l.of == nil {
		l.of = map[shape]string{}
	}
	l.of[s] = name
	return name
}
