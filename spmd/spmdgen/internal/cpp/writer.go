package cpp

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// writer translates one function.
type writer struct {
	*Unit
	fn     *Function
	params *types.TypeParamList
	args   []types.Type // for params
	names  map[types.Object]string
	taken  map[string]bool
	count  int // of names that Go has not
	text   *strings.Builder
	depth  int
	// roots lists the parameters on whose memory slices and pointers may lie.
	roots   map[types.Object][]int
	results []types.Object          // if they have names
	once    map[types.Object]bool   // variables that never change
	twins   map[types.Object]string // of them, in the type I
	at      []*target               // the statements around, innermost last
	label   string                  // of the next statement
	rows    *rows                   // of a kernel of rows
}

// target is a statement that break or continue may mean.
type target struct {
	label      string
	loop       bool
	element    bool   // over the elements of a row
	onBreak    string // labels in C++, if they are needed
	onContinue string
}

func (w *writer) line(format string, a ...any) {
	w.text.WriteString(strings.Repeat("\t", w.depth))
	fmt.Fprintf(w.text, format, a...)
	w.text.WriteByte('\n')
}

// subst replaces type parameters by an instance's types.
func (w *writer) subst(t types.Type) types.Type {
	switch t := types.Unalias(t).(type) {
	case *types.TypeParam:
		if w.params != nil {
			for i := range w.params.Len() {
				if w.params.At(i) == t || w.params.At(i).Obj().Name() == t.Obj().Name() {
					return w.args[i]
				}
			}
		}
	case *types.Slice:
		return types.NewSlice(w.subst(t.Elem()))
	case *types.Array:
		return types.NewArray(w.subst(t.Elem()), t.Len())
	case *types.Pointer:
		return types.NewPointer(w.subst(t.Elem()))
	}
	return t
}

func (w *writer) typeOf(e ast.Expr) types.Type {
	t := w.Info.TypeOf(e)
	if t == nil {
		w.Refuse(e.Pos(), "a kernel cannot use %s: its type is not known", types.ExprString(e))
	}
	return w.subst(t)
}

func (w *writer) ctypeOf(at token.Pos, t types.Type) string { return w.CType(at, w.subst(t)) }

// fresh returns an unused name.
func (w *writer) fresh(base string) string {
	for {
		w.count++
		if name := fmt.Sprintf("%s_%d", base, w.count); !w.taken[name] {
			w.taken[name] = true
			return name
		}
	}
}

// name returns the variable of an object, unique in the whole function.
func (w *writer) name(o types.Object) string {
	if n, ok := w.names[o]; ok {
		return n
	}
	n := Safe(o.Name())
	if w.taken[n] {
		n = w.fresh(n)
	}
	w.taken[n] = true
	w.names[o] = n
	return n
}

// function writes the function as a template over the type I of indices.
func (w *writer) function(d *ast.FuncDecl, f *types.Func) {
	sig := f.Signature()
	if threads := RowsOf(d); threads > 0 {
		w.startRows(d, threads)
	} else {
		w.fn.Own = OwnedParameters(w.Info, d, sig)
	}
	var params []string
	template := "typename I"
	add := func(v *types.Var) {
		at := len(w.fn.Written)
		w.roots[v] = []int{at}
		w.fn.Written = append(w.fn.Written, false)
		ctype := w.ctypeOf(v.Pos(), v.Type())
		if w.fn.Own[at] != nil {
			ctype = fmt.Sprintf("S%d_", at)
			template += ", typename " + ctype
		}
		params = append(params, declare(ctype, w.name(v)))
	}
	if recv := sig.Recv(); recv != nil {
		add(recv)
	}
	for i := range sig.Params().Len() {
		add(sig.Params().At(i))
	}
	if sig.Variadic() {
		w.Refuse(d.Pos(), "a kernel cannot call %s: it takes any number of arguments", f.Name())
	}
	result := "void"
	for i := range sig.Results().Len() {
		r := sig.Results().At(i)
		w.fn.Results = append(w.fn.Results, w.subst(r.Type()))
		if r.Name() != "" && r.Name() != "_" {
			w.results = append(w.results, r)
		}
	}
	switch n := len(w.fn.Results); {
	case n == 1:
		result = w.CType(d.Pos(), w.fn.Results[0])
	case n > 1:
		var types []string
		for _, t := range w.fn.Results {
			types = append(types, w.CType(d.Pos(), t))
		}
		result = fmt.Sprintf("spmd::results%d<%s>", n, strings.Join(types, ", "))
		if n > 3 {
			w.Refuse(d.Pos(), "a kernel cannot call %s: it has %d results, at most 3", f.Name(), n)
		}
	}
	head := "SPMD_WHERE"
	if len(params) > 0 {
		head = "SPMD_WHERE_AND "
	}
	w.fn.proto = fmt.Sprintf("template <%s> SPMD_FN %s %s(%s%s)",
		template, result, w.fn.Name, head, strings.Join(params, ", "))
	skips := ""
	if cond := OwnedGuard(w.Info, d, sig, w.fn.Own); cond != nil {
		w.fn.Guarded = true
		skips = fmt.Sprintf("template <%s> SPMD_FN bool %s_skips_(%s%s) {\n\treturn %s;\n}\n",
			template, w.fn.Name, head, strings.Join(params, ", "), w.expr(cond))
	}
	w.depth = 1
	for _, r := range w.results {
		w.line("%s = {};", declare(w.ctypeOf(r.Pos(), r.Type()), w.name(r)))
	}
	w.settled(d.Body)
	w.stmts(d.Body.List)
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			w.fn.Loops = true
		}
		w.fn.Size++
		return true
	})
	w.fn.Text = skips + w.fn.proto + " {\n" + w.text.String() + "}\n"
}

