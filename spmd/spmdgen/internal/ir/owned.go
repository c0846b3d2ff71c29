package ir

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"

	"lockstep/internal/source"
)

// OwnedUse is how a function or a loop uses a slice of which it touches only the element of its own
// index.
type OwnedUse struct {
	Read    bool // what it holds before matters
	Written bool
}

// Indices returns how many indices a kernel has: i, j and k, which come first, or one int of
// another name if no int follows, which could be a second.
func Indices(kernel *types.Signature) (n int) {
	isInt := func(i int) bool {
		p := kernel.Params()
		return i < p.Len() && types.Identical(p.At(i).Type(), types.Typ[types.Int])
	}
	for n < 3 && isInt(n) && kernel.Params().At(n).Name() == "ijk"[n:n+1] {
		n++
	}
	if n == 0 && isInt(0) && !isInt(1) {
		return 1
	}
	return n
}

// owned finds the parameters of a kernel of one index that are such slices, and its guard.
func (l *lowering) owned(d *ast.FuncDecl, sig *types.Signature) {
	f := l.fn
	if _, ok := source.Directive(d); !ok || d.Recv != nil || len(f.Params) < 2 || Indices(sig) != 1 {
		return
	}
	var slices []*Var
	for _, p := range f.Params[1:] {
		if _, ok := p.Type.Underlying().(*types.Slice); ok && p.Sets == 0 {
			slices = append(slices, p)
		}
	}
	o := find(f.Params[0], slices, f.Body)
	f.Own = map[int]*OwnedUse{}
	for _, p := range slices {
		if x := o.of[p]; x != nil && !o.apart && f.Params[0].Sets == 0 {
			f.Own[p.Param] = x
		}
	}
	body := f.Body
	if f.Guard = f.guard(); f.Guard != nil {
		body = body[1:]
	}
	for i, x := range f.Own {
		x.Read = x.Read || !o.sets(body, f.Params[i])
	}
}

// guard returns the condition c of a kernel that begins with if c { return }. No index and no
// element of its own matters for it.
func (f *Function) guard() *Expr {
	if len(f.Own) == 0 || len(f.Body) == 0 {
		return nil
	}
	s := f.Body[0]
	if s.Kind != If || len(s.Else) > 0 || len(s.Body) != 1 || s.Body[0].Kind != Return || len(s.Body[0].Args) > 0 {
		return nil
	}
	cond, body := &scanner{}, &scanner{}
	cond.tree(s.X)
	body.stmts(f.Body)
	depends := body.conflict(accesses{reads: cond.reads})
	s.X.Walk(func(e *Expr) bool {
		depends = depends || e.Op == Local && (e.V.Param <= 0 || f.Own[e.V.Param] != nil)
		return true
	})
	if depends {
		return nil
	}
	return s.X
}

// ownership examines a body.
type ownership struct {
	index *Var
	of    map[*Var]*OwnedUse
	apart bool // neighbouring threads read neighbouring elements of another slice, and would not any more
}

func find(index *Var, slices []*Var, body []*Stmt) *ownership {
	o := &ownership{index: index, of: map[*Var]*OwnedUse{}}
	for _, s := range slices {
		o.of[s] = &OwnedUse{}
	}
	Walk(body, func(s *Stmt) bool {
		o.stmt(s)
		return true
	})
	for s, use := range o.of {
		if !use.Read && !use.Written {
			delete(o.of, s)
		}
	}
	return o
}

// element returns the slice x if a tree is x[i].
func (o *ownership) element(e *Expr) *Var {
	if e != nil && e.Op == Local && e.V.Ref != nil {
		e = e.V.Ref
	}
	if e == nil || e.Op != Index || e.Args[0].Op != Local || !e.Args[1].Is(o.index) || o.of[e.Args[0].V] == nil {
		return nil
	}
	return e.Args[0].V
}

func (o *ownership) stmt(s *Stmt) {
	for _, e := range s.exprs() {
		if e == s.To && e != nil {
			if v := o.element(e); v != nil {
				o.of[v].Written = true
				o.of[v].Read = o.of[v].Read || s.Kind == Update
				continue
			}
		}
		e.Walk(o.visit)
	}
}

func (o *ownership) visit(e *Expr) bool {
	switch e.Op {
	case Address:
		if v := o.element(e.Args[0]); v != nil {
			delete(o.of, v)
			return false
		}
	case Len:
		return e.Args[0].Op != Local
	case Index:
		if v := o.element(e); v != nil {
			o.of[v].Read = true
			return false
		}
		if _, array := e.Args[0].Type.Underlying().(*types.Array); !array {
			o.apart = o.apart || o.follows(e.Args[1])
		}
	case Local: // in any other place
		delete(o.of, e.V)
	}
	return true
}

// follows reports whether an index differs for each index of the kernel, and neighbours stay
// neighbours.
func (o *ownership) follows(e *Expr) bool {
	switch e.Op {
	case Local:
		return e.V == o.index
	case Binary:
		return (e.Tok == token.ADD || e.Tok == token.SUB || e.Tok == token.MUL) &&
			(o.follows(e.Args[0]) || o.follows(e.Args[1]))
	}
	return false
}

// sets reports whether statements assign v's element on every way, before they return.
func (o *ownership) sets(list []*Stmt, v *Var) bool {
	for _, s := range list {
		switch s.Kind {
		case Assign:
			if o.element(s.To) == v {
				return true
			}
		case Block:
			if o.sets(s.Body, v) {
				return true
			}
		case If:
			if (o.sets(s.Else, v) || o.given(s.X, v)) && o.sets(s.Body, v) {
				return true
			}
		}
		if leaves(s) {
			return false
		}
	}
	return false
}

// given reports whether a condition is len(v) > 0: nothing is stored in a slice of no elements.
func (o *ownership) given(e *Expr, v *Var) bool {
	return e.Op == Binary && e.Tok == token.GTR && e.Args[0].Op == Len && e.Args[0].Args[0].Is(v) &&
		e.Args[1].Op == Const && constant.Sign(e.Args[1].Value) == 0
}

// leaves reports whether a statement has a return or a branch in it.
func leaves(s *Stmt) (found bool) {
	Walk([]*Stmt{s}, func(s *Stmt) bool {
		found = found || s.Kind == Return || s.Kind == Break || s.Kind == Continue
		return !found
	})
	return found
}
