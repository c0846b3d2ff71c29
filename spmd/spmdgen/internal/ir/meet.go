package ir

import (
	"go/token"
	"maps"
)

// apart leaves out the slices of a loop that share memory with others that it uses, if one is
// written.
func (r *rows) apart(s *Stmt) {
	c := &scanner{shared: true, alone: true}
	c.stmts([]*Stmt{s})
	a := c.accesses
	for v := range s.Row.Own {
		for root := range v.to {
			written, ok := a.writes[root]
			if read, also := a.reads[root]; ok && (written == nil || also && read != written) {
				delete(s.Row.Own, v)
			}
		}
	}
}

// settle has the threads meet before accesses that need it, and counts these.
func (r *rows) settle(a accesses) {
	touched := len(r.since.writes) > 0 && len(a.reads)+len(a.writes) > 0 || len(a.writes) > 0 && len(r.since.reads) > 0
	switch {
	case r.since.conflict(a):
		r.out = append(r.out, &Stmt{Kind: Meet})
		r.since = accesses{}
	case touched:
		r.out = append(r.out, &Stmt{Kind: MeetAny})
	}
	r.since.join(a)
}

// block returns statements outside of the loops over elements, which every thread runs, with what
// is for one thread, and where all meet.
func (r *rows) block(list []*Stmt) []*Stmt {
	outer := r.out
	r.out = nil
	for _, s := range list {
		r.stmt(s)
	}
	done := r.out
	r.out = outer
	return done
}

func (r *rows) stmt(s *Stmt) {
	one := false
	switch s.Kind {
	case Block:
		s.Body = r.block(s.Body)
		r.out = append(r.out, s)
		return
	case If:
		r.compound(s, scan(&Stmt{Kind: Do, X: s.X}))
		return
	case For:
		head := scan(&Stmt{Kind: Do, X: s.X})
		if post := scan(s.Post...); len(post.reads)+len(post.writes) > 0 {
			r.Refuse(s.At, "a kernel of rows cannot use memory in the step of a for statement: write it at "+
				"the end of the body")
		}
		body := scan(s.Body...)
		if body.conflict(head) {
			s.Body = append([]*Stmt{leaveUnless(s)}, s.Body...)
		}
		r.compound(s, head)
		if len(body.writes) > 0 {
			s.Body = append([]*Stmt{{Kind: Meet}}, s.Body...)
		}
		return
	case Elements:
		r.settle(scan(s))
		if len(s.Row.Result) > 0 {
			r.since = accesses{}
		}
	case Declare:
		if s.V.Place != InThread && s.X != nil {
			r.Refuse(s.X.At, "a kernel of rows cannot begin %s with a value: declare it with var, and set it in a "+
				"loop over its elements", s.V.Name)
		}
		one = r.memory(s.At, s.X, forAll)
		if s.V.Place != Shared || !r.fn.Unset {
			r.settle(scan(s))
		}
	case Assign, Update:
		shared, own := split(s.To.memory())
		if shared && own {
			r.Refuse(s.At, "a kernel of rows cannot set %s: it may be a variable or memory", s.To.text())
		}
		calls := r.memory(s.At, s.X, !shared)
		one = shared
		if shared && s.X.effect() && !calls {
			r.Refuse(s.At, "a kernel of rows cannot set variables and memory at once: write two statements")
		}
		r.settle(scan(s))
	case Do:
		one = r.memory(s.At, s.X, unused)
		r.settle(scan(s))
	default:
		r.settle(scan(s))
	}
	if one {
		s = &Stmt{Kind: One, At: s.At, Body: []*Stmt{s}}
	}
	r.out = append(r.out, s)
}

// split says what memory is: shared by the threads, or a variable that each has.
func split[T any](m map[Root]T) (shared, own bool) {
	for root := range m {
		if !root.Self || root.V.Place == Shared {
			shared = true
		} else {
			own = true
		}
	}
	return shared, own
}

// The result of memory.
const unused, forAll = false, true

// memory reports whether a statement calls what writes to memory, which one thread does. It
// refuses calls that do more.
func (r *rows) memory(at token.Pos, x *Expr, result bool) bool {
	if x == nil || !x.effect() {
		return false
	}
	c := &scanner{}
	c.tree(x)
	shared, own := split(c.writes)
	if shared && (own || result) {
		r.Refuse(at, "a kernel of rows cannot set variables and memory at once: the call writes to memory, which one "+
			"thread does, and its result is for all; write two statements")
	}
	return shared
}

// compound makes a statement of statements. All that it may access counts behind it.
func (r *rows) compound(s *Stmt, head accesses) {
	before := accesses{maps.Clone(r.since.reads), maps.Clone(r.since.writes)}
	all := scan(s)
	r.since = head
	s.Body, s.Else = r.block(s.Body), r.block(s.Else)
	r.since = before
	r.settle(all)
	r.out = append(r.out, s)
}
