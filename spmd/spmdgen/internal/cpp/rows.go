package cpp

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"lockstep/internal/source"
)

// rows is a kernel of rows: a function of the index of a row, which a block or a warp
// runs together.
//
// The elements of a range statement run all at once. A variable that they add to, or keep the min
// or max in, is reduced behind the loop. Every thread computes all else for itself, but only one
// writes to memory. The threads meet before memory is used again.
type rows struct {
	threads int
	unset   bool                         // shared arrays begin with anything
	width   int                          // elements of a thread that follow each other
	arrays  map[types.Object]place       // local arrays
	loops   map[*ast.RangeStmt]*elements // over elements
	in      *elements                    // the one that is being written
	since   accesses                     // of memory since the threads met
	meets   map[*ast.ForStmt]bool        // loops whose turns are to meet
}

// elements is a loop over the elements of a row.
type elements struct {
	stmt   *ast.RangeStmt
	key    types.Object
	own    map[types.Object]*OwnedUse // slices whose elements it uses only at its own index
	result []accumulator
}

// accumulator is a variable that a loop over elements reduces to.
type accumulator struct {
	v  types.Object
	op string
}

// place says where a local array lies.
type place int

const (
	inThread place = iota // each thread has all of it
	kept                  // each has the elements of its own, in registers
	shared
)

// Unset is the word in the comment of a kernel of rows whose shared arrays need not begin with 0.
const Unset = "unset"

// RowThreads are the threads that a row may have.
var RowThreads = []int{32, 64, 128, 256, 512, 1024}

// startRows examines the body of a kernel of rows.
func (w *writer) startRows(d *ast.FuncDecl, threads int) {
	words, _ := source.Directive(d)
	r := &rows{threads: threads, unset: slices.Contains(words, Unset), arrays: map[types.Object]place{},
		loops: map[*ast.RangeStmt]*elements{}, meets: map[*ast.ForStmt]bool{}}
	w.rows = r
	apart, smallest := false, int64(16)
	ast.Inspect(d.Body, func(n ast.Node) bool {
		s, ok := n.(*ast.RangeStmt)
		if !ok {
			return true
		}
		e, beside := w.elementsOf(s)
		r.loops[s] = e
		apart = apart || beside
		for v := range e.own {
			smallest = min(smallest, types.SizesFor("gc",
				"amd64").Sizeof(w.subst(v.Type()).Underlying().(*types.Slice).Elem()))
		}
		return false
	})
	if r.width = min(8, 16/int(smallest)); apart {
		r.width = 1
	}
	w.placeArrays(d.Body)
	for _, p := range r.arrays {
		if p == shared {
			r.width = 1 // neighbouring threads have neighbouring elements of it
		}
	}
}

// elementsOf examines one loop. beside says that neighbouring threads read neighbouring elements of
// other slices.
func (w *writer) elementsOf(s *ast.RangeStmt) (e *elements, beside bool) {
	e = &elements{stmt: s, own: map[types.Object]*OwnedUse{}}
	if id, ok := s.Key.(*ast.Ident); ok && id.Name != "_" {
		e.key = w.Info.Defs[id]
	}
	var candidates []types.Object
	outside := func(o types.Object) bool { return o != nil && (o.Pos() < s.Pos() || o.Pos() >= s.End()) }
	ast.Inspect(s.Body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if v, ok := w.Info.Uses[id].(*types.Var); ok && outside(v) &&
				!slices.Contains(candidates, types.Object(v)) {
				if _, ok := v.Type().Underlying().(*types.Slice); ok {
					candidates = append(candidates, v)
				}
			}
		}
		return true
	})
	if e.key != nil {
		e.own, beside = OwnedInLoop(w.Info, e.key, candidates, s.Body)
	}
	if s.Value != nil {
		id, ok := s.X.(*ast.Ident)
		v := w.Info.Uses[id]
		switch use := e.own[v]; {
		case !ok:
			beside = true
		case use != nil:
			use.Read = true
		case !slices.Contains(candidates, v):
			if _, ok := v.Type().Underlying().(*types.Slice); ok {
				e.own[v] = &OwnedUse{Read: true}
			}
		}
	}
	w.accumulators(e, outside)
	return e, beside
}

