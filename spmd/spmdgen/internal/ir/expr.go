package ir

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
)

// operands lowers operands in their order. If one has statements, what stands before it and has
// calls is evaluated before these. What else stands there, or behind it, is not to depend on them:
// Go leaves open when it is read. The first are places.
func (l *lowering) operands(places int, all ...func() *Expr) (got []*Expr) {
	var before []*Stmt
	for _, f := range all {
		from := len(*l.out)
		x := f()
		if len(before) > 0 {
			l.order = append(l.order, open{x, len(got) < places, before})
		}
		if by := (*l.out)[from:]; len(by) > 0 {
			by = append([]*Stmt{}, by...)
			before = append(before, by...)
			*l.out = (*l.out)[:from]
			for k, e := range got {
				l.order = append(l.order, open{e, k < places, by})
				switch {
				case !e.calls():
				case k < places:
					got[k] = l.refer(e, e.At)
				default:
					got[k] = l.keep("value", e)
				}
			}
			*l.out = append(*l.out, by...)
		}
		got = append(got, x)
	}
	return got
}

// calls reports whether a tree has a call: when it is evaluated is for Go to say.
func (e *Expr) calls() bool {
	return e.has(func(e *Expr) bool { return e.Op == Call || e.Op == Library })
}

// loads reports whether a tree has a call or reads memory.
func (e *Expr) loads() bool {
	return e.calls() || e.has(func(e *Expr) bool { return e.Op == Deref || e.Op == Index })
}

// effect reports whether an expression is a call with an effect.
func (e *Expr) effect() bool {
	return e.Op == Call && slices.Contains(e.Fn.Writes, true) || e.Op == Library && atomic(e.Obj)
}

// atomic reports whether a function of another package changes memory behind its first argument.
func atomic(f *types.Func) bool {
	return f.Pkg().Path() == "lockstep/spmd" && (f.Name() == "AtomicAdd" || f.Name() == "AtomicMax")
}

// as lowers an expression as a value of a type, which decides what constants are.
func (l *lowering) as(e ast.Expr, t types.Type) *Expr {
	if v := l.Info.Types[e].Value; v != nil {
		return l.constant(e, v, l.subst(t))
	}
	x := l.expr(e)
	if x.Op == Nil {
		x.Type = l.subst(t)
	}
	return x
}

// last is as for the last operand of a statement: a call may have its effect there.
func (l *lowering) last(e ast.Expr, t types.Type) *Expr {
	if l.Info.Types[e].Value == nil {
		if c, ok := ast.Unparen(e).(*ast.CallExpr); ok {
			return l.call(c)
		}
	}
	return l.as(e, t)
}

func (l *lowering) constant(e ast.Expr, v constant.Value, t types.Type) *Expr {
	if b, ok := t.Underlying().(*types.Basic); !ok || b.Info()&(types.IsNumeric|types.IsBoolean) == 0 {
		l.Refuse(e.Pos(), "a kernel cannot have a constant of type %s", l.inPackage(t))
	}
	if SmallFloat(t) {
		l.Refuse(e.Pos(), "a kernel cannot have a constant of type %s: call spmd.To%s", l.inPackage(t), TypeName(t))
	}
	return &Expr{Op: Const, Type: t, At: e.Pos(), Value: v}
}

func (l *lowering) expr(e ast.Expr) *Expr {
	if tv := l.Info.Types[e]; tv.Value != nil {
		return l.constant(e, tv.Value, types.Default(l.typeOf(e)))
	}
	x := &Expr{At: e.Pos()}
	if _, tuple := l.Info.TypeOf(e).(*types.Tuple); !tuple && l.Info.TypeOf(e) != nil {
		x.Type = l.typeOf(e)
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return l.expr(e.X)
	case *ast.Ident:
		return l.ident(e)
	case *ast.BinaryExpr:
		return l.binary(e)
	case *ast.UnaryExpr:
		return l.unary(e)
	case *ast.StarExpr:
		x.Op, x.Args = Deref, []*Expr{l.expr(e.X)}
	case *ast.IndexExpr:
		x.Op = Index
		x.Args = l.operands(0, func() *Expr { return l.indexed(e) }, func() *Expr { return l.index(e.Index) })
	case *ast.SliceExpr:
		l.slice(e, x)
	case *ast.SelectorExpr:
		sel := l.Info.Selections[e]
		if sel == nil || sel.Kind() != types.FieldVal {
			l.Refuse(e.Pos(), "a kernel cannot use %s here", types.ExprString(e))
		}
		of := l.expr(e.X)
		l.Allow(e.Pos(), of.Type)
		x.Op, x.Name, x.Args = Field, e.Sel.Name, []*Expr{behind(of)}
	case *ast.CompositeLit:
		l.literal(e, x)
	case *ast.CallExpr:
		c := l.call(e)
		switch {
		case c.Op == Call && len(c.Fn.Results) != 1 || c.Type == nil:
			l.Refuse(e.Pos(), "a kernel cannot use %s as a value", types.ExprString(e))
		case c.effect():
			return l.keep("result", c)
		}
		return c
	default:
		l.Refuse(e.Pos(), "a kernel cannot have %s", what(e))
	}
	return x
}

