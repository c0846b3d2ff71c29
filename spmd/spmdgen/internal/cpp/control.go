package cpp

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// ifStmt writes the statement, behind "} else " if it continues another.
func (w *writer) ifStmt(s *ast.IfStmt, before string) {
	if s.Init != nil {
		w.line("%s{", before)
		w.depth++
		w.stmt(s.Init)
		defer func() {
			w.depth--
			w.line("}")
		}()
		before = ""
	}
	w.line("%sif (%s) {", before, w.expr(s.Cond))
	w.block(s.Body)
	switch e := s.Else.(type) {
	case nil:
		w.line("}")
	case *ast.BlockStmt:
		w.line("} else {")
		w.block(e)
		w.line("}")
	case *ast.IfStmt:
		w.ifStmt(e, "} else ")
	}
}

// The loop of a statement.
const noLoop, aLoop = false, true

// enter begins a statement that break may mean.
func (w *writer) enter(loop bool) *target {
	t := &target{label: w.label, loop: loop}
	w.label = ""
	w.at = append(w.at, t)
	return t
}

// leave ends it, with the labels that branches want.
func (w *writer) leave(t *target) {
	w.at = w.at[:len(w.at)-1]
	if t.onBreak != "" {
		w.line("%s:;", t.onBreak)
	}
}

// body writes the body of a loop, and its end.
func (w *writer) body(t *target, b *ast.BlockStmt) {
	w.depth++
	if w.continues(b, t.label) {
		// continue's target lies outside of the block whose variables it leaves.
		t.onContinue = w.fresh("next")
		w.line("{")
		w.block(b)
		w.line("}")
		w.line("%s:;", t.onContinue)
	} else {
		w.stmts(b.List)
	}
	w.depth--
	w.line("}")
}

// continues reports whether a loop's body has a continue for it out of an inner loop, or a labelled
// one.
func (w *writer) continues(b *ast.BlockStmt, label string) (found bool) {
	if label == "" {
		return false
	}
	ast.Inspect(b, func(n ast.Node) bool {
		if br, ok := n.(*ast.BranchStmt); ok && br.Tok == token.CONTINUE && br.Label != nil && br.Label.Name == label {
			found = true
		}
		return !found
	})
	return found
}

func (w *writer) branch(s *ast.BranchStmt) {
	if s.Tok != token.BREAK && s.Tok != token.CONTINUE {
		w.Refuse(s.Pos(), "a kernel cannot have %s", s.Tok)
	}
	for i := len(w.at) - 1; i >= 0; i-- {
		t := w.at[i]
		other := s.Label != nil && t.label != s.Label.Name || s.Tok == token.CONTINUE && !t.loop
		if t.element && (other || s.Tok == token.BREAK) {
			w.Refuse(s.Pos(), "a kernel of rows cannot leave a loop over elements, which all run at once")
		} else if other {
			continue
		}
		switch {
		case t.element:
			w.line("return;")
		case s.Tok == token.CONTINUE && s.Label != nil:
			w.line("goto %s;", t.onContinue)
		case s.Tok == token.CONTINUE:
			w.line("continue;")
		case i == len(w.at)-1 && t.loop:
			w.line("break;")
		default:
			if t.onBreak == "" {
				t.onBreak = w.fresh("end")
			}
			w.line("goto %s;", t.onBreak)
		}
		return
	}
}

func (w *writer) forStmt(s *ast.ForStmt) {
	t := w.enter(aLoop)
	w.line("{")
	w.depth++
	if s.Init != nil {
		w.stmt(s.Init)
	}
	cond, post := "", ""
	if s.Cond != nil {
		cond = w.expr(s.Cond)
	}
	if s.Post != nil {
		post = w.inline(s.Post)
	}
	w.line("for (; %s; %s) {", cond, post)
	if w.rows != nil && w.rows.meets[s] {
		w.line("\tspmd::meet<%d>();", w.rows.threads)
	}
	w.body(t, s.Body)
	w.depth--
	w.line("}")
	w.leave(t)
}

