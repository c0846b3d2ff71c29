package ir

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"lockstep/internal/source"
)

// lowering makes the normal form of one function.
type lowering struct {
	*Unit
	fn      *Function
	params  *types.TypeParamList
	vars    map[types.Object]*Var
	all     []*Var
	out     *[]*Stmt
	scope   *scope
	targets []target // the statements around, innermost last
	label   string   // of the next statement
	results []*Var   // if they have names
	order   []open
}

// target is a statement that break or continue may mean.
type target struct {
	stmt  *Stmt
	label string
	loop  bool
}

// open is an order that Go leaves open: what a tree reads, and statements behind it in the source.
type open struct {
	reads *Expr
	place bool // only what leads to it is read
	by    []*Stmt
}

// Translate returns the normal form of an instance of a function of the package.
func (u *Unit) Translate(at token.Pos, f *types.Func, args []types.Type) *Function {
	key := instance{f, fmt.Sprint(args)}
	if done, ok := u.funcs[key]; ok {
		return done
	}
	if slices.Contains(u.working, f) {
		u.Refuse(at, "a kernel cannot call %s in %s: GPUs have no stack for recursion", f.Name(), f.Name())
	}
	name := f.Name()
	if recv := f.Signature().Recv(); recv != nil {
		name = TypeName(recv.Type()) + "." + name
	}
	d, ok := u.Decls[name].Node.(*ast.FuncDecl)
	if !ok || d.Body == nil {
		u.Refuse(at, "a kernel cannot call %s: it has no body in Go", f.Name())
	}
	if RowsOf(d) > 0 && len(u.working) > 0 {
		u.Refuse(at, "a kernel cannot call %s: it is a kernel of rows", f.Name())
	}
	if r := u.Failure(d); r != nil {
		panic(r)
	}
	u.used[name] = true
	u.use(d)
	u.working = append(u.working, f)
	l := &lowering{Unit: u, fn: &Function{Of: f, Args: args, Row: RowsOf(d)}, vars: map[types.Object]*Var{},
		params: f.Signature().TypeParams(), scope: &scope{}}
	l.function(d, f.Signature())
	u.working = u.working[:len(u.working)-1]
	u.funcs[key] = l.fn
	u.Order = append(u.Order, l.fn)
	return l.fn
}

// variable makes a variable of Go.
func (l *lowering) variable(o *types.Var) *Var {
	l.Allow(o.Pos(), l.subst(o.Type()))
	v := &Var{Name: o.Name(), Type: l.subst(o.Type()), At: o.Pos(), Go: true, Param: -1, scope: l.scope}
	l.vars[o], l.all = v, append(l.all, v)
	return v
}

// temporary makes a variable that Go has not.
func (l *lowering) temporary(name string, t types.Type, at token.Pos) *Var {
	v := &Var{Name: name, Type: t, At: at, Param: -1, scope: l.scope}
	l.all = append(l.all, v)
	return v
}

func local(v *Var) *Expr { return &Expr{Op: Local, Type: v.Type, At: v.At, V: v} }

func (l *lowering) emit(s *Stmt) *Stmt {
	*l.out = append(*l.out, s)
	return s
}

// declare emits the declaration of a variable with a value, or zero.
func (l *lowering) declare(v *Var, x *Expr) {
	v.Init = x
	l.emit(&Stmt{Kind: Declare, At: v.At, V: v, X: x})
}

// keep emits a temporary with a value.
func (l *lowering) keep(name string, x *Expr) *Expr {
	v := l.temporary(name, x.Type, x.At)
	l.declare(v, x)
	return local(v)
}

// refer emits a temporary that stands for a place.
func (l *lowering) refer(place *Expr, at token.Pos) *Expr {
	v := l.temporary("place", place.Type, at)
	v.Ref = place
	l.emit(&Stmt{Kind: Refer, At: at, V: v, To: place})
	return local(v)
}

// block lowers statements into a list of their own, in a scope of their own.
func (l *lowering) block(f func()) (list []*Stmt) {
	out, outer := l.out, l.scope
	l.out, l.scope = &list, &scope{outer}
	f()
	l.out, l.scope = out, outer
	return list
}