// accumulators finds the variables outside of a loop that its body changes.
func (w *writer) accumulators(e *elements, outside func(types.Object) bool) {
	own := map[*ast.Ident]bool{} // uses of a variable in its own update
	note := func(id *ast.Ident, op string) {
		v := w.Info.Uses[id]
		own[id] = true
		for _, a := range e.result {
			if a.v == v && a.op != op {
				w.Refuse(id.Pos(), "a kernel of rows cannot have both the %s and the %s of elements in %s",
					a.op, op, id.Name)
			}
			if a.v == v {
				return
			}
		}
		b, ok := w.subst(v.Type()).Underlying().(*types.Basic)
		if !ok || !slices.Contains([]types.BasicKind{types.Int, types.Uint, types.Int32, types.Uint32, types.Int64,
			types.Uint64, types.Float32, types.Float64}, b.Kind()) {
			w.Refuse(id.Pos(), "a kernel of rows cannot reduce to %s of type %s: to numbers of 32 or 64 bits it can",
				id.Name, GoType(v.Type()))
		}
		e.result = append(e.result, accumulator{v, op})
	}
	local := func(x ast.Expr) *ast.Ident {
		id, ok := x.(*ast.Ident)
		if !ok || !outside(w.Info.Uses[id]) {
			return nil
		}
		return id
	}
	ast.Inspect(e.stmt.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IncDecStmt:
			if id := local(n.X); id != nil {
				note(id, "sum")
			}
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				id := local(l)
				if id == nil {
					continue
				}
				switch {
				case n.Tok == token.ADD_ASSIGN || n.Tok == token.SUB_ASSIGN:
					note(id, "sum")
				case n.Tok == token.MUL_ASSIGN:
					note(id, "prod")
				case n.Tok == token.ASSIGN && len(n.Rhs) == len(n.Lhs):
					if c, ok := n.Rhs[i].(*ast.CallExpr); ok && len(c.Args) > 1 {
						f, ok := c.Fun.(*ast.Ident)
						first, ok2 := c.Args[0].(*ast.Ident)
						if ok && ok2 && (f.Name == "min" || f.Name == "max") && w.Info.Uses[first] == w.Info.Uses[id] {
							own[first] = true
							note(id, f.Name)
							continue
						}
					}
					fallthrough
				default:
					w.Refuse(l.Pos(), "a kernel of rows cannot set %s for each element, which all run at once: "+
						"write %s += or %s = max(%s, ...), and read it behind the loop",
						id.Name, id.Name, id.Name, id.Name)
				}
			}
		}
		return true
	})
	ast.Inspect(e.stmt.Body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !own[id] &&
			slices.ContainsFunc(e.result, func(a accumulator) bool { return a.v == w.Info.Uses[id] }) {
			w.Refuse(id.Pos(), "a kernel of rows cannot use %s here: what the elements make of it is known behind "+
				"the loop", id.Name)
		}
		return true
	})
}

