package cpp

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"strings"
)

// accesses are what statements of a kernel of rows read and write: by parameter (an int), or by
// shared array. The value is the slice whose elements a loop uses only at its own index, or nil for
// any other access.
type accesses struct{ reads, writes map[any]types.Object }

// The write of an access.
const reads, writes = false, true

func (a *accesses) add(root any, via types.Object, write bool) {
	set := &a.reads
	if write {
		set = &a.writes
	}
	if *set == nil {
		*set = map[any]types.Object{}
	}
	if old, ok := (*set)[root]; ok && old != via {
		via = nil
	}
	(*set)[root] = via
}

func (a *accesses) join(b accesses) {
	for root, via := range b.reads {
		a.add(root, via, reads)
	}
	for root, via := range b.writes {
		a.add(root, via, writes)
	}
}

// conflict reports whether b, behind a, uses what a wrote or writes what a used.
func (a *accesses) conflict(b accesses) bool {
	meets := func(x, y map[any]types.Object) bool {
		for root, via := range x {
			if other, ok := y[root]; ok && (via == nil || via != other) {
				return true
			}
		}
		return false
	}
	return meets(a.writes, b.reads) || meets(a.writes, b.writes) || meets(a.reads, b.writes)
}

// scan collects the accesses to memory of a part of the function.
func (w *writer) scan(nodes ...ast.Node) (a accesses) {
	var in *elements
	note := func(e ast.Expr, write bool) {
		base := e
		for {
			switch x := base.(type) {
			case *ast.ParenExpr:
				base = x.X
				continue
			case *ast.IndexExpr:
				base = x.X
				continue
			case *ast.SelectorExpr:
				base = x.X
				continue
			case *ast.StarExpr:
				base = x.X
				continue
			case *ast.UnaryExpr:
				base = x.X
				continue
			case *ast.SliceExpr:
				base = x.X
				continue
			}
			break
		}
		id, ok := base.(*ast.Ident)
		if !ok {
			return
		}
		v := w.Info.ObjectOf(id)
		if w.rows.arrays[v] == shared {
			a.add(v, nil, write)
			return
		}
		var via types.Object
		if i, ok := e.(*ast.IndexExpr); ok && in != nil && in.own[v] != nil && i.X == base {
			via = v
		}
		for _, p := range w.roots[v] {
			a.add(p, via, write)
		}
	}
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if e := w.rows.loops[n]; e != nil {
				ast.Inspect(n.X, visit)
				in = e
				if id, ok := n.X.(*ast.Ident); ok && n.Value != nil {
					note(&ast.IndexExpr{X: id}, reads)
				}
				ast.Inspect(n.Body, visit)
				in = nil
				return false
			}
		case *ast.AssignStmt:
			for _, l := range n.Lhs {
				if w.memory(l) {
					note(l, writes)
				}
			}
		case *ast.IncDecStmt:
			if w.memory(n.X) {
				note(n.X, writes)
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				note(n.X, writes)
			}
		case *ast.IndexExpr, *ast.StarExpr:
			if e := n.(ast.Expr); w.memory(e) {
				note(e, reads)
			}
		case *ast.SelectorExpr:
			if w.Info.Selections[n] != nil && w.memory(n) {
				note(n, reads)
			}
		case *ast.CallExpr:
			if tv := w.Info.Types[n.Fun]; !tv.IsType() && !tv.IsBuiltin() {
				for _, arg := range n.Args {
					switch w.typeOf(arg).Underlying().(type) {
					case *types.Slice, *types.Pointer:
						note(arg, reads)
						note(arg, writes)
					}
				}
			}
		}
		return true
	}
	for _, n := range nodes {
		ast.Inspect(n, visit)
	}
	return a
}

// memory reports whether an expression lies in memory that threads share.
func (w *writer) memory(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.ParenExpr:
		return w.memory(x.X)
	case *ast.StarExpr:
		return true
	case *ast.SelectorExpr:
		if _, ok := w.typeOf(x.X).Underlying().(*types.Pointer); ok {
			return true
		}
		return w.memory(x.X)
	case *ast.IndexExpr:
		if _, ok := w.typeOf(x.X).Underlying().(*types.Array); !ok {
			return true
		}
		return w.memory(x.X)
	case *ast.Ident:
		return w.rows.arrays[w.Info.ObjectOf(x)] == shared
	}
	return false
}