// declare returns the declaration of a variable.
func declare(ctype, name string) string {
	if strings.HasSuffix(ctype, "*") {
		return ctype + name
	}
	return ctype + " " + name
}

// where returns a place in Go, for reports.
func (w *writer) where(at token.Pos) string {
	p := w.Fset.Position(at)
	return fmt.Sprintf("%q", fmt.Sprintf("%s:%d", filepath.Base(p.Filename), p.Line))
}

func (w *writer) stmts(list []ast.Stmt) {
	for _, s := range list {
		w.stmt(s)
	}
}

func (w *writer) block(b *ast.BlockStmt) {
	w.depth++
	w.stmts(b.List)
	w.depth--
}

func (w *writer) stmt(s ast.Stmt) {
	if w.rows != nil && w.rows.in == nil && w.together(s) {
		return
	}
	switch s := s.(type) {
	case *ast.EmptyStmt:
	case *ast.BlockStmt:
		w.line("{")
		w.block(s)
		w.line("}")
	case *ast.ExprStmt:
		w.line("%s;", w.expr(s.X))
	case *ast.DeclStmt:
		w.declaration(s.Decl.(*ast.GenDecl))
	case *ast.AssignStmt:
		w.assign(s)
	case *ast.IncDecStmt:
		op := token.ADD
		if s.Tok == token.DEC {
			op = token.SUB
		}
		w.update(s.X, op, "1", s.Pos())
	case *ast.ReturnStmt:
		w.ret(s)
	case *ast.IfStmt:
		w.ifStmt(s, "")
	case *ast.ForStmt:
		w.forStmt(s)
	case *ast.RangeStmt:
		w.rangeStmt(s)
	case *ast.SwitchStmt:
		w.switchStmt(s)
	case *ast.LabeledStmt:
		w.label = s.Label.Name
		w.stmt(s.Stmt)
	case *ast.BranchStmt:
		w.branch(s)
	default:
		w.Refuse(s.Pos(), "a kernel cannot have %s: GPUs run if, for, range over integers and slices, and switch",
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

func (w *writer) declaration(d *ast.GenDecl) {
	switch d.Tok {
	case token.CONST: // every use of one is its value
		return
	case token.TYPE:
		w.Refuse(d.Pos(), "a kernel cannot declare a type: declare it outside of the function")
	}
	for _, spec := range d.Specs {
		spec := spec.(*ast.ValueSpec)
		if len(spec.Values) == 1 && len(spec.Names) > 1 {
			w.unpack(spec.Values[0], func(i int) (string, bool) {
				if spec.Names[i].Name == "_" {
					return "", false
				}
				o := w.Info.Defs[spec.Names[i]]
				return declare(w.ctypeOf(o.Pos(), o.Type()), w.name(o)), true
			})
			continue
		}
		for i, n := range spec.Names {
			if n.Name == "_" {
				if i < len(spec.Values) {
					w.line("(void)(%s);", w.expr(spec.Values[i]))
				}
				continue
			}
			o := w.Info.Defs[n]
			if first := append(spec.Values, nil)[min(i, len(spec.Values))]; w.array(o, first) {
				continue
			}
			value := "{}"
			if i < len(spec.Values) {
				value = w.as(spec.Values[i], o.Type())
				w.roots[o] = w.rootsOf(spec.Values[i])
			}
			w.line("%s = %s;", declare(w.ctypeOf(o.Pos(), o.Type()), w.name(o)), value)
		}
	}
}

// unpack writes the assignment of a call's results. to returns where one goes.
func (w *writer) unpack(call ast.Expr, to func(i int) (string, bool)) {
	tuple, ok := w.Info.TypeOf(call).(*types.Tuple)
	if !ok {
		w.Refuse(call.Pos(), "a kernel cannot have %s with two results", types.ExprString(call))
	}
	tmp := w.fresh("results")
	w.line("auto %s = %s;", tmp, w.expr(call))
	for i := range tuple.Len() {
		if dst, ok := to(i); ok {
			w.line("%s = %s.r%d;", dst, tmp, i)
		}
	}
}

func (w *writer) assign(s *ast.AssignStmt) {
	switch {
	case s.Tok != token.ASSIGN && s.Tok != token.DEFINE:
		op := s.Tok - token.ADD_ASSIGN + token.ADD
		if s.Tok == token.AND_NOT_ASSIGN {
			op = token.AND_NOT
		}
		if op == token.SHL || op == token.SHR {
			w.update(s.Lhs[0], op, w.shiftCount(s.Rhs[0]), s.Pos())
		} else {
			w.update(s.Lhs[0], op, w.as(s.Rhs[0], w.typeOf(s.Lhs[0])), s.Pos())
		}
	case len(s.Rhs) == 1 && len(s.Lhs) > 1:
		w.unpack(s.Rhs[0], func(i int) (string, bool) { return w.destination(s.Lhs[i], s.Tok == token.DEFINE) })
	case len(s.Lhs) == 1:
		w.assignOne(s.Lhs[0], s.Rhs[0], s.Tok == token.DEFINE)
	default:
		w.assignMany(s)
	}
}

// destination returns what stands left of = for one of several results.
func (w *writer) destination(e ast.Expr, define bool) (string, bool) {
	if id, ok := e.(*ast.Ident); ok {
		if id.Name == "_" {
			return "", false
		}
		if o := w.Info.Defs[id]; define && o != nil {
			return declare(w.ctypeOf(o.Pos(), o.Type()), w.name(o)), true
		}
	}
	w.writes(e)
	return w.expr(e), true
}

func (w *writer) assignOne(l, r ast.Expr, define bool) {
	if id, ok := l.(*ast.Ident); ok {
		if id.Name == "_" {
			w.line("(void)(%s);", w.expr(r))
			return
		}
		if o := w.Info.Defs[id]; define && o != nil {
			w.array(o, r)
			value := w.as(r, o.Type())
			w.roots[o] = w.rootsOf(r)
			w.line("%s = %s;", declare(w.ctypeOf(o.Pos(), o.Type()), w.name(o)), value)
			w.twin(o, r)
			return
		}
		if o := w.Info.Uses[id]; o != nil { // on a later way the variable may be either
			w.roots[o] = append(slices.Clone(w.roots[o]), w.rootsOf(r)...)
		}
	}
	w.writes(l)
	w.line("%s = %s;", w.expr(l), w.as(r, w.typeOf(l)))
}

// assignMany evaluates all operands before the first is assigned.
func (w *writer) assignMany(s *ast.AssignStmt) {
	values := make([]string, len(s.Rhs))
	for i, r := range s.Rhs {
		if id, ok := s.Lhs[i].(*ast.Ident); ok && id.Name == "_" {
			w.line("(void)(%s);", w.expr(r))
			continue
		}
		t := w.typeOf(s.Lhs[i])
		values[i] = w.fresh("value")
		w.line("%s = %s;", declare(w.CType(r.Pos(), t), values[i]), w.as(r, t))
	}
	places := make([]string, len(s.Lhs))
	for i, l := range s.Lhs {
		if values[i] == "" {
			continue
		}
		if id, ok := l.(*ast.Ident); ok {
			if o := w.Info.Defs[id]; o != nil && s.Tok == token.DEFINE {
				w.roots[o] = w.rootsOf(s.Rhs[i])
				places[i] = declare(w.ctypeOf(o.Pos(), o.Type()), w.name(o))
				continue
			}
			if o := w.Info.Uses[id]; o != nil {
				w.roots[o] = append(slices.Clone(w.roots[o]), w.rootsOf(s.Rhs[i])...)
			}
		}
		w.writes(l)
		places[i] = w.fresh("place")
		w.line("auto &%s = %s;", places[i], w.expr(l))
	}
	for i, p := range places {
		if p != "" {
			w.line("%s = %s;", p, values[i])
		}
	}
}

// update writes x = x op y.
func (w *writer) update(x ast.Expr, op token.Token, y string, at token.Pos) {
	w.writes(x)
	t := w.typeOf(x)
	if plain(t, op) {
		w.line("%s %s= %s;", w.expr(x), op, y)
		return
	}
	if _, ok := x.(*ast.Ident); ok {
		w.line("%s = %s;", w.expr(x), w.binary(t, op, w.expr(x), y, at))
		return
	}
	p := w.fresh("place")
	w.line("{ auto &%s = %s; %s = %s; }", p, w.expr(x), p, w.binary(t, op, p, y, at))
}

func (w *writer) ret(s *ast.ReturnStmt) {
	if w.rows != nil && w.rows.in != nil {
		w.Refuse(s.Pos(), "a kernel of rows cannot return from a loop over elements, which all run at once")
	}
	var values []string
	switch {
	case len(s.Results) == 0:
		for _, r := range w.results {
			values = append(values, w.name(r))
		}
	case len(s.Results) == 1 && len(w.fn.Results) > 1:
		values = []string{w.expr(s.Results[0])}
	default:
		for i, r := range s.Results {
			values = append(values, w.as(r, w.fn.Results[i]))
		}
	}
	switch len(values) {
	case 0:
		w.line("return;")
	case 1:
		w.line("return %s;", values[0])
	default:
		w.line("return {%s};", strings.Join(values, ", "))
	}
}
