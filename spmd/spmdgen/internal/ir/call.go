package ir

import (
	"go/ast"
	"go/types"
)

// call lowers a call. One with an effect, or with several results, is a statement's.
func (l *lowering) call(x ast.Expr) *Expr {
	e, ok := ast.Unparen(x).(*ast.CallExpr)
	if !ok {
		l.Refuse(x.Pos(), "a kernel cannot have %s with two results", types.ExprString(x))
	}
	if tv := l.Info.Types[e.Fun]; tv.IsType() {
		return l.conversion(e)
	}
	if e.Ellipsis.IsValid() {
		l.Refuse(e.Pos(), "a kernel cannot pass a slice as any number of arguments")
	}
	fun := ast.Unparen(e.Fun)
	switch f := fun.(type) {
	case *ast.IndexExpr:
		fun = f.X
	case *ast.IndexListExpr:
		fun = f.X
	}
	var id *ast.Ident
	switch f := fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
		if sel := l.Info.Selections[f]; sel != nil {
			return l.method(e, f, sel)
		}
	default:
		l.Refuse(e.Pos(), "a kernel cannot call %s", what(fun))
	}
	switch o := l.Info.Uses[id].(type) {
	case *types.Builtin:
		return l.builtin(e, o.Name())
	case *types.Func:
		if o.Pkg() != l.Pkg {
			return l.library(e, o)
		}
		var args []types.Type
		if inst, ok := l.Info.Instances[id]; ok {
			for t := range inst.TypeArgs.Types() {
				args = append(args, l.subst(t))
			}
		}
		return l.apply(e, l.Translate(e.Pos(), o, args), nil)
	}
	l.Refuse(e.Pos(), "a kernel cannot call %s", types.ExprString(e.Fun))
	return nil
}

// apply lowers the call of a function of the package.
func (l *lowering) apply(e *ast.CallExpr, fn *Function, recv func() *Expr) *Expr {
	l.fn.Loops = l.fn.Loops || fn.Loops
	l.fn.Size += fn.Size
	var todo []func() *Expr
	if recv != nil {
		todo = append(todo, recv)
	}
	if len(e.Args) != len(fn.Params)-len(todo) {
		l.Refuse(e.Pos(), "a kernel cannot give the results of a call as arguments: name them first")
	}
	for i, a := range e.Args {
		t := fn.Params[i+len(fn.Params)-len(e.Args)].Type
		todo = append(todo, func() *Expr { return l.as(a, t) })
	}
	x := &Expr{Op: Call, At: e.Pos(), Fn: fn, Args: l.operands(0, todo...)}
	if len(fn.Results) == 1 {
		x.Type = fn.Results[0]
	}
	return x
}

func (l *lowering) method(e *ast.CallExpr, f *ast.SelectorExpr, sel *types.Selection) *Expr {
	o, ok := sel.Obj().(*types.Func)
	if !ok || sel.Kind() != types.MethodVal {
		l.Refuse(e.Pos(), "a kernel cannot call %s", types.ExprString(e.Fun))
	}
	if SmallFloat(l.typeOf(f.X)) && o.Name() == "Float32" {
		return &Expr{Op: Library, Type: types.Typ[types.Float32], At: e.Pos(), Obj: o, Args: []*Expr{l.expr(f.X)}}
	}
	_, abstract := sel.Recv().Underlying().(*types.Interface)
	if o.Pkg() != l.Pkg || len(sel.Index()) != 1 || abstract || o.Signature().RecvTypeParams().Len() > 0 {
		l.Refuse(e.Pos(), "a kernel cannot call %s: functions of this package, math, math/bits and some of spmd it can",
			types.ExprString(e.Fun))
	}
	_, has := l.typeOf(f.X).Underlying().(*types.Pointer)
	_, wants := o.Signature().Recv().Type().Underlying().(*types.Pointer)
	return l.apply(e, l.Translate(e.Pos(), o, nil), func() *Expr {
		switch {
		case wants && !has:
			return l.address(l.place(f.X), f.Pos())
		case !wants && has:
			return behind(l.expr(f.X))
		}
		return l.expr(f.X)
	})
}