// behind is what a pointer points to, or any other value itself.
func behind(x *Expr) *Expr {
	if p, ok := x.Type.Underlying().(*types.Pointer); ok {
		return &Expr{Op: Deref, Type: p.Elem(), At: x.At, Args: []*Expr{x}}
	}
	return x
}

// place lowers what stands left of an assignment.
func (l *lowering) place(e ast.Expr) *Expr {
	x := l.expr(e)
	for b := x; ; b = b.Args[0] {
		switch b.Op {
		case Local, Deref:
			return x
		case Index:
			if _, ok := b.Args[0].Type.Underlying().(*types.Slice); ok {
				return x
			}
		case Field:
		default:
			l.Refuse(e.Pos(), "a kernel cannot assign to %s", types.ExprString(e))
		}
	}
}

func (l *lowering) ident(e *ast.Ident) *Expr {
	switch o := l.Info.ObjectOf(e).(type) {
	case *types.Var:
		if v := l.vars[o]; v != nil {
			x := local(v)
			x.At = e.Pos()
			return x
		}
		if o.Parent() == l.Pkg.Scope() || o.Pkg() != l.Pkg {
			l.Refuse(e.Pos(), "a kernel cannot use the variable %s: give it as an argument, or make it a constant",
				e.Name)
		}
	case *types.Nil:
		return &Expr{Op: Nil, Type: types.Typ[types.UntypedNil], At: e.Pos()}
	}
	l.Refuse(e.Pos(), "a kernel cannot use %s here", e.Name)
	return nil
}

// comparable refuses types whose values == does not compare in C++.
func (l *lowering) comparable(at token.Pos, t types.Type) {
	switch t.Underlying().(type) {
	case *types.Basic, *types.Pointer:
	default:
		l.Refuse(at, "a kernel cannot compare values of type %s: compare their parts", l.inPackage(t))
	}
}

// arithmetic refuses operators that a type has not.
func (l *lowering) arithmetic(at token.Pos, t types.Type, tok token.Token) {
	if SmallFloat(t) {
		l.Refuse(at, "a kernel cannot compute with %s: it is for storage; convert it with Float32", l.inPackage(t))
	}
	b, ok := t.Underlying().(*types.Basic)
	if !ok || b.Info()&types.IsNumeric == 0 || b.Kind() == types.Uintptr {
		l.Refuse(at, "a kernel cannot have %s of %s", tok, l.inPackage(t))
	}
}

// either lowers x && y or x || y: y is evaluated if x does not decide.
func (l *lowering) either(tok token.Token, x *Expr, y func() *Expr, at token.Pos) *Expr {
	var b *Expr
	then := l.block(func() { b = y() })
	if len(then) == 0 {
		return &Expr{Op: Binary, Type: x.Type, At: at, Tok: tok, Args: []*Expr{x, b}}
	}
	v := l.temporary("both", types.Typ[types.Bool], at)
	l.declare(v, x)
	v.Sets++
	c := local(v)
	if tok == token.LOR {
		c = &Expr{Op: Unary, Type: c.Type, At: at, Tok: token.NOT, Args: []*Expr{c}}
	}
	l.emit(&Stmt{Kind: If, At: at, X: c, Body: append(then, &Stmt{Kind: Assign, At: at, To: local(v), X: b})})
	return local(v)
}

func (l *lowering) binary(e *ast.BinaryExpr) *Expr {
	t := l.typeOf(e)
	x := &Expr{Op: Binary, Type: t, At: e.Pos(), Tok: e.Op}
	count := t
	switch e.Op {
	case token.LAND, token.LOR:
		return l.either(e.Op, l.expr(e.X), func() *Expr { return l.expr(e.Y) }, e.Pos())
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		t = l.typeOf(e.X)
		if b, ok := t.(*types.Basic); ok && b.Info()&types.IsUntyped != 0 {
			t = l.typeOf(e.Y)
		}
		t = types.Default(t)
		l.comparable(e.Pos(), t)
		if b, ok := t.Underlying().(*types.Basic); ok && b.Kind() == types.UntypedNil {
			l.Refuse(e.Pos(), "a kernel cannot compare nil")
		}
		count = t
		if SmallFloat(t) && e.Op != token.EQL && e.Op != token.NEQ {
			l.Refuse(e.Pos(), "a kernel cannot have %s of %s", e.Op, l.inPackage(t))
		}
	case token.SHL, token.SHR:
		l.arithmetic(e.Pos(), t, e.Op)
		count = types.Default(l.typeOf(e.Y))
		if b, ok := count.Underlying().(*types.Basic); ok && b.Info()&types.IsInteger == 0 {
			count = types.Typ[types.Uint]
		}
	default:
		l.arithmetic(e.Pos(), t, e.Op)
	}
	x.Args = l.operands(0, func() *Expr { return l.as(e.X, t) }, func() *Expr { return l.as(e.Y, count) })
	return x
}

