package ir

import (
	"go/token"
	"go/types"
	"slices"
)

// A kernel of rows is a function of the index of a row, which a block or a warp runs together.
//
// The elements of a range statement run all at once. A variable that they add to, or keep the min
// or max in, is reduced behind the loop. Every thread computes all else for itself, but only one
// writes to memory. The threads meet before memory is used again.
func (l *lowering) rows() {
	r := &rows{lowering: l}
	Walk(l.fn.Body, func(s *Stmt) bool {
		found := s.Kind == Range
		if found {
			r.begin(s)
		}
		return !found
	})
	r.place()
	smallest, apart := int64(16), false
	for _, s := range r.loops {
		r.changes(s)
		r.races(s)
		apart = r.uses(s) || apart
		for v := range s.Row.Own {
			smallest = min(smallest, sizeOf(v.Type.Underlying().(*types.Slice).Elem()))
		}
	}
	if l.fn.Width = min(8, 16/int(smallest)); apart || r.shares {
		l.fn.Width = 1
	}
	for _, s := range r.loops {
		for _, v := range s.Row.Kept {
			s.Row.Keep = max(s.Row.Keep, l.fn.KeptLen(v)/l.fn.Width)
		}
		r.apart(s)
	}
	l.fn.Body = r.block(l.fn.Body)
}

func sizeOf(t types.Type) int64 { return types.SizesFor("gc", "amd64").Sizeof(t) }

// KeptLen returns how many elements of an array a thread keeps.
func (f *Function) KeptLen(v *Var) int {
	n, per := int(v.Type.Underlying().(*types.Array).Len()), f.Row*f.Width
	return (n + per - 1) / per * f.Width
}

type rows struct {
	*lowering
	loops  []*Stmt
	shares bool     // neighbouring threads have neighbouring elements of an array
	since  accesses // of memory since the threads met
	out    []*Stmt
}

// begin makes a range statement a loop over elements.
func (r *rows) begin(s *Stmt) {
	s.Kind, s.Row = Elements, &RowLoop{Own: map[*Var]*OwnedUse{}}
	r.loops = append(r.loops, s)
	switch t := s.X.Type.Underlying().(type) {
	case *types.Basic:
		if t.Kind() != types.Int {
			r.Refuse(s.At, "a kernel of rows cannot range over %s: over an int and slices it can", GoType(s.X.Type))
		}
	case *types.Array:
		if s.V != nil {
			r.Refuse(s.At, "a kernel of rows cannot range over the values of %s: range over its length", s.X.text())
		}
	}
	if s.Key == nil {
		s.Key = r.temporary("j", types.Typ[types.Int], s.At)
	}
	mine := func(v *Var) {
		if v != nil {
			v.loop = s
		}
	}
	mine(s.Key)
	mine(s.V)
	Walk(s.Body, func(in *Stmt) bool {
		if in.Kind == Declare || in.Kind == Refer || in.Kind == Range {
			mine(in.V)
			mine(in.Key)
		}
		switch {
		case in.Kind == Return:
			r.Refuse(in.At, "a kernel of rows cannot return from a loop over elements, which all run at once")
		case in.Kind == Break && !within(s, in.Of), in.Kind == Continue && in.Of != s && !within(s, in.Of):
			r.Refuse(in.At, "a kernel of rows cannot leave a loop over elements, which all run at once")
		}
		return true
	})
}

// within reports whether a statement lies in the body of another.
func within(s, of *Stmt) (found bool) {
	Walk(s.Body, func(in *Stmt) bool {
		found = found || in == of
		return !found
	})
	return found
}

// base returns the variable whose memory a place is, if no pointer and no slice lies between.
func base(e *Expr) *Var {
	for {
		switch e.Op {
		case Local:
			if e.V.Ref == nil {
				return e.V
			}
			e = e.V.Ref
			continue
		case Index:
			if _, ok := e.Args[0].Type.Underlying().(*types.Array); !ok {
				return nil
			}
		case Field:
		default:
			return nil
		}
		e = e.Args[0]
	}
}