func (l *lowering) function(d *ast.FuncDecl, sig *types.Signature) {
	if sig.Variadic() {
		l.Refuse(d.Pos(), "a kernel cannot call %s: it takes any number of arguments", l.fn.Of.Name())
	}
	add := func(o *types.Var) {
		v := l.variable(o)
		v.Param = len(l.fn.Params)
		l.fn.Params = append(l.fn.Params, v)
	}
	if sig.Recv() != nil {
		add(sig.Recv())
	}
	for o := range sig.Params().Variables() {
		add(o)
	}
	l.fn.Body = l.block(func() {
		for r := range sig.Results().Variables() {
			l.Allow(r.Pos(), l.subst(r.Type()))
			l.fn.Results = append(l.fn.Results, l.subst(r.Type()))
			if r.Name() != "" {
				v := l.variable(r)
				if r.Name() == "_" {
					v.Name = "blank"
					v.Go = false
				}
				l.results = append(l.results, v)
				l.declare(v, nil)
			}
		}
		if n := len(l.fn.Results); n > 3 {
			l.Refuse(d.Pos(), "a kernel cannot call %s: it has %d results, at most 3", l.fn.Of.Name(), n)
		}
		l.stmts(d.Body.List)
	})
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			l.fn.Loops = true
		}
		l.fn.Size++
		return true
	})
	l.analyse()
	if l.fn.Row > 0 {
		words, _ := source.Directive(d)
		l.fn.Unset = slices.Contains(words, UnsetWord)
		l.rows()
	} else {
		l.owned(d, sig)
	}
}

func (l *lowering) stmts(list []ast.Stmt) {
	for _, s := range list {
		l.stmt(s)
	}
}

func (l *lowering) stmt(s ast.Stmt) {
	switch s := s.(type) {
	case *ast.EmptyStmt:
	case *ast.BlockStmt:
		l.emit(&Stmt{Kind: Block, At: s.Pos(), Body: l.block(func() { l.stmts(s.List) })})
	case *ast.ExprStmt:
		l.emit(&Stmt{Kind: Do, At: s.Pos(), X: l.call(s.X)})
	case *ast.DeclStmt:
		l.declaration(s.Decl.(*ast.GenDecl))
	case *ast.AssignStmt:
		l.assign(s)
	case *ast.IncDecStmt:
		tok := token.ADD
		if s.Tok == token.DEC {
			tok = token.SUB
		}
		t := l.typeOf(s.X)
		l.update(s.X, tok, func() *Expr { return &Expr{Op: Const, Type: t, At: s.Pos(), Value: constant.MakeInt64(1)} },
			s.Pos())
	case *ast.ReturnStmt:
		l.ret(s)
	case *ast.IfStmt:
		l.ifStmt(s)
	case *ast.ForStmt:
		l.forStmt(s)
	case *ast.RangeStmt:
		l.rangeStmt(s)
	case *ast.SwitchStmt:
		l.switchStmt(s)
	case *ast.LabeledStmt:
		l.label = s.Label.Name
		l.stmt(s.Stmt)
		l.label = ""
	case *ast.BranchStmt:
		l.branch(s)
	default:
		l.Refuse(s.Pos(), "a kernel cannot have %s: GPUs run if, for, range over integers and slices, and switch",
			what(s))
	}
}

// what names a statement or expression without a translation.
func what(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "a go statement"
	case *ast.DeferStmt:
		return "a defer statement"
	case *ast.SelectStmt, *ast.SendStmt:
		return "channels"
	case *ast.TypeSwitchStmt, *ast.TypeAssertExpr:
		return "interfaces"
	case *ast.FuncLit:
		return "a function literal"
	case *ast.BasicLit:
		return "the value " + n.Value
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", n), "*ast.")
}

func (l *lowering) declaration(d *ast.GenDecl) {
	switch d.Tok {
	case token.CONST: // every use of one is its value
		return
	case token.TYPE:
		l.Refuse(d.Pos(), "a kernel cannot declare a type: declare it outside of the function")
	}
	for _, spec := range d.Specs {
		spec := spec.(*ast.ValueSpec)
		names := make([]ast.Expr, len(spec.Names))
		for i, n := range spec.Names {
			names[i] = n
		}
		if len(spec.Values) > 0 {
			l.set(names, spec.Values, spec.Pos())
			continue
		}
		for _, n := range spec.Names {
			if n.Name != "_" {
				l.declare(l.variable(l.Info.Defs[n].(*types.Var)), nil)
			}
		}
	}
}

// defines returns the variable that an operand left of an assignment declares, or nil.
func (l *lowering) defines(e ast.Expr) *types.Var {
	if id, ok := e.(*ast.Ident); ok && id.Name != "_" {
		if o, ok := l.Info.Defs[id].(*types.Var); ok {
			return o
		}
	}
	return nil
}

func blank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// store emits the assignment to one operand, whose place is known unless it declares or is blank.
func (l *lowering) store(e ast.Expr, place, x *Expr) {
	switch o := l.defines(e); {
	case blank(e):
		l.emit(&Stmt{Kind: Do, At: e.Pos(), X: x})
	case o != nil:
		l.declare(l.variable(o), x)
	default:
		l.emit(&Stmt{Kind: Assign, At: e.Pos(), To: place, X: x})
	}
}

// wanted is the type that a value is to have.
func (l *lowering) wanted(e ast.Expr, value ast.Expr) types.Type {
	if o := l.defines(e); o != nil {
		return l.subst(o.Type())
	}
	if blank(e) {
		return types.Default(l.typeOf(value))
	}
	return l.typeOf(e)
}