func (l *lowering) unary(e *ast.UnaryExpr) *Expr {
	x := &Expr{Op: Unary, Type: l.typeOf(e), At: e.Pos(), Tok: e.Op}
	switch e.Op {
	case token.ADD:
		return l.expr(e.X)
	case token.AND:
		if c, ok := ast.Unparen(e.X).(*ast.CompositeLit); ok {
			l.Refuse(c.Pos(), "a kernel cannot allocate: it cannot take the address of a new value")
		}
		return l.address(l.place(e.X), e.Pos())
	case token.NOT:
	case token.SUB, token.XOR:
		l.arithmetic(e.Pos(), x.Type, e.Op)
	default:
		l.Refuse(e.Pos(), "a kernel cannot have the operator %s", e.Op)
	}
	x.Args = []*Expr{l.expr(e.X)}
	return x
}

// address is a pointer to a place.
func (l *lowering) address(x *Expr, at token.Pos) *Expr {
	t := types.NewPointer(x.Type)
	l.Allow(at, t)
	return &Expr{Op: Address, Type: t, At: at, Args: []*Expr{x}}
}

// indexed lowers what is indexed: a slice, an array, or the array behind a pointer.
func (l *lowering) indexed(e *ast.IndexExpr) *Expr {
	x := l.expr(e.X)
	if x.Type != nil {
		x = behind(x)
		switch x.Type.Underlying().(type) {
		case *types.Slice:
			return x
		case *types.Array:
			if x.Op == Call || x.Op == Literal || x.Op == Convert {
				return l.keep("array", x)
			}
			return x
		}
	}
	l.Refuse(e.Pos(), "a kernel cannot index %s", l.inPackage(x.Type))
	return nil
}

func (l *lowering) index(e ast.Expr) *Expr {
	t := types.Default(l.typeOf(e))
	if b, ok := t.Underlying().(*types.Basic); !ok || b.Info()&types.IsInteger == 0 {
		t = types.Typ[types.Int]
	}
	return l.as(e, t)
}

func (l *lowering) slice(e *ast.SliceExpr, x *Expr) {
	if e.Slice3 {
		l.Refuse(e.Pos(), "a kernel cannot have a slice's capacity: write x[a:b]")
	}
	t := l.typeOf(e.X)
	if _, ok := t.Underlying().(*types.Slice); !ok {
		l.Refuse(e.Pos(), "a kernel cannot slice %s: slices it can", l.inPackage(t))
	}
	todo := []func() *Expr{func() *Expr { return l.expr(e.X) }}
	for _, bound := range []ast.Expr{e.Low, e.High} {
		if bound != nil {
			todo = append(todo, func() *Expr { return l.index(bound) })
		}
	}
	got := l.operands(0, todo...)
	low := &Expr{Op: Const, Type: types.Typ[types.Int], At: e.Pos(), Value: constant.MakeInt64(0)}
	if e.Low != nil {
		low = got[1]
	}
	if e.High == nil {
		if got[0].calls() { // which is written once more
			got[0] = l.keep("whole", got[0])
		}
		got = append(got, &Expr{Op: Len, Type: types.Typ[types.Int], At: e.Pos(), Args: []*Expr{got[0]}})
	}
	x.Op, x.Args = Slice, []*Expr{got[0], low, got[len(got)-1]}
}

func (l *lowering) literal(e *ast.CompositeLit, x *Expr) {
	var place []int // of each element
	var of []types.Type
	var n int
	l.Allow(e.Pos(), x.Type)
	switch t := x.Type.Underlying().(type) {
	case *types.Struct:
		n = t.NumFields()
		for i, el := range e.Elts {
			if kv, ok := el.(*ast.KeyValueExpr); ok {
				for i = 0; t.Field(i).Name() != kv.Key.(*ast.Ident).Name; i++ {
				}
			}
			place, of = append(place, i), append(of, t.Field(i).Type())
		}
	case *types.Array:
		n = int(t.Len())
		at := 0
		for _, el := range e.Elts {
			if kv, ok := el.(*ast.KeyValueExpr); ok {
				k, _ := constant.Int64Val(l.Info.Types[kv.Key].Value)
				at = int(k)
			}
			place, of = append(place, at), append(of, t.Elem())
			at++
		}
	default:
		l.Refuse(e.Pos(), "a kernel cannot allocate: it cannot have a literal of %s", l.inPackage(x.Type))
	}
	var todo []func() *Expr
	for i, el := range e.Elts {
		if kv, ok := el.(*ast.KeyValueExpr); ok {
			el = kv.Value
		}
		todo = append(todo, func() *Expr { return l.as(el, of[i]) })
	}
	x.Op, x.Args = Literal, make([]*Expr, n)
	for i, v := range l.operands(0, todo...) {
		x.Args[place[i]] = v
	}
}
