package cpp

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"slices"
	"strconv"
	"strings"

	"lockstep/spmd/spmdgen/internal/ir"
)

func (p *printer) expr(e *ir.Expr) string {
	switch e.Op {
	case ir.Const:
		return p.constant(e.At, e.Value, e.Type)
	case ir.Nil:
		if _, ok := e.Type.Underlying().(*types.Pointer); ok {
			return "nullptr"
		}
		return "(" + p.CType(e.At, e.Type) + "{})"
	case ir.Local:
		return p.name(e.V)
	case ir.Part:
		return fmt.Sprintf("%s.r%d", p.name(e.V), e.Index)
	case ir.Unary:
		return p.unary(e)
	case ir.Binary:
		return p.infix(e)
	case ir.Deref:
		return "(*" + p.expr(e.Args[0]) + ")"
	case ir.Address:
		return "(&" + p.expr(e.Args[0]) + ")"
	case ir.Index:
		return p.index(e)
	case ir.Slice:
		return fmt.Sprintf("SUB(%s, %s)", p.list(e.Args), p.where(e.At))
	case ir.Field:
		if x := e.Args[0]; x.Op == ir.Deref {
			return p.expr(x.Args[0]) + "->" + Name(e.Name)
		}
		return p.expr(e.Args[0]) + "." + Name(e.Name)
	case ir.Len:
		return "(" + p.expr(e.Args[0]) + ").n"
	case ir.Literal:
		return p.literal(e)
	case ir.Convert:
		return p.conversion(e)
	case ir.Builtin:
		return p.builtin(e)
	case ir.Library:
		return p.library(e)
	}
	head := "SPMD_HERE"
	if len(e.Args) > 0 {
		head = "SPMD_HERE_AND "
	}
	return fmt.Sprintf("%s(%s%s)", p.Call(e.Fn), head, p.list(e.Args))
}

func (p *printer) list(all []*ir.Expr) string {
	var texts []string
	for _, a := range all {
		if a == nil {
			texts = append(texts, "{}")
		} else {
			texts = append(texts, p.expr(a))
		}
	}
	return strings.Join(texts, ", ")
}

// literal stands in parentheses: it may be an argument of a macro.
func (p *printer) literal(e *ir.Expr) string {
	c, values := p.CType(e.At, e.Type), p.list(e.Args)
	if _, ok := e.Type.Underlying().(*types.Array); ok {
		return "(" + c + "{{" + values + "}})"
	}
	return "(" + c + "{" + values + "})"
}

// constant prints a constant.
func (p *printer) constant(at token.Pos, v constant.Value, t types.Type) string {
	b := t.Underlying().(*types.Basic)
	if p.several(t) {
		d, _ := constant.Float64Val(v)
		f, _ := constant.Float32Val(v)
		if v.Kind() != constant.Complex && f == float32(d) && (d != math.Trunc(d) || math.Abs(d) < 1<<24) {
			return fmt.Sprintf("(%s)%s", p.CType(at, t), strconv.FormatFloat(d, 'g', -1, 64))
		}
	}
	switch info := b.Info(); {
	case info&types.IsBoolean != 0:
		return strconv.FormatBool(constant.BoolVal(v))
	case info&types.IsFloat != 0:
		return float(constant.ToFloat(v), b.Kind() == types.Float32)
	case info&types.IsComplex != 0:
		v, single := constant.ToComplex(v), b.Kind() == types.Complex64
		return fmt.Sprintf("(%s{%s, %s})", basics[b.Kind()], float(constant.Real(v), single),
			float(constant.Imag(v), single))
	}
	v = constant.ToInt(v)
	if n, ok := constant.Uint64Val(v); ok && b.Info()&types.IsUnsigned != 0 {
		if c := basics[b.Kind()]; c == "uint64_t" {
			return fmt.Sprintf("%dULL", n)
		}
		return fmt.Sprintf("%du", n)
	}
	n, ok := constant.Int64Val(v)
	switch {
	case !ok:
		p.Refuse(at, "a kernel cannot have the constant %s", v)
	case n == math.MinInt64:
		return "(-9223372036854775807LL - 1)"
	case n > math.MaxInt32 || n < math.MinInt32+1:
		return fmt.Sprintf("%dLL", n)
	}
	return strconv.FormatInt(n, 10)
}

// float prints a constant with the bits that Go gives it.
func float(v constant.Value, single bool) string {
	f, _ := constant.Float64Val(v)
	bits, suffix := 64, ""
	if single {
		f32, _ := constant.Float32Val(v)
		f, bits, suffix = float64(f32), 32, "f"
	}
	text := strconv.FormatFloat(f, 'g', -1, bits)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text + suffix
}

// plain reports whether C++ computes x op y of two values of a type as Go does, with the same type.
// Where the type is one of several, it is written as for all of them.
func (p *printer) plain(t types.Type, op token.Token) bool {
	if p.several(t) {
		return false
	}
	switch t.Underlying().(*types.Basic).Kind() {
	case types.Float32, types.Float64, types.UntypedFloat, types.Complex64, types.Complex128, types.UntypedComplex:
		return op == token.ADD || op == token.SUB || op == token.MUL || op == token.QUO
	case types.Uint, types.Uint32, types.Uint64:
		return slices.Contains([]token.Token{token.ADD, token.SUB, token.MUL, token.AND, token.OR, token.XOR}, op)
	case types.Int, types.Int32, types.Int64:
		return op == token.AND || op == token.OR || op == token.XOR
	}
	return false
}