// changes finds the variables outside of a loop that its body changes: it reduces to them, or
// refuses.
func (r *rows) changes(s *Stmt) {
	own := map[*Expr]bool{} // uses of a variable in its own update
	outside := func(e *Expr) *Var {
		if e.Op == Local && e.V.Ref == nil && e.V.loop != s {
			return e.V
		}
		return nil
	}
	refuse := func(at token.Pos, v *Var) {
		r.Refuse(at, "a kernel of rows cannot set %s for each element, which all run at once: write %s += or "+
			"%s = max(%s, ...) of a variable that is a number, and read it behind the loop; or loop by for with a "+
			"condition, which goes on in order", v.Name, v.Name, v.Name, v.Name)
	}
	Walk(s.Body, func(in *Stmt) bool {
		if in.Kind == Assign || in.Kind == Update {
			if v := outside(in.To); v != nil {
				r.note(s, in, own, refuse)
				return true
			}
			r.apiece(s, in.At, in.To, in.Kind == Update || in.X.reads(in.To), in.X)
			for root := range in.To.memory() {
				if root.Self && root.V.loop != s && (base(in.To) != root.V || root.V.Place == InThread) {
					refuse(in.At, root.V)
				}
			}
			return true
		}
		for _, e := range in.exprs() {
			e.Walk(func(e *Expr) bool {
				for i, a := range e.Args {
					if e.writes(i) {
						for root := range a.lies() {
							if root.Self && root.V.loop != s && root.V.Place == InThread {
								refuse(e.At, root.V)
							}
						}
						if e.Op == Call {
							r.apiece(s, e.At, a, e.Fn.Reads[i], nil)
						}
					}
				}
				return true
			})
		}
		return true
	})
	each(s.Body, func(e *Expr) {
		for _, a := range s.Row.Result {
			if e.Is(a.V) && !own[e] {
				r.Refuse(e.At, "a kernel of rows cannot use %s here: what the elements make of it is known behind the "+
					"loop", e.V.Name)
			}
		}
	})
}

// note notes the reduction that a statement of a loop is.
func (r *rows) note(s, in *Stmt, own map[*Expr]bool, refuse func(token.Pos, *Var)) {
	v, op := in.To.V, ""
	own[in.To] = true
	switch {
	case in.Kind == Update && (in.Tok == token.ADD || in.Tok == token.SUB):
		op = "sum"
	case in.Kind == Update && in.Tok == token.MUL:
		op = "prod"
	case in.Kind == Assign && in.X.Op == Builtin && (in.X.Name == "min" || in.X.Name == "max") && in.X.Args[0].Is(v) &&
		len(in.X.Args) > 1:
		own[in.X.Args[0]] = true
		op = in.X.Name
	default:
		refuse(in.At, v)
	}
	for _, a := range s.Row.Result {
		if a.V == v {
			if a.Op != op {
				r.Refuse(in.At, "a kernel of rows cannot have both the %s and the %s of elements in %s", a.Op, op,
					v.Name)
			}
			return
		}
	}
	b, ok := v.Type.Underlying().(*types.Basic)
	if !ok || !slices.Contains([]types.BasicKind{types.Int, types.Uint, types.Int32, types.Uint32, types.Int64,
		types.Uint64, types.Float32, types.Float64}, b.Kind()) {
		r.Refuse(in.At, "a kernel of rows cannot reduce to %s of type %s: to numbers of 32 or 64 bits it can", v.Name,
			GoType(v.Type))
	}
	s.Row.Result = append(s.Row.Result, Accumulator{v, op})
}

// reads reports whether a tree has a place in it.
func (e *Expr) reads(place *Expr) bool { return e.has(place.same) }

