package cpp

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"slices"
	"strconv"
	"strings"
)

// as returns an expression as a value of a type, which decides how constants are written.
func (w *writer) as(e ast.Expr, t types.Type) string {
	if v := w.Info.Types[e].Value; v != nil {
		w.usesIn(e)
		return w.constant(e.Pos(), v, w.subst(t))
	}
	return w.expr(e)
}

// constant writes a constant.
func (w *writer) constant(at token.Pos, v constant.Value, t types.Type) string {
	b, ok := t.Underlying().(*types.Basic)
	if !ok {
		w.Refuse(at, "a kernel cannot have a constant of type %s", types.TypeString(t, types.RelativeTo(w.Pkg)))
	}
	switch info := b.Info(); {
	case info&types.IsBoolean != 0:
		return strconv.FormatBool(constant.BoolVal(v))
	case info&types.IsFloat != 0:
		return float(constant.ToFloat(v), b.Kind() == types.Float32)
	case info&types.IsComplex != 0:
		v, single := constant.ToComplex(v), b.Kind() == types.Complex64
		return fmt.Sprintf("%s{%s, %s}", basics[b.Kind()], float(constant.Real(v), single),
			float(constant.Imag(v), single))
	case info&types.IsInteger != 0:
		v = constant.ToInt(v)
		if n, ok := constant.Uint64Val(v); ok && info&types.IsUnsigned != 0 {
			if c := basics[b.Kind()]; c == "uint64_t" {
				return fmt.Sprintf("%dULL", n)
			}
			return fmt.Sprintf("%du", n)
		}
		if n, ok := constant.Int64Val(v); ok {
			switch {
			case n == math.MinInt64:
				return "(-9223372036854775807LL - 1)"
			case n > math.MaxInt32 || n < math.MinInt32+1:
				return fmt.Sprintf("%dLL", n)
			}
			return strconv.FormatInt(n, 10)
		}
	}
	w.Refuse(at, "a kernel cannot have the constant %s", v)
	return ""
}

// float writes a constant with the bits that Go gives it.
func float(v constant.Value, single bool) string {
	var text string
	if single {
		f, _ := constant.Float32Val(v)
		text = strconv.FormatFloat(float64(f), 'g', -1, 32)
	} else {
		f, _ := constant.Float64Val(v)
		text = strconv.FormatFloat(f, 'g', -1, 64)
	}
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	if single {
		text += "f"
	}
	return text
}

// plain reports whether C++ computes x op y of two values of a type as Go does, with the same type.
func plain(t types.Type, op token.Token) bool {
	b, ok := t.Underlying().(*types.Basic)
	if _, small := SmallFloat(t); !ok || small {
		return false
	}
	switch b.Kind() {
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

// binary writes x op y of two values of a type.
func (w *writer) binary(t types.Type, op token.Token, x, y string, at token.Pos) string {
	if plain(t, op) {
		return fmt.Sprintf("(%s %s %s)", x, op, y)
	}
	name, ok := operators[op]
	if _, small := SmallFloat(t); small {
		w.Refuse(at, "a kernel cannot compute with %s: it is for storage; convert it with Float32",
			types.TypeString(t, types.RelativeTo(w.Pkg)))
	}
	if !ok || t.Underlying().(*types.Basic).Info()&types.IsInteger == 0 {
		w.Refuse(at, "a kernel cannot have %s of %s", op, types.TypeString(t, types.RelativeTo(w.Pkg)))
	}
	return fmt.Sprintf("spmd::%s<%s>(%s, %s)", name, w.CType(at, t), x, y)
}

// shiftCount writes the right operand of a shift, of any integer type.
func (w *writer) shiftCount(e ast.Expr) string {
	t := types.Default(w.typeOf(e))
	text := w.as(e, t)
	if b, ok := t.Underlying().(*types.Basic); ok && b.Info()&types.IsUnsigned != 0 {
		return "(uint64_t)(" + text + ")"
	}
	return "spmd::count(" + text + ")"
}

func (w *writer) expr(e ast.Expr) string {
	if tv := w.Info.Types[e]; tv.Value != nil {
		t := w.typeOf(e)
		w.usesIn(e)
		return w.constant(e.Pos(), tv.Value, types.Default(t))
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return "(" + w.expr(e.X) + ")"
	case *ast.Ident:
		return w.ident(e)
	case *ast.BinaryExpr:
		return w.binaryExpr(e)
	case *ast.UnaryExpr:
		return w.unary(e)
	case *ast.StarExpr:
		return "(*" + w.expr(e.X) + ")"
	case *ast.IndexExpr:
		return w.index(e)
	case *ast.SliceExpr:
		return w.slice(e)
	case *ast.SelectorExpr:
		return w.selector(e)
	case *ast.CompositeLit:
		return w.literal(e)
	case *ast.CallExpr:
		return w.call(e)
	}
	w.Refuse(e.Pos(), "a kernel cannot have %s", what(e))
	return ""
}

// usesIn notes the constants of the package in an expression.
func (w *writer) usesIn(e ast.Expr) {
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if o := w.Info.Uses[id]; o != nil {
				w.use(o)
			}
		}
		return true
	})
}