// set emits an assignment or a declaration with values. Operands and values are evaluated before
// anything is assigned.
func (l *lowering) set(to, values []ast.Expr, at token.Pos) {
	var todo []func() *Expr
	places := make([]*Expr, len(to))
	var where []int
	for i, e := range to {
		if l.defines(e) == nil && !blank(e) {
			where = append(where, i)
			todo = append(todo, func() *Expr { return l.place(e) })
		}
	}
	fixed := len(todo)
	switch {
	case len(values) == 1 && len(to) > 1:
		todo = append(todo, func() *Expr { return l.call(values[0]) })
	case len(to) == 1:
		todo = append(todo, func() *Expr { return l.last(values[0], l.wanted(to[0], values[0])) })
	default:
		for i, v := range values {
			todo = append(todo, func() *Expr { return l.as(v, l.wanted(to[i], v)) })
		}
	}
	got := l.operands(fixed, todo...)
	for k, i := range where {
		places[i] = got[k]
	}
	got = got[fixed:]
	if len(to) == 1 {
		if len(where) > 0 && got[0].effect() {
			l.order = append(l.order, open{places[0], true, []*Stmt{{Kind: Do, X: got[0]}}})
		}
		l.store(to[0], places[0], got[0])
		return
	}
	parts := make([]*Expr, len(to))
	if len(values) == 1 {
		tuple, ok := l.Info.TypeOf(values[0]).(*types.Tuple)
		if !ok || got[0].Op != Call && got[0].Op != Library {
			l.Refuse(at, "a kernel cannot have %s with two results", types.ExprString(values[0]))
		}
		for _, i := range where {
			l.order = append(l.order, open{places[i], true, []*Stmt{{Kind: Do, X: got[0]}}})
		}
		v := l.temporary("results", nil, at)
		l.declare(v, got[0])
		for i := range parts {
			parts[i] = &Expr{Op: Part, Type: l.subst(tuple.At(i).Type()), At: at, V: v, Index: i}
		}
	} else {
		for i, x := range got {
			if blank(to[i]) {
				l.emit(&Stmt{Kind: Do, At: at, X: x})
				continue
			}
			x.Type = l.wanted(to[i], values[i])
			if parts[i] = x; len(where) > 0 {
				parts[i] = l.keep("value", x)
			}
		}
	}
	for _, i := range where {
		if places[i].Op != Local {
			places[i] = l.refer(places[i], at)
		}
	}
	for i, e := range to {
		if !blank(e) {
			l.store(e, places[i], parts[i])
		}
		if o := l.defines(e); o != nil {
			l.vars[o].Others = true
		}
	}
}

func (l *lowering) assign(s *ast.AssignStmt) {
	if s.Tok == token.ASSIGN || s.Tok == token.DEFINE {
		l.set(s.Lhs, s.Rhs, s.Pos())
		return
	}
	tok := s.Tok - token.ADD_ASSIGN + token.ADD
	if s.Tok == token.AND_NOT_ASSIGN {
		tok = token.AND_NOT
	}
	t := l.typeOf(s.Lhs[0])
	if tok == token.SHL || tok == token.SHR {
		t = types.Default(l.typeOf(s.Rhs[0]))
	}
	l.update(s.Lhs[0], tok, func() *Expr { return l.as(s.Rhs[0], t) }, s.Pos())
}

// update emits x = x op y.
func (l *lowering) update(x ast.Expr, tok token.Token, y func() *Expr, at token.Pos) {
	l.arithmetic(at, l.typeOf(x), tok)
	from := len(l.order)
	got := l.operands(1, func() *Expr { return l.place(x) }, y)
	for _, o := range l.order[from:] { // the place itself is read, too
		if o.place {
			o.place = false
			l.order = append(l.order, o)
		}
	}
	l.emit(&Stmt{Kind: Update, At: at, To: got[0], Tok: tok, X: got[1]})
}

func (l *lowering) ret(s *ast.ReturnStmt) {
	r := &Stmt{Kind: Return, At: s.Pos()}
	switch {
	case len(s.Results) == 0:
		for _, v := range l.results {
			r.Args = append(r.Args, local(v))
		}
	case len(s.Results) == 1 && len(l.fn.Results) > 1:
		r.Args = []*Expr{l.call(s.Results[0])}
	case len(s.Results) == 1:
		r.Args = []*Expr{l.last(s.Results[0], l.fn.Results[0])}
	default:
		var todo []func() *Expr
		for i, e := range s.Results {
			todo = append(todo, func() *Expr { return l.as(e, l.fn.Results[i]) })
		}
		r.Args = l.operands(0, todo...)
	}
	l.emit(r)
}