// inline returns a simple statement as an expression.
func (w *writer) inline(s ast.Stmt) string {
	saved, depth := w.text, w.depth
	w.text, w.depth = &strings.Builder{}, 0
	w.stmt(s)
	text := strings.TrimSuffix(strings.TrimSpace(w.text.String()), ";")
	w.text, w.depth = saved, depth
	if strings.ContainsAny(text, ";{") {
		w.Refuse(s.Pos(), "a kernel cannot have this step of a for statement: write it at the end of the body")
	}
	return text
}

func (w *writer) rangeStmt(s *ast.RangeStmt) {
	t := w.enter(aLoop)
	if s.Tok == token.ASSIGN {
		w.Refuse(s.Pos(), "a kernel cannot range over variables that exist: write :=")
	}
	over := w.typeOf(s.X)
	index := w.fresh("i")
	variable := func(e ast.Expr) types.Object {
		if id, ok := e.(*ast.Ident); ok && id.Name != "_" {
			return w.Info.Defs[id]
		}
		return nil
	}
	key, value := variable(s.Key), variable(s.Value)
	w.line("{")
	w.depth++
	end := w.fresh("n")
	ktype := "int64_t"
	var elem func() string
	switch u := over.Underlying().(type) {
	case *types.Basic:
		if u.Info()&types.IsInteger == 0 {
			w.Refuse(s.Pos(), "a kernel cannot range over %s", types.TypeString(over, types.RelativeTo(w.Pkg)))
		}
		kt := over
		if key != nil {
			kt = w.subst(key.Type())
		}
		ktype = w.CType(s.Pos(), kt)
		w.line("%s %s = %s;", ktype, end, w.as(s.X, kt))
	case *types.Slice:
		x := w.fresh("x")
		w.line("%s %s = %s;", w.CType(s.Pos(), over), x, w.expr(s.X))
		w.line("int64_t %s = %s.n;", end, x)
		elem = func() string { return x + ".p[" + index + "]" }
	case *types.Array:
		w.line("int64_t %s = %d;", end, u.Len())
		if value != nil {
			x := w.fresh("x")
			w.line("%s %s = %s;", w.CType(s.Pos(), over), x, w.expr(s.X)) // a copy, as in Go
			elem = func() string { return x + ".v[" + index + "]" }
		}
	default:
		w.Refuse(s.Pos(), "a kernel cannot range over %s: over integers, slices and arrays it can",
			types.TypeString(over, types.RelativeTo(w.Pkg)))
	}
	w.line("for (%s %s = 0; %s < %s; %s++) {", ktype, index, index, end, index)
	w.depth++
	if key != nil {
		w.line("%s %s = %s;", ktype, w.name(key), index)
	}
	if value != nil {
		w.line("%s = %s;", declare(w.ctypeOf(s.Pos(), value.Type()), w.name(value)), elem())
	}
	w.depth--
	w.body(t, s.Body)
	w.depth--
	w.line("}")
	w.leave(t)
}

func (w *writer) switchStmt(s *ast.SwitchStmt) {
	t := w.enter(noLoop)
	w.line("{")
	w.depth++
	if s.Init != nil {
		w.stmt(s.Init)
	}
	tag := ""
	var of types.Type
	if s.Tag != nil {
		tag, of = w.fresh("tag"), w.typeOf(s.Tag)
		if b, ok := of.(*types.Basic); ok && b.Info()&types.IsUntyped != 0 {
			of = types.Default(of)
		}
		w.line("%s = %s;", declare(w.CType(s.Pos(), of), tag), w.as(s.Tag, of))
	}
	var last *ast.CaseClause
	open := ""
	for _, c := range s.Body.List {
		c := c.(*ast.CaseClause)
		if c.List == nil {
			last = c
			continue
		}
		var tests []string
		for _, e := range c.List {
			if tag == "" {
				tests = append(tests, w.expr(e))
			} else {
				tests = append(tests, fmt.Sprintf("%s == %s", tag, w.as(e, of)))
			}
		}
		w.line("%sif (%s) {", open, strings.Join(tests, " || "))
		w.block(&ast.BlockStmt{List: c.Body})
		open = "} else "
	}
	if last != nil {
		w.line("%s{", open)
		w.block(&ast.BlockStmt{List: last.Body})
		open = "}"
	}
	if open != "" {
		w.line("}")
	}
	w.depth--
	w.line("}")
	w.leave(t)
}