var operators = map[token.Token]string{token.ADD: "add", token.SUB: "sub", token.MUL: "mul", token.QUO: "quo",
	token.REM: "rem", token.AND: "bits_and",
	token.OR: "bits_or", token.XOR: "bits_xor", token.AND_NOT: "and_not", token.SHL: "shl", token.SHR: "shr"}

// binary prints x op y of two values of a type.
func (p *printer) binary(t types.Type, op token.Token, x, y string, at token.Pos) string {
	if p.plain(t, op) {
		return fmt.Sprintf("(%s %s %s)", x, op, y)
	}
	return fmt.Sprintf("spmd::%s<%s>(%s, %s)", operators[op], p.CType(at, t), x, y)
}

// shiftCount prints the right operand of a shift, of any integer type.
func (p *printer) shiftCount(e *ir.Expr) string {
	if b := e.Type.Underlying().(*types.Basic); b.Info()&types.IsUnsigned != 0 {
		return "(uint64_t)(" + p.expr(e) + ")"
	}
	return "spmd::count(" + p.expr(e) + ")"
}

func (p *printer) infix(e *ir.Expr) string {
	x, y := e.Args[0], e.Args[1]
	switch e.Tok {
	case token.LAND, token.LOR, token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		if ir.SmallFloat(x.Type) {
			return fmt.Sprintf("(%s.bits %s %s.bits)", p.expr(x), e.Tok, p.expr(y))
		}
		return fmt.Sprintf("(%s %s %s)", p.expr(x), e.Tok, p.expr(y))
	case token.SHL, token.SHR:
		return p.binary(e.Type, e.Tok, p.expr(x), p.shiftCount(y), e.At)
	}
	return p.binary(e.Type, e.Tok, p.expr(x), p.expr(y), e.At)
}

func (p *printer) unary(e *ir.Expr) string {
	x := p.expr(e.Args[0])
	switch {
	case e.Tok == token.NOT:
		return "!" + x
	case e.Tok == token.XOR:
		return fmt.Sprintf("((%s)~%s)", p.CType(e.At, e.Type), x)
	case p.several(e.Type):
		return fmt.Sprintf("spmd::neg<%s>(%s)", p.CType(e.At, e.Type), x)
	case e.Type.Underlying().(*types.Basic).Info()&(types.IsFloat|types.IsComplex) != 0:
		return "(-" + x + ")"
	}
	return p.binary(e.Type, token.SUB, "0", x, e.At)
}

// index prints x[i].
func (p *printer) index(e *ir.Expr) string {
	x, i := e.Args[0], e.Args[1]
	if x.Op == ir.Local && x.V.Place == ir.Kept {
		return p.name(x.V) + ".v[slot]"
	}
	_, slice := x.Type.Underlying().(*types.Slice)
	if slice && p.multiplies(i) && types.Identical(i.Type, types.Typ[types.Int]) {
		return fmt.Sprintf("AT_NARROW(%s, %s, %s, %s)", p.expr(x), p.narrow(i), p.expr(i), p.where(e.At))
	}
	return fmt.Sprintf("AT(%s, %s, %s)", p.expr(x), p.expr(i), p.where(e.At))
}

// If all buffers are shorter than 2^31, indices are computed with 32 bits. Sums,
// differences and products are then right modulo 2^32, and so is an index in range. This
// pays if there are products.
//
// A variable that is such an index, and never changes, has a twin of the type I beside it. The
// compiler leaves out the unused one of the two.

// multiplies reports whether an index has a product, in itself or in a variable with a twin.
func (p *printer) multiplies(e *ir.Expr) bool {
	switch e.Op {
	case ir.Local:
		return p.twins[e.V] != ""
	case ir.Binary:
		return e.Tok == token.MUL ||
			(e.Tok == token.ADD || e.Tok == token.SUB) && (p.multiplies(e.Args[0]) || p.multiplies(e.Args[1]))
	}
	return false
}

// twin declares the twin of a variable, if it needs one.
func (p *printer) twin(v *ir.Var) {
	if v.Go && !v.Others && v.Sets == 0 && types.Identical(v.Type, types.Typ[types.Int]) && p.multiplies(v.Init) {
		name := p.fresh("narrow")
		p.line("const I %s = %s;", name, p.narrow(v.Init))
		p.twins[v] = name
	}
}

// narrow prints an index in the type I.
func (p *printer) narrow(e *ir.Expr) string {
	switch {
	case e.Op == ir.Local && p.twins[e.V] != "":
		return p.twins[e.V]
	case e.Op == ir.Binary && e.Type.Underlying().(*types.Basic).Kind() == types.Int &&
		(e.Tok == token.ADD || e.Tok == token.SUB || e.Tok == token.MUL):
		return fmt.Sprintf("(%s %s %s)", p.narrow(e.Args[0]), e.Tok, p.narrow(e.Args[1]))
	}
	return "(I)(" + p.expr(e) + ")"
}