func (w *writer) ident(e *ast.Ident) string {
	o := w.Info.ObjectOf(e)
	switch o := o.(type) {
	case *types.Var:
		if o.Parent() == w.Pkg.Scope() || o.Pkg() != w.Pkg {
			w.Refuse(e.Pos(), "a kernel cannot use the variable %s: give it as an argument, or make it a constant",
				e.Name)
		}
		return w.name(o)
	case *types.Nil:
		return "nullptr"
	}
	w.Refuse(e.Pos(), "a kernel cannot use %s here", e.Name)
	return ""
}

func (w *writer) binaryExpr(e *ast.BinaryExpr) string {
	switch e.Op {
	case token.LAND, token.LOR:
		return fmt.Sprintf("(%s %s %s)", w.expr(e.X), e.Op, w.expr(e.Y))
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		t := w.typeOf(e.X)
		if b, ok := t.(*types.Basic); ok && b.Info()&types.IsUntyped != 0 {
			t = w.typeOf(e.Y)
		}
		switch u := t.Underlying().(type) {
		case *types.Basic:
			if _, ok := SmallFloat(t); !ok {
				return fmt.Sprintf("(%s %s %s)", w.as(e.X, t), e.Op, w.as(e.Y, t))
			}
			return fmt.Sprintf("(%s.bits %s %s.bits)", w.expr(e.X), e.Op, w.expr(e.Y))
		case *types.Pointer:
			return fmt.Sprintf("(%s %s %s)", w.expr(e.X), e.Op, w.expr(e.Y))
		default:
			w.Refuse(e.Pos(), "a kernel cannot compare values of type %s", types.TypeString(u, types.RelativeTo(w.Pkg)))
		}
	case token.SHL, token.SHR:
		t := w.typeOf(e)
		return w.binary(t, e.Op, w.as(e.X, t), w.shiftCount(e.Y), e.Pos())
	}
	t := w.typeOf(e)
	return w.binary(t, e.Op, w.as(e.X, t), w.as(e.Y, t), e.Pos())
}

func (w *writer) unary(e *ast.UnaryExpr) string {
	t := w.typeOf(e)
	switch e.Op {
	case token.ADD:
		return w.expr(e.X)
	case token.NOT:
		return "!" + w.expr(e.X)
	case token.SUB:
		if t.Underlying().(*types.Basic).Info()&(types.IsFloat|types.IsComplex) != 0 {
			return "(-" + w.expr(e.X) + ")"
		}
		return w.binary(t, token.SUB, "0", w.expr(e.X), e.Pos())
	case token.XOR:
		return fmt.Sprintf("((%s)~%s)", w.CType(e.Pos(), t), w.expr(e.X))
	case token.AND:
		if c, ok := e.X.(*ast.CompositeLit); ok {
			w.Refuse(c.Pos(), "a kernel cannot allocate: it cannot take the address of a new value")
		}
		w.writes(e.X)
		return "(&" + w.expr(e.X) + ")"
	}
	w.Refuse(e.Pos(), "a kernel cannot have the operator %s", e.Op)
	return ""
}

// index writes x[i].
func (w *writer) index(e *ast.IndexExpr) string {
	t := w.typeOf(e.X)
	if id, ok := e.X.(*ast.Ident); ok && w.rows != nil && w.rows.arrays[w.Info.ObjectOf(id)] == kept {
		return w.name(w.Info.ObjectOf(id)) + ".v[slot_]"
	}
	if p, ok := t.Underlying().(*types.Pointer); ok {
		if _, ok := p.Elem().Underlying().(*types.Array); ok {
			return fmt.Sprintf("AT((*%s), %s, %s)", w.expr(e.X), w.indexValue(e.Index), w.where(e.Pos()))
		}
	}
	switch t.Underlying().(type) {
	case *types.Slice:
		if w.multiplies(e.Index) && types.Identical(w.typeOf(e.Index), types.Typ[types.Int]) {
			return fmt.Sprintf("AT_NARROW(%s, %s, %s, %s)",
				w.expr(e.X), w.narrow(e.Index), w.indexValue(e.Index), w.where(e.Pos()))
		}
		return fmt.Sprintf("AT(%s, %s, %s)", w.expr(e.X), w.indexValue(e.Index), w.where(e.Pos()))
	case *types.Array:
		return fmt.Sprintf("AT(%s, %s, %s)", w.expr(e.X), w.indexValue(e.Index), w.where(e.Pos()))
	}
	w.Refuse(e.Pos(), "a kernel cannot index %s", types.TypeString(t, types.RelativeTo(w.Pkg)))
	return ""
}

