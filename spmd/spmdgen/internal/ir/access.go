package ir

import "go/types"

// accesses are what statements read and write. The value is the slice whose elements a loop of a
// kernel of rows uses only at its own index, or nil for any other access.
type accesses struct{ reads, writes map[Root]*Var }

// The write of an access.
const reading, writing = false, true

func (a *accesses) add(root Root, via *Var, write bool) {
	set := &a.reads
	if write {
		set = &a.writes
	}
	if *set == nil {
		*set = map[Root]*Var{}
	}
	if old, ok := (*set)[root]; ok && old != via {
		via = nil
	}
	(*set)[root] = via
}

func (a *accesses) join(b accesses) {
	for root, via := range b.reads {
		a.add(root, via, reading)
	}
	for root, via := range b.writes {
		a.add(root, via, writing)
	}
}

// conflict reports whether b, behind a, uses what a wrote or writes what a used.
func (a *accesses) conflict(b accesses) bool {
	meets := func(x, y map[Root]*Var) bool {
		for root, via := range x {
			if other, ok := y[root]; ok && (via == nil || via != other) {
				return true
			}
		}
		return false
	}
	return meets(a.writes, b.reads) || meets(a.writes, b.writes) || meets(a.reads, b.writes)
}

// scanner collects accesses.
type scanner struct {
	accesses
	shared bool  // only those to memory that the threads of a row share
	open   bool  // without those of calls: Go says when they are made
	in     *Stmt // the loop over elements
	alone  bool  // accesses of one loop are compared with each other
	seen   func(root Root, place *Expr, write bool)
}

// scan returns what the threads of a row do to memory that they share.
func scan(list ...*Stmt) accesses {
	c := &scanner{shared: true}
	c.stmts(list)
	return c.accesses
}

func (c *scanner) stmts(list []*Stmt) {
	for _, s := range list {
		c.tree(s.X)
		for _, a := range s.Args {
			c.tree(a)
		}
		if s.To != nil {
			c.leads(s.To)
		}
		outer := c.in
		switch s.Kind {
		case Declare:
			c.write(Roots{{s.V, true}: true}, nil)
		case Update:
			c.read(s.To.memory(), s.To)
			c.write(s.To.memory(), s.To)
		case Assign:
			c.write(s.To.memory(), s.To)
		case Range:
			if _, slice := s.X.Type.Underlying().(*types.Slice); slice && s.V != nil {
				c.read(s.X.lies(), s.X)
			}
		case Elements:
			if c.in = s; s.V != nil {
				c.read(s.X.lies(), &Expr{Op: Index, At: s.At, Args: []*Expr{s.X, local(s.Key)}})
			}
		}
		c.stmts(s.Body)
		c.in = outer
		c.stmts(s.Else)
		c.stmts(s.Post)
	}
}

func (c *scanner) read(roots Roots, place *Expr)  { c.touch(roots, place, reading) }
func (c *scanner) write(roots Roots, place *Expr) { c.touch(roots, place, writing) }

// touch notes an access to a place, or to where a slice or pointer may lie.
func (c *scanner) touch(roots Roots, place *Expr, write bool) {
	var via *Var
	if c.in != nil && place != nil && place.Op == Index && place.Args[1].Is(c.in.Key) {
		if x := place.Args[0]; x.Op == Local && (x.V.Sets == 0 || c.alone) && c.in.Row.Own[x.V] != nil {
			via = x.V
		}
	}
	for root := range roots {
		if !c.shared || !root.Self || root.V.Place == Shared {
			c.add(root, via, write)
			if c.seen != nil {
				c.seen(root, place, write)
			}
		}
	}
}

// isPlace reports whether a tree is a place, so that its memory is read as a part of it alone.
func (e *Expr) isPlace() bool {
	switch e.Op {
	case Local, Deref:
		return true
	case Field:
		return e.Args[0].isPlace()
	case Index:
		_, slice := e.Args[0].Type.Underlying().(*types.Slice)
		return slice || e.Args[0].isPlace()
	}
	return false
}

// leads notes what is read to reach a place.
func (c *scanner) leads(e *Expr) {
	switch e.Op {
	case Local:
	case Field:
		c.leads(e.Args[0])
	case Index:
		if _, ok := e.Args[0].Type.Underlying().(*types.Array); ok {
			c.leads(e.Args[0])
		} else {
			c.tree(e.Args[0])
		}
		c.tree(e.Args[1])
	default:
		c.tree(e.Args[0])
	}
}

func (c *scanner) tree(e *Expr) {
	switch {
	case e == nil || c.open && (e.Op == Call || e.Op == Library):
	case e.Op == Address:
		c.leads(e.Args[0])
	case e.isPlace():
		c.leads(e)
		c.read(e.memory(), e)
	default:
		for i, a := range e.Args {
			c.tree(a)
			if e.Op == Call && e.Fn.Reads[i] {
				c.read(a.lies(), a)
			}
			if e.writes(i) {
				c.write(a.lies(), a)
			}
		}
	}
}

// writes reports whether a call writes to the memory behind an argument.
func (e *Expr) writes(i int) bool {
	return e.Op == Call && e.Fn.Writes[i] || e.Op == Library && i == 0 && atomic(e.Obj)
}