// settle writes a barrier before accesses that need it, and counts these.
func (w *writer) settle(a accesses) {
	r := w.rows
	touched := len(r.since.writes) > 0 && len(a.reads)+len(a.writes) > 0 || len(a.writes) > 0 && len(r.since.reads) > 0
	switch {
	case r.since.conflict(a):
		w.line("spmd::meet<%d>();", r.threads)
		r.since = accesses{}
	case touched:
		w.line("spmd::meet_any<%d, I>();", r.threads)
	}
	r.since.join(a)
}

// aside writes something into a text of its own.
func (w *writer) aside(write func()) string {
	saved := w.text
	w.text = &strings.Builder{}
	write()
	text := w.text.String()
	w.text = saved
	return text
}

// together writes a statement outside of the loops over elements, which every thread runs. It
// returns false if the statement is written as in other kernels.
func (w *writer) together(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.RangeStmt:
		text := w.aside(func() { w.elements(s) })
		w.settle(w.scan(s))
		w.text.WriteString(text)
		if len(w.rows.loops[s].result) > 0 {
			w.rows.since = accesses{}
		}
	case *ast.DeclStmt:
		w.byOne(s, allThreads, func() { w.declaration(s.Decl.(*ast.GenDecl)) })
	case *ast.AssignStmt:
		inMemory := 0
		for _, l := range s.Lhs {
			if w.memory(l) {
				inMemory++
			}
		}
		if inMemory > 0 && inMemory < len(s.Lhs) {
			w.Refuse(s.Pos(), "a kernel of rows cannot set variables and memory at once: write two statements")
		}
		w.byOne(s, inMemory > 0, func() { w.assign(s) })
	case *ast.IncDecStmt:
		op := token.ADD
		if s.Tok == token.DEC {
			op = token.SUB
		}
		w.byOne(s, w.memory(s.X), func() { w.update(s.X, op, "1", s.Pos()) })
	case *ast.ExprStmt:
		w.byOne(s, oneThread, func() { w.line("%s;", w.expr(s.X)) })
	case *ast.IfStmt:
		w.compound(s, func() { w.ifStmt(s, "") }, s.Cond)
	case *ast.SwitchStmt:
		var heads []ast.Node
		for _, c := range s.Body.List {
			for _, e := range c.(*ast.CaseClause).List {
				heads = append(heads, e)
			}
		}
		if s.Tag != nil {
			heads = append(heads, s.Tag)
		}
		w.compound(s, func() { w.switchStmt(s) }, heads...)
	case *ast.ForStmt:
		label, since := w.label, w.rows.since
		w.aside(func() { w.forStmt(s) }) // which finds where its slices lie
		w.label, w.rows.since = label, since
		w.rows.meets[s] = len(w.scan(s).writes) > 0
		var heads []ast.Node
		if s.Cond != nil {
			heads = append(heads, s.Cond)
		}
		w.compound(s, func() { w.forStmt(s) }, heads...)
	default:
		return false
	}
	return true
}

// The one of byOne.
const allThreads, oneThread = false, true

// byOne writes a statement that one thread runs for all, or that all run.
func (w *writer) byOne(s ast.Stmt, one bool, write func()) {
	if one {
		w.depth++
	}
	text := w.aside(write)
	if one {
		w.depth--
	}
	w.settle(w.scan(s))
	if one {
		w.line("if (spmd::leads<%d>()) {", w.rows.threads)
	}
	w.text.WriteString(text)
	if one {
		w.line("}")
	}
}

// compound writes a statement of statements. All that it may access counts behind it.
func (w *writer) compound(s ast.Stmt, write func(), heads ...ast.Node) {
	before := accesses{maps.Clone(w.rows.since.reads), maps.Clone(w.rows.since.writes)}
	w.rows.since = w.scan(heads...)
	text := w.aside(write)
	all := w.scan(s)
	w.rows.since = before
	w.settle(all)
	w.text.WriteString(text)
}

// apartFromOthers leaves out the slices of a loop that share memory with others that it uses, if
// one is written.
func (w *writer) apartFromOthers(e *elements) {
	a := w.scan(e.stmt)
	for v := range e.own {
		for _, p := range w.roots[v] {
			written, ok := a.writes[p]
			if read, also := a.reads[p]; ok && (written == nil || also && read != written) {
				delete(e.own, v)
			}
		}
	}
}
