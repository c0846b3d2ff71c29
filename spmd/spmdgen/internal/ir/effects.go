package ir

import (
	"go/types"
)

// lies returns where a slice, a pointer, or an array of them, may lie.
func (e *Expr) lies() (r Roots) {
	switch e.Op {
	case Local:
		if e.V.Ref != nil {
			return e.V.Ref.lies()
		}
		return e.V.to
	case Part:
		if e.Index < len(e.V.parts) {
			return e.V.parts[e.Index]
		}
	case Address:
		return e.Args[0].memory()
	case Slice, Index, Deref, Field, Convert:
		return e.Args[0].lies()
	case Literal:
		for _, a := range e.Args {
			if a != nil {
				r.add(a.lies())
			}
		}
	case Call:
		for _, of := range e.results() {
			r.add(of)
		}
	}
	return r
}

// results returns where each result of a call may lie.
func (e *Expr) results() []Roots {
	if e.Op != Call {
		return nil
	}
	all := make([]Roots, len(e.Fn.returns))
	for i, of := range e.Fn.returns {
		for p := range of {
			all[i].add(e.Args[p.V.Param].lies())
		}
	}
	return all
}

// memory returns the memory that a place is.
func (e *Expr) memory() Roots {
	switch e.Op {
	case Local:
		if e.V.Ref != nil {
			return e.V.Ref.memory()
		}
		return Roots{{e.V, true}: true}
	case Field:
		return e.Args[0].memory()
	case Index:
		if _, ok := e.Args[0].Type.Underlying().(*types.Array); ok {
			return e.Args[0].memory()
		}
	}
	return e.Args[0].lies()
}

// analyse finds where slices and pointers may lie, until nothing new is found. Then it knows what
// the function does to the memory behind its parameters.
func (l *lowering) analyse() {
	for _, v := range l.fn.Params {
		if holdsMemory(v.Type) {
			v.to = Roots{{v, false}: true}
		}
	}
	var all []*Stmt
	Walk(l.fn.Body, func(s *Stmt) bool {
		all = append(all, s)
		if s.Kind == Assign || s.Kind == Update {
			for r := range s.To.memory() {
				if r.Self {
					r.V.Sets++
				}
			}
		}
		return true
	})
	each(l.fn.Body, func(e *Expr) {
		if e.Op == Address {
			for r := range e.Args[0].memory() {
				if r.Self {
					r.V.Sets++
				}
			}
		}
	})
	l.fn.returns = make([]Roots, len(l.fn.Results))
	for grown := true; grown; {
		grown = false
		into := func(v *Var, x *Expr) {
			if x != nil && v.Type != nil && holdsMemory(v.Type) {
				grown = v.to.add(x.lies()) || grown
			}
		}
		for _, s := range all {
			switch s.Kind {
			case Declare:
				into(s.V, s.X)
				if s.V.Type == nil {
					results := s.X.results()
					if s.V.parts == nil {
						s.V.parts = make([]Roots, len(results))
					}
					for i, r := range results {
						grown = s.V.parts[i].add(r) || grown
					}
				}
			case Assign:
				if s.To.Type != nil && holdsMemory(s.To.Type) {
					for r := range s.To.memory() {
						into(r.V, s.X)
					}
				}
			case Range:
				if s.V != nil && holdsMemory(s.V.Type) {
					into(s.V, s.X)
				}
			case Return:
				for i := range l.fn.returns {
					if len(s.Args) == len(l.fn.returns) {
						if holdsMemory(l.fn.Results[i]) {
							grown = l.fn.returns[i].add(s.Args[i].lies()) || grown
						}
					} else if len(s.Args) == 1 {
						if r := s.Args[0].results(); i < len(r) {
							grown = l.fn.returns[i].add(r[i]) || grown
						}
					}
				}
			}
		}
	}
	l.outlives()
	l.settle()
	c := &scanner{}
	c.stmts(l.fn.Body)
	for _, v := range l.fn.Params {
		_, read := c.reads[Root{v, false}]
		_, written := c.writes[Root{v, false}]
		l.fn.Reads, l.fn.Writes = append(l.fn.Reads, read), append(l.fn.Writes, written)
	}
}

// outlives refuses pointers that live longer than the variable that they point to.
func (l *lowering) outlives() {
	for i, of := range l.fn.returns {
		for r := range of {
			if r.Self {
				l.Refuse(r.V.At, "a kernel cannot allocate: %s returns the address of %s in result %d", l.fn.Of.Name(),
					r.V.Name, i+1)
			}
		}
	}
	for _, v := range l.all {
		for r := range v.to {
			if r.Self && (!v.scope.within(r.V.scope) || v.turn && r.V.turn) {
				l.Refuse(r.V.At, "a kernel cannot allocate: %s, which keeps the address of %s, lives longer", v.Name,
					r.V.Name)
			}
		}
	}
}

// settle refuses statements whose result depends on an order that Go leaves open.
func (l *lowering) settle() {
	for _, o := range l.order {
		before, after := &scanner{open: true}, &scanner{}
		if o.place {
			before.leads(o.reads)
		} else {
			before.tree(o.reads)
		}
		after.stmts(o.by)
		for a := range before.reads {
			for b := range after.writes {
				if a == b || !a.Self && !b.Self { // arguments of one function may be the same memory
					l.Refuse(o.reads.At, "a kernel cannot use %s here and change it in a call of the same "+
						"statement: Go leaves the order open; write two statements", o.reads.text())
				}
			}
		}
	}
}

// text names what a tree is about, for messages.
func (e *Expr) text() string {
	name := "a value"
	e.Walk(func(e *Expr) bool {
		if e.Op == Local && e.V.Go && name == "a value" {
			name = e.V.Name
		}
		return true
	})
	return name
}