// placeArrays decides where the local arrays lie that loops over elements use.
func (w *writer) placeArrays(body *ast.BlockStmt) {
	type uses struct{ own, other, changed, outside, whole bool }
	all := map[types.Object]*uses{}
	var in *elements
	var visit func(n ast.Node) bool
	mark := func(x ast.Expr, write bool) bool {
		base, single, index := x, true, ast.Expr(nil)
		for {
			i, ok := base.(*ast.IndexExpr)
			if !ok {
				break
			}
			single, index, base = index == nil, i.Index, i.X
		}
		id, ok := base.(*ast.Ident)
		if !ok {
			return false
		}
		v, ok := w.Info.Uses[id].(*types.Var)
		if !ok || v.Parent() == nil || v.Pos() < body.Pos() {
			return false
		}
		if _, ok := v.Type().Underlying().(*types.Array); !ok {
			return false
		}
		if in != nil && v.Pos() >= in.stmt.Pos() {
			return false // of each element
		}
		u := all[v]
		if u == nil {
			u = &uses{}
			all[v] = u
		}
		at, isIdent := index.(*ast.Ident)
		switch {
		case index == nil:
			u.whole = true
		case in == nil:
			u.outside = true
		case single && isIdent && in.key != nil && w.Info.Uses[at] == in.key:
			u.own = true
			u.changed = u.changed || write
		default:
			u.other = true
			u.changed = u.changed || write
		}
		for x != base {
			i := x.(*ast.IndexExpr)
			ast.Inspect(i.Index, visit)
			x = i.X
		}
		return true
	}
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if e := w.rows.loops[n]; e != nil {
				if id, ok := n.X.(*ast.Ident); ok && n.Value != nil {
					if v, ok := w.Info.Uses[id].(*types.Var); ok {
						if _, ok := v.Type().Underlying().(*types.Array); ok {
							w.Refuse(n.Pos(), "a kernel of rows cannot range over the values of %s: range over its "+
								"length", id.Name)
						}
					}
				}
				in = e
				ast.Inspect(n.Body, visit)
				in = nil
				return false
			}
		case *ast.AssignStmt:
			for _, l := range n.Lhs {
				if !mark(l, writes) {
					ast.Inspect(l, visit)
				}
			}
			for _, r := range n.Rhs {
				ast.Inspect(r, visit)
			}
			return false
		case *ast.IncDecStmt:
			return !mark(n.X, writes)
		case *ast.UnaryExpr:
			return n.Op != token.AND || !mark(n.X, writes)
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "len" {
				return false
			}
		case *ast.IndexExpr:
			return !mark(n, reads)
		case *ast.Ident:
			mark(n, reads)
		}
		return true
	}
	ast.Inspect(body, visit)
	for v, u := range all {
		switch {
		case !u.changed:
		case u.own && !u.other && !u.outside && !u.whole:
			w.rows.arrays[v] = kept
		case u.whole:
			w.Refuse(v.Pos(), "a kernel of rows cannot have %s as a whole: its elements are of several threads",
				v.Name())
		default:
			w.rows.arrays[v] = shared
		}
	}
}

// keptLen returns how many elements of an array a thread keeps.
func (r *rows) keptLen(n int64) int64 {
	per := int64(r.threads * r.width)
	return (n + per - 1) / per * int64(r.width)
}

// array declares a local array that the threads of a row share. It returns false for any
// other variable.
func (w *writer) array(v types.Object, value ast.Expr) bool {
	if w.rows == nil || w.rows.arrays[v] == inThread {
		return false
	}
	if value != nil {
		w.Refuse(value.Pos(), "a kernel of rows cannot begin %s with a value: declare it with var, and set it in a "+
			"loop over its elements", v.Name())
	}
	t := w.subst(v.Type()).Underlying().(*types.Array)
	c := w.CType(v.Pos(), t.Elem())
	name := w.name(v)
	switch {
	case w.rows.arrays[v] == kept:
		w.line("spmd::array<%s, %d> %s = {};", c, w.rows.keptLen(t.Len()), name)
		return true
	case w.rows.threads > 32:
		w.line("__shared__ __align__(16) spmd::array<%s, %d> %s;", c, t.Len(), name)
	default:
		all := w.fresh(name)
		w.line("__shared__ __align__(16) spmd::array<%s, %d> %s[spmd::WARPS_OF_ROWS];", c, t.Len(), all)
		w.line("spmd::array<%s, %d> &%s = %s[threadIdx.x / 32];", c, t.Len(), name, all)
	}
	var a accesses
	a.add(v, nil, writes)
	if w.rows.unset {
		w.line("spmd::unset<%d>(%s);", w.rows.threads, name)
		return true
	}
	w.settle(a)
	w.line("spmd::zero<%d>(%s);", w.rows.threads, name)
	return true
}

