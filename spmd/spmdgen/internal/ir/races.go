package ir

import (
	"go/constant"
	"go/token"
	"slices"
)

// apiece refuses what elements do to one place all at once: to change it, or to write different
// values. value is nil if it is not known.
func (r *rows) apiece(s *Stmt, at token.Pos, place *Expr, changes bool, value *Expr) {
	roots := place.memory
	if value == nil {
		roots = place.lies
	}
	shared := false
	for root := range roots() {
		shared = shared || !root.Self || root.V.Place == Shared
	}
	if !shared || s.apiece(place) || !changes && (!s.invariant(place) || value != nil && s.invariant(value)) {
		return
	}
	r.Refuse(at, "a kernel of rows cannot change %s here for each element, which all run at once: add to a "+
		"variable, and store it behind the loop, or call spmd.AtomicAdd", place.text())
}

// apiece reports whether each element of a loop is proven to have a place, or memory, of its own.
func (s *Stmt) apiece(e *Expr) bool { return s.anchor(e) != nil }

// anchor returns the part of a tree that is proven to be each element's own, or nil.
func (s *Stmt) anchor(e *Expr) *Expr {
	switch e.Op {
	case Local:
		if e.V.Ref != nil {
			return s.anchor(e.V.Ref)
		}
		if e.V.loop == s && e.V.Sets == 0 && e.V.Init != nil {
			return s.anchor(e.V.Init)
		}
	case Index:
		if s.differs(e.Args[1]) {
			return e
		}
		return s.anchor(e.Args[0])
	case Slice:
		if low, high := e.Args[1], e.Args[2]; low.Op == Binary && high.Op == Binary && low.Tok == token.MUL &&
			high.Tok == token.MUL && low.Args[1].same(high.Args[1]) && s.invariant(low.Args[1]) &&
			low.Args[0].Is(s.Key) && high.Args[0].follows(low.Args[0]) {
			return e
		}
		return s.anchor(e.Args[0])
	case Field, Deref, Address:
		return s.anchor(e.Args[0])
	}
	return nil
}

// follows reports whether a tree is another and 1.
func (e *Expr) follows(o *Expr) bool {
	return e.Op == Binary && e.Tok == token.ADD && e.Args[0].same(o) && e.Args[1].Op == Const &&
		constant.Compare(e.Args[1].Value, token.EQL, constant.MakeInt64(1))
}

// races refuses a loop whose elements may read what others write.
func (r *rows) races(s *Stmt) {
	type access struct {
		place *Expr
		write bool
	}
	all := map[Root][]access{}
	c := &scanner{shared: true, in: s, seen: func(root Root, place *Expr, write bool) {
		all[root] = append(all[root], access{place, write})
	}}
	c.stmts([]*Stmt{s})
	for _, of := range all {
		reads := slices.ContainsFunc(of, func(a access) bool { return !a.write })
		for _, w := range of {
			own := s.anchor(w.place)
			for _, a := range of {
				if reads && w.write && (own == nil || !own.same(s.anchor(a.place))) && !disjoint(w.place, a.place) {
					r.Refuse(a.place.At, "a kernel of rows cannot read and write %s in one loop over elements, which "+
						"all run at once, but at one place of each: use two loops", a.place.text())
				}
			}
		}
	}
}

// disjoint reports whether two places lie in parts x[:n] and x[n:] of a slice.
func disjoint(a, b *Expr) bool {
	for _, x := range cuts(a) {
		for _, y := range cuts(b) {
			if x.Args[0].same(y.Args[0]) && (x.Args[2].same(y.Args[1]) || y.Args[2].same(x.Args[1])) {
				return true
			}
		}
	}
	return false
}

// cuts returns the parts of slices that lead to a place.
func cuts(e *Expr) (all []*Expr) {
	for {
		switch {
		case e.Op == Local && e.V.Ref != nil:
			e = e.V.Ref
		case e.Op == Local && e.V.Sets == 0 && e.V.Init != nil:
			e = e.V.Init
		case e.Op == Slice:
			all = append(all, e)
			e = e.Args[0]
		case e.Op == Index || e.Op == Field || e.Op == Address || e.Op == Deref:
			e = e.Args[0]
		default:
			return all
		}
	}
}

// differs reports whether an index is proven to differ for each element.
func (s *Stmt) differs(e *Expr) bool {
	switch e.Op {
	case Local:
		return e.V.Sets == 0 && (e.V == s.Key || e.V.loop == s && e.V.Init != nil && s.differs(e.V.Init))
	case Convert:
		return sizeOf(e.Type) >= 4 && s.differs(e.Args[0])
	case Binary:
		x, y := e.Args[0], e.Args[1]
		switch e.Tok {
		case token.ADD, token.SUB:
			return s.differs(x) && s.invariant(y) || s.differs(y) && s.invariant(x)
		case token.MUL:
			return s.differs(x) && nonzero(y) || s.differs(y) && nonzero(x)
		}
	}
	return false
}

func nonzero(e *Expr) bool { return e.Op == Const && constant.Sign(e.Value) != 0 }

// invariant reports whether a tree is the same for all elements.
func (s *Stmt) invariant(e *Expr) bool {
	return !e.has(func(e *Expr) bool { return e.Op == Local && e.V.loop == s })
}