func (w *writer) indexValue(e ast.Expr) string {
	t := types.Default(w.typeOf(e))
	if b, ok := t.Underlying().(*types.Basic); !ok || b.Info()&types.IsInteger == 0 {
		t = types.Typ[types.Int]
	}
	return w.as(e, t)
}

func (w *writer) slice(e *ast.SliceExpr) string {
	if e.Slice3 {
		w.Refuse(e.Pos(), "a kernel cannot have a slice's capacity: write x[a:b]")
	}
	x := w.expr(e.X)
	if _, ok := w.typeOf(e.X).Underlying().(*types.Slice); !ok {
		w.Refuse(e.Pos(), "a kernel cannot slice %s: slices it can",
			types.TypeString(w.typeOf(e.X), types.RelativeTo(w.Pkg)))
	}
	low, high := "0", "("+x+").n"
	if e.Low != nil {
		low = w.indexValue(e.Low)
	}
	if e.High != nil {
		high = w.indexValue(e.High)
	}
	return fmt.Sprintf("SUB(%s, %s, %s, %s)", x, low, high, w.where(e.Pos()))
}

func (w *writer) selector(e *ast.SelectorExpr) string {
	sel := w.Info.Selections[e]
	if sel == nil || sel.Kind() != types.FieldVal {
		w.Refuse(e.Pos(), "a kernel cannot use %s here", types.ExprString(e))
	}
	dot := "."
	if _, ok := w.typeOf(e.X).Underlying().(*types.Pointer); ok {
		dot = "->"
	}
	w.CType(e.Pos(), w.typeOf(e.X))
	return w.expr(e.X) + dot + Safe(e.Sel.Name)
}

func (w *writer) literal(e *ast.CompositeLit) string {
	t := w.typeOf(e)
	c := w.CType(e.Pos(), t)
	switch u := t.Underlying().(type) {
	case *types.Struct:
		values := make([]string, u.NumFields())
		for i := range values {
			values[i] = "{}"
		}
		for i, el := range e.Elts {
			at := i
			if kv, ok := el.(*ast.KeyValueExpr); ok {
				for at = 0; u.Field(at).Name() != kv.Key.(*ast.Ident).Name; at++ {
				}
				el = kv.Value
			}
			values[at] = w.as(el, u.Field(at).Type())
		}
		return c + "{" + strings.Join(values, ", ") + "}"
	case *types.Array:
		values := make([]string, u.Len())
		for i := range values {
			values[i] = "{}"
		}
		at := 0
		for _, el := range e.Elts {
			if kv, ok := el.(*ast.KeyValueExpr); ok {
				n, _ := constant.Int64Val(w.Info.Types[kv.Key].Value)
				at, el = int(n), kv.Value
			}
			values[at] = w.as(el, u.Elem())
			at++
		}
		return c + "{{" + strings.Join(values, ", ") + "}}"
	}
	w.Refuse(e.Pos(), "a kernel cannot allocate: it cannot have a literal of %s",
		types.TypeString(t, types.RelativeTo(w.Pkg)))
	return ""
}

// rootsOf returns the parameters on whose memory an expression, a slice or pointer, may lie.
func (w *writer) rootsOf(e ast.Expr) []int {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return w.rootsOf(e.X)
	case *ast.Ident:
		return w.roots[w.Info.ObjectOf(e)]
	case *ast.SliceExpr:
		return w.rootsOf(e.X)
	case *ast.IndexExpr:
		return w.rootsOf(e.X)
	case *ast.StarExpr:
		return w.rootsOf(e.X)
	case *ast.SelectorExpr:
		return w.rootsOf(e.X)
	case *ast.UnaryExpr:
		return w.rootsOf(e.X)
	case *ast.CallExpr: // a function's result may lie where an argument does
		var all []int
		for _, a := range e.Args {
			all = append(all, w.rootsOf(a)...)
		}
		return all
	}
	return nil
}

// writes notes that the memory of an expression changes.
func (w *writer) writes(e ast.Expr) {
	through := false
	for x := e; ; {
		switch y := x.(type) {
		case *ast.ParenExpr:
			x = y.X
		case *ast.SelectorExpr:
			if _, ok := w.typeOf(y.X).Underlying().(*types.Pointer); ok {
				through = true
			}
			x = y.X
		case *ast.IndexExpr:
			if _, ok := w.typeOf(y.X).Underlying().(*types.Array); !ok {
				through = true
			}
			x = y.X
		case *ast.StarExpr:
			through = true
			x = y.X
		default:
			if through {
				for _, p := range w.rootsOf(x) {
					w.fn.Written[p] = true
				}
			}
			return
		}
	}
}