// uses finds the slices of which a loop uses only the elements of its own index. It
// reports whether neighbouring threads read neighbouring elements of others.
func (r *rows) uses(s *Stmt) bool {
	var candidates []*Var
	each(s.Body, func(e *Expr) {
		if e.Op == Local && e.V.loop != s && e.V.Type != nil && e.V.Ref == nil && !slices.Contains(candidates, e.V) {
			if _, ok := e.V.Type.Underlying().(*types.Slice); ok {
				candidates = append(candidates, e.V)
			}
		}
	})
	o := find(s.Key, candidates, s.Body)
	for v, use := range o.of {
		use.Read = use.Read || !o.sets(s.Body, v)
		if s.Key.Sets == 0 {
			s.Row.Own[v] = use
		}
	}
	if s.V != nil {
		switch v := s.X.V; {
		case s.X.Op != Local:
			return true
		case s.Row.Own[v] != nil:
			s.Row.Own[v].Read = true
		case !slices.Contains(candidates, v):
			s.Row.Own[v] = &OwnedUse{Read: true}
		}
	}
	return o.apart
}

// place decides where the local arrays lie that loops over elements use.
func (r *rows) place() {
	type uses struct{ own, other, changed, outside, whole bool }
	all := map[*Var]*uses{}
	var order []*Var
	var in *Stmt
	var visit func(e *Expr) bool
	mark := func(e *Expr, write bool) bool {
		b, single, index := e, true, (*Expr)(nil)
		for b.Op == Index {
			single, index, b = index == nil, b.Args[1], b.Args[0]
		}
		if b.Op != Local || b.V.Type == nil || b.V.Param >= 0 || b.V.Ref != nil || in != nil && b.V.loop == in {
			return false
		}
		if _, ok := b.V.Type.Underlying().(*types.Array); !ok {
			return false
		}
		u := all[b.V]
		if u == nil {
			u = &uses{}
			all[b.V] = u
			order = append(order, b.V)
		}
		switch {
		case index == nil:
			u.whole = true
		case in == nil:
			u.outside = true
		case single && index.Is(in.Key) && in.Key.Sets == 0:
			u.own = true
			u.changed = u.changed || write
			if !slices.Contains(in.Row.Kept, b.V) {
				in.Row.Kept = append(in.Row.Kept, b.V)
			}
		default:
			u.other = true
			u.changed = u.changed || write
		}
		for ; e != b; e = e.Args[0] {
			e.Args[1].Walk(visit)
		}
		return true
	}
	visit = func(e *Expr) bool {
		switch e.Op {
		case Address:
			return !mark(e.Args[0], true)
		case Index, Local:
			return !mark(e, false)
		}
		return true
	}
	var stmts func(list []*Stmt)
	stmts = func(list []*Stmt) {
		for _, s := range list {
			if s.To != nil && (s.Kind != Assign && s.Kind != Update && s.Kind != Refer || !mark(s.To, true)) {
				s.To.Walk(visit)
			}
			array := false // of which the loop has only the length
			if s.Kind == Elements && s.X.Op == Local {
				_, array = s.X.Type.Underlying().(*types.Array)
			}
			if !array {
				s.X.Walk(visit)
			}
			for _, a := range s.Args {
				a.Walk(visit)
			}
			outer := in
			if s.Kind == Elements {
				in = s
			}
			stmts(s.Body)
			in = outer
			stmts(s.Else)
			stmts(s.Post)
		}
	}
	stmts(r.fn.Body)
	bytes := int64(0)
	for _, v := range order {
		u := all[v]
		switch {
		case !u.changed:
		case u.own && !u.other && !u.outside && !u.whole:
			v.Place = Kept
		case u.whole:
			r.Refuse(v.At, "a kernel of rows cannot have %s as a whole: its elements are of several threads", v.Name)
		default:
			v.Place = Shared
			r.shares = true
			if bytes += sizeOf(v.Type); bytes*max(1, 256/int64(r.fn.Row)) > mostShared {
				r.Refuse(v.At, "a kernel of rows cannot share %s: the threads of a block share %d bytes", v.Name,
					mostShared)
			}
		}
	}
	for _, s := range r.loops {
		s.Row.Kept = slices.DeleteFunc(s.Row.Kept, func(v *Var) bool { return v.Place != Kept })
	}
}