// elements writes a loop over the elements of a row.
func (w *writer) elements(s *ast.RangeStmt) {
	e := w.rows.loops[s]
	if s.Tok == token.ASSIGN {
		w.Refuse(s.Pos(), "a kernel cannot range over variables that exist: write :=")
	}
	w.line("{")
	w.depth++
	end := w.fresh("n")
	over := w.typeOf(s.X)
	switch u := over.Underlying().(type) {
	case *types.Basic:
		if e.key != nil && !types.Identical(e.key.Type(), types.Typ[types.Int]) || u.Info()&types.IsInteger == 0 {
			w.Refuse(s.Pos(), "a kernel of rows cannot range over %s: over an int and slices it can", GoType(over))
		}
		w.line("const int64_t %s = %s;", end, w.as(s.X, types.Typ[types.Int]))
	case *types.Slice:
		w.line("const int64_t %s = (%s).n;", end, w.expr(s.X))
	case *types.Array:
		w.line("const int64_t %s = %d;", end, u.Len())
	default:
		w.Refuse(s.Pos(), "a kernel of rows cannot range over %s: over an int and slices it can", GoType(over))
	}
	keep := w.keeps(e, end)
	outer := map[types.Object]string{}
	for _, a := range e.result {
		t := w.ctypeOf(a.v.Pos(), a.v.Type())
		outer[a.v] = w.name(a.v)
		w.names[a.v] = w.fresh(outer[a.v])
		w.line("%s %s = spmd::op_%s<%s>::none();", t, w.names[a.v], a.op, t)
	}
	key, body := "", w.fresh("body")
	if e.key != nil {
		key = w.name(e.key)
	} else {
		key = w.fresh("j")
	}
	w.apartFromOthers(e)
	var params, uses []string
	for _, v := range e.slices() {
		params = append(params, ", auto "+w.name(v))
		uses = append(uses, fmt.Sprintf(", spmd::use<%v, %v>(%s)", e.own[v].Read, e.own[v].Written, w.name(v)))
	}
	w.line("auto %s = [&](int64_t %s, int slot_%s) {", body, key, strings.Join(params, ""))
	w.rows.in = e
	t := w.enter(aLoop)
	t.element = true
	if s.Value != nil {
		if id, ok := s.Value.(*ast.Ident); ok && id.Name != "_" {
			v := w.Info.Defs[id]
			w.depth++
			w.line("%s = AT(%s, %s, %s);", declare(w.ctypeOf(s.Pos(), v.Type()), w.name(v)), w.expr(s.X), key,
				w.where(s.Pos()))
			w.depth--
		}
	}
	w.block(s.Body)
	w.leave(t)
	w.rows.in = nil
	w.line("};")
	w.line("spmd::elements<%d, %d, %d, I>(%s, %s%s);",
		w.rows.threads, w.rows.width, keep, end, body, strings.Join(uses, ""))
	for _, a := range e.result {
		t := w.ctypeOf(a.v.Pos(), a.v.Type())
		part := w.names[a.v]
		w.names[a.v] = outer[a.v]
		op := fmt.Sprintf("spmd::op_%s<%s>", a.op, t)
		w.line("%s = %s::of(%s, spmd::row_reduce<%s, %s, %d>(%s));",
			outer[a.v], op, outer[a.v], t, op, w.rows.threads, part)
	}
	w.depth--
	w.line("}")
}

// keeps returns how many packs of a loop a thread has in registers, or 0.
func (w *writer) keeps(e *elements, end string) int64 {
	keep := int64(0)
	done := map[types.Object]bool{}
	ast.Inspect(e.stmt.Body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if v := w.Info.Uses[id]; v != nil && w.rows.arrays[v] == kept && !done[v] {
				done[v] = true
				n := w.subst(v.Type()).Underlying().(*types.Array).Len()
				w.line("SPMD_KEPT(%s, %d, %s);", end, n, w.where(e.stmt.Pos()))
				keep = max(keep, w.rows.keptLen(n)/int64(w.rows.width))
			}
		}
		return true
	})
	return keep
}

// slices returns the keys of own, in the order of their declarations.
func (e *elements) slices() (all []types.Object) {
	for v := range e.own {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b types.Object) int { return int(a.Pos() - b.Pos()) })
	return all
}

// RowsOf returns how many threads a row of a kernel has, or 0 if it is no kernel of rows.
func RowsOf(d *ast.FuncDecl) int {
	words, _ := source.Directive(d)
	for _, word := range words {
		if word == "rows" {
			return 256
		}
		var n int
		if k, err := fmt.Sscanf(word, "rows=%d", &n); k == 1 && err == nil {
			return n
		}
	}
	return 0
}