// conversion lowers T(x).
func (l *lowering) conversion(e *ast.CallExpr) *Expr {
	to, x := l.typeOf(e), e.Args[0]
	l.Allow(e.Pos(), to)
	c := &Expr{Op: Convert, Type: to, At: e.Pos()}
	if SmallFloat(to) && !SmallFloat(l.typeOf(x)) {
		l.Refuse(e.Pos(), "a kernel cannot convert to %s: call spmd.To%s", l.inPackage(to), TypeName(to))
	}
	if l.Info.Types[x].Value != nil { // of a type parameter: else it would be a constant
		c.Args = []*Expr{l.as(x, to)}
		return c
	}
	from := l.typeOf(x)
	b, ok := to.Underlying().(*types.Basic)
	b2, ok2 := from.Underlying().(*types.Basic)
	if ok && ok2 && SmallFloat(to) == SmallFloat(from) && (!SmallFloat(to) || types.Identical(to, from)) &&
		b.Info()&types.IsString == 0 && b2.Info()&types.IsString == 0 {
		if SmallFloat(to) {
			return l.expr(x)
		}
		c.Args = []*Expr{l.expr(x)}
		return c
	}
	_, isStruct := to.Underlying().(*types.Struct)
	if ok || ok2 || !types.Identical(to.Underlying(), from.Underlying()) || isStruct && !types.Identical(to, from) {
		l.Refuse(e.Pos(), "a kernel cannot convert %s to %s", l.inPackage(from), l.inPackage(to))
	}
	same := *l.expr(x)
	same.Type = to
	return &same
}

// library lowers a call of a function of another package.
func (l *lowering) library(e *ast.CallExpr, o *types.Func) *Expr {
	sig := o.Signature()
	if !l.has(o) {
		l.Refuse(e.Pos(), "a kernel cannot call %s.%s: functions of this package, and of math, math/bits, "+
			"math/cmplx and spmd such as GPUs have, it can", o.Pkg().Name(), o.Name())
	}
	if sig.Variadic() || len(e.Args) != sig.Params().Len() {
		l.Refuse(e.Pos(), "a kernel cannot give the results of a call as arguments: name them first")
	}
	var todo []func() *Expr
	for i, a := range e.Args {
		t := sig.Params().At(i).Type()
		if _, ok := types.Unalias(t).(*types.TypeParam); ok {
			t = l.typeOf(e.Args[0]) // AtomicAdd's value has the type behind the pointer
			if p, ok := t.Underlying().(*types.Pointer); ok {
				t = p.Elem()
			}
		}
		todo = append(todo, func() *Expr { return l.as(a, t) })
	}
	x := &Expr{Op: Library, At: e.Pos(), Obj: o, Args: l.operands(0, todo...)}
	if sig.Results().Len() == 1 {
		x.Type = l.typeOf(e)
	}
	return x
}

func (l *lowering) builtin(e *ast.CallExpr, name string) *Expr {
	x := &Expr{Op: Builtin, Name: name, At: e.Pos(), Type: l.typeOf(e)}
	of := x.Type
	switch name {
	case "real", "imag":
		of = types.Default(l.typeOf(e.Args[0]))
	case "complex":
		of = types.Typ[types.Float64]
		if b, ok := x.Type.Underlying().(*types.Basic); ok && b.Kind() == types.Complex64 {
			of = types.Typ[types.Float32]
		}
	case "len":
		switch t := l.typeOf(e.Args[0]).Underlying().(type) {
		case *types.Slice:
			return &Expr{Op: Len, Type: x.Type, At: e.Pos(), Args: []*Expr{l.expr(e.Args[0])}}
		case *types.Array: // with a call in it, else it would be a constant
			l.Refuse(e.Pos(), "a kernel cannot call len here: the array has %d elements", t.Len())
		}
		l.Refuse(e.Pos(), "a kernel cannot call len")
	case "min", "max":
		l.Allow(e.Pos(), x.Type)
	case "new", "make", "append":
		l.Refuse(e.Pos(), "a kernel cannot allocate: it cannot call %s", name)
	case "panic":
		l.Refuse(e.Pos(), "a kernel cannot panic: write what it finds wrong to memory")
	default:
		l.Refuse(e.Pos(), "a kernel cannot call %s", name)
	}
	var todo []func() *Expr
	for _, a := range e.Args {
		todo = append(todo, func() *Expr { return l.as(a, of) })
	}
	x.Args = l.operands(0, todo...)
	return x
}
