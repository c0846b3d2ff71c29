package ir

import (
	"go/ast"
	"go/token"
	"go/types"
)

func (l *lowering) ifStmt(s *ast.IfStmt) {
	if s.Init != nil {
		l.emit(&Stmt{Kind: Block, At: s.Pos(), Body: l.block(func() {
			l.stmt(s.Init)
			l.choice(s)
		})})
		return
	}
	l.choice(s)
}

func (l *lowering) choice(s *ast.IfStmt) {
	c := &Stmt{Kind: If, At: s.Pos(), X: l.expr(s.Cond)}
	c.Body = l.block(func() { l.stmts(s.Body.List) })
	if s.Else != nil {
		c.Else = l.block(func() {
			if b, ok := s.Else.(*ast.BlockStmt); ok {
				l.stmts(b.List)
			} else {
				l.stmt(s.Else)
			}
		})
	}
	l.emit(c)
}

// The loop of inside.
const noLoop, aLoop = false, true

// inside lowers what break and continue leave, with the label of the statement.
func (l *lowering) inside(s *Stmt, loop bool, f func()) {
	l.targets = append(l.targets, target{s, l.label, loop})
	l.label = ""
	f()
	l.targets = l.targets[:len(l.targets)-1]
}

func (l *lowering) branch(s *ast.BranchStmt) {
	if s.Tok != token.BREAK && s.Tok != token.CONTINUE {
		l.Refuse(s.Pos(), "a kernel cannot have %s", s.Tok)
	}
	for i := len(l.targets) - 1; i >= 0; i-- {
		t := l.targets[i]
		if s.Label != nil && t.label != s.Label.Name || s.Tok == token.CONTINUE && !t.loop {
			continue
		}
		kind := Break
		if s.Tok == token.CONTINUE {
			kind = Continue
		}
		l.emit(&Stmt{Kind: kind, At: s.Pos(), Of: t.stmt})
		return
	}
	l.Refuse(s.Pos(), "a kernel cannot leave a statement that is no loop and no switch")
}

func (l *lowering) forStmt(s *ast.ForStmt) {
	l.emit(&Stmt{Kind: Block, At: s.Pos(), Body: l.block(func() {
		label := l.label
		l.label = ""
		outer := l.scope
		l.scope = &scope{outer} // each turn has the variables of its own
		from := len(l.all)
		if s.Init != nil {
			l.stmt(s.Init)
		}
		for _, v := range l.all[from:] {
			v.turn = true
		}
		f := &Stmt{Kind: For, At: s.Pos()}
		var before []*Stmt
		if s.Cond != nil {
			before = l.block(func() { f.X = l.expr(s.Cond) })
		}
		l.label = label
		l.inside(f, aLoop, func() { f.Body = l.block(func() { l.stmts(s.Body.List) }) })
		if len(before) > 0 { // the condition has effects
			f.Body = append(append(before, leaveUnless(f)), f.Body...)
		}
		if s.Post != nil {
			f.Post = l.block(func() { l.stmt(s.Post) })
		}
		l.emit(f)
		l.scope = outer
	})})
}

// leaveUnless makes the condition of a loop a statement at the beginning of its turns.
func leaveUnless(f *Stmt) *Stmt {
	x := f.X
	f.X = nil
	return &Stmt{Kind: If, At: f.At, X: &Expr{Op: Unary, Type: types.Typ[types.Bool], At: f.At, Tok: token.NOT,
		Args: []*Expr{x}}, Body: []*Stmt{{Kind: Break, At: f.At, Of: f}}}
}

func (l *lowering) rangeStmt(s *ast.RangeStmt) {
	if s.Tok == token.ASSIGN {
		l.Refuse(s.Pos(), "a kernel cannot range over variables that exist: write :=")
	}
	over := l.typeOf(s.X)
	r := &Stmt{Kind: Range, At: s.Pos()}
	switch t := over.Underlying().(type) {
	case *types.Basic:
		if t.Info()&types.IsInteger == 0 {
			l.Refuse(s.Pos(), "a kernel cannot range over %s", l.inPackage(over))
		}
		if over = types.Default(over); s.Key != nil && !blank(s.Key) {
			over = l.subst(l.Info.Defs[s.Key.(*ast.Ident)].Type())
		}
		r.X = l.as(s.X, over)
	case *types.Slice, *types.Array:
		r.X = l.expr(s.X)
		if l.fn.Row > 0 && r.X.loads() { // each thread would evaluate it
			r.X = l.keep("x", r.X)
		}
	default:
		l.Refuse(s.Pos(), "a kernel cannot range over %s: over integers, slices and arrays it can", l.inPackage(over))
	}
	l.Allow(s.Pos(), over)
	l.inside(r, aLoop, func() {
		r.Body = l.block(func() {
			variable := func(e ast.Expr) *Var {
				if id, ok := e.(*ast.Ident); ok && id.Name != "_" {
					return l.variable(l.Info.Defs[id].(*types.Var))
				}
				return nil
			}
			r.Key, r.V = variable(s.Key), variable(s.Value)
			l.stmts(s.Body.List)
		})
	})
	if r.V != nil {
		r.V.Init = nil
	}
	l.emit(r)
}

func (l *lowering) switchStmt(s *ast.SwitchStmt) {
	b := &Stmt{Kind: Block, At: s.Pos()}
	l.inside(b, noLoop, func() {
		b.Body = l.block(func() {
			if s.Init != nil {
				l.stmt(s.Init)
			}
			var tag *Expr
			if s.Tag != nil {
				t := types.Default(l.typeOf(s.Tag))
				l.comparable(s.Tag.Pos(), t)
				tag = l.keep("tag", l.last(s.Tag, t))
				tag.Type = t
			}
			var cases []*ast.CaseClause
			var last *ast.CaseClause
			for _, c := range s.Body.List {
				if c := c.(*ast.CaseClause); c.List == nil {
					last = c
				} else {
					cases = append(cases, c)
				}
			}
			l.cases(tag, cases, last)
		})
	})
	l.emit(b)
}

// cases emits the clauses of a switch, each in the else of the one before it.
func (l *lowering) cases(tag *Expr, all []*ast.CaseClause, last *ast.CaseClause) {
	if len(all) == 0 {
		if last != nil {
			l.stmts(last.Body)
		}
		return
	}
	test := func(e ast.Expr) *Expr {
		if tag == nil {
			return l.expr(e)
		}
		return &Expr{Op: Binary, Type: types.Typ[types.Bool], At: e.Pos(), Tok: token.EQL,
			Args: []*Expr{tag, l.as(e, tag.Type)}}
	}
	x := test(all[0].List[0])
	for _, e := range all[0].List[1:] {
		x = l.either(token.LOR, x, func() *Expr { return test(e) }, e.Pos())
	}
	c := &Stmt{Kind: If, At: all[0].Pos(), X: x}
	c.Body = l.block(func() { l.stmts(all[0].Body) })
	if len(all) > 1 || last != nil {
		c.Else = l.block(func() { l.cases(tag, all[1:], last) })
	}
	l.emit(c)
}
