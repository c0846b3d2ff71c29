package cpp

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"lockstep/internal/source"
)

// OwnedUse is how a function or a loop uses a slice of which it touches only the element of its own
// index.
type OwnedUse struct {
	Read    bool // what it holds before matters
	Written bool
}

// OwnedParameters finds the parameters of a kernel that are such slices, by their places.
func OwnedParameters(info *types.Info, d *ast.FuncDecl, sig *types.Signature) map[int]*OwnedUse {
	if _, ok := source.Directive(d); !ok || d.Recv != nil || sig.Params().Len() < 2 ||
		sig.Params().At(0).Name() != "i" || sig.Params().At(1).Name() == "j" {
		return nil
	}
	var slices []types.Object
	for i := 1; i < sig.Params().Len(); i++ {
		if _, ok := sig.Params().At(i).Type().Underlying().(*types.Slice); ok {
			slices = append(slices, sig.Params().At(i))
		}
	}
	of, o := find(info, sig.Params().At(0), slices, d.Body)
	all := map[int]*OwnedUse{}
	for i := 1; i < sig.Params().Len(); i++ {
		if x := of[sig.Params().At(i)]; x != nil && !o.moves && !o.apart {
			all[i] = x
		}
	}
	body := d.Body.List
	if OwnedGuard(info, d, sig, all) != nil {
		body = body[1:]
	}
	for i, x := range all {
		x.Read = x.Read || !o.sets(body, sig.Params().At(i))
	}
	return all
}

// OwnedInLoop finds such slices among those that a loop over index uses. apart says that it reads
// neighbouring elements of others.
func OwnedInLoop(info *types.Info, index types.Object, slices []types.Object,
	body *ast.BlockStmt) (all map[types.Object]*OwnedUse, apart bool) {
	all, o := find(info, index, slices, body)
	for x, use := range all {
		use.Read = use.Read || !o.sets(body.List, x)
		if o.moves {
			delete(all, x)
		}
	}
	return all, o.apart
}

func find(info *types.Info, index types.Object, slices []types.Object,
	body *ast.BlockStmt) (map[types.Object]*OwnedUse, *ownership) {
	o := &ownership{Info: info, index: index, of: map[types.Object]*OwnedUse{}}
	for _, s := range slices {
		o.of[s] = &OwnedUse{}
	}
	ast.Inspect(body, o.visit)
	for s, use := range o.of {
		if !use.Read && !use.Written {
			delete(o.of, s)
		}
	}
	return o.of, o
}

// ownership examines a body.
type ownership struct {
	*types.Info
	index types.Object
	of    map[types.Object]*OwnedUse
	moves bool // the index changes
	apart bool // neighbouring threads read neighbouring elements of another slice, and would not any more
}

// element returns the slice x if an expression is x[i].
func (o *ownership) element(e ast.Expr) types.Object {
	x, ok := e.(*ast.IndexExpr)
	if !ok {
		return nil
	}
	s, ok := x.X.(*ast.Ident)
	i, ok2 := x.Index.(*ast.Ident)
	if !ok || !ok2 || o.Uses[i] != o.index || o.of[o.Uses[s]] == nil {
		return nil
	}
	return o.Uses[s]
}

func (o *ownership) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for _, l := range n.Lhs {
			switch v := o.element(l); {
			case v != nil:
				o.of[v].Written = true
				o.of[v].Read = o.of[v].Read || n.Tok != token.ASSIGN
			default:
				o.changed(l)
				ast.Inspect(l, o.visit)
			}
		}
		for _, r := range n.Rhs {
			ast.Inspect(r, o.visit)
		}
		return false
	case *ast.IncDecStmt:
		if v := o.element(n.X); v != nil {
			*o.of[v] = OwnedUse{Read: true, Written: true}
			return false
		}
		o.changed(n.X)
	case *ast.UnaryExpr:
		if v := o.element(n.X); v != nil && n.Op == token.AND {
			delete(o.of, v)
			return false
		}
		if n.Op == token.AND {
			o.changed(n.X)
		}
	case *ast.CallExpr: // len(x)
		if id, ok := n.Fun.(*ast.Ident); ok && len(n.Args) == 1 {
			if b, ok := o.Uses[id].(*types.Builtin); ok && b.Name() == "len" {
				_, plain := n.Args[0].(*ast.Ident)
				return !plain
			}
		}
	case *ast.IndexExpr:
		if v := o.element(n); v != nil {
			o.of[v].Read = true
			return false
		}
		if _, array := o.TypeOf(n.X).Underlying().(*types.Array); !array {
			o.apart = o.apart || o.follows(n.Index)
		}
	case *ast.Ident: // in any other place
		delete(o.of, o.Uses[n])
	}
	return true
}

// follows reports whether an index differs for each index of the kernel, and neighbours stay
// neighbours.
func (o *ownership) follows(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return o.follows(e.X)
	case *ast.Ident:
		return o.Uses[e] == o.index
	case *ast.BinaryExpr:
		return (e.Op == token.ADD || e.Op == token.SUB || e.Op == token.MUL) && (o.follows(e.X) || o.follows(e.Y))
	}
	return false
}

func (o *ownership) changed(e ast.Expr) {
	if id, ok := e.(*ast.Ident); ok && o.Uses[id] == o.index {
		o.moves = true
	}
}

// sets reports whether statements assign v's element on every way, before they return.
func (o *ownership) sets(list []ast.Stmt, v types.Object) bool {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.ASSIGN && slices.ContainsFunc(s.Lhs, func(l ast.Expr) bool { return o.element(l) == v }) {
				return true
			}
		case *ast.BlockStmt:
			if o.sets(s.List, v) {
				return true
			}
			if leaves(s) {
				return false
			}
		case *ast.IfStmt:
			other := false
			switch e := s.Else.(type) {
			case *ast.BlockStmt:
				other = o.sets(e.List, v)
			case *ast.IfStmt:
				other = o.sets([]ast.Stmt{e}, v)
			}
			if (other || o.given(s.Cond, v)) && o.sets(s.Body.List, v) {
				return true
			}
			if leaves(s) {
				return false
			}
		default:
			if leaves(s) {
				return false
			}
		}
	}
	return false
}

// given reports whether a condition is len(v) > 0: nothing is stored in a slice of no elements.
func (o *ownership) given(e ast.Expr, v types.Object) bool {
	b, ok := e.(*ast.BinaryExpr)
	if !ok || b.Op != token.GTR || o.Types[b.Y].Value == nil || o.Types[b.Y].Value.String() != "0" {
		return false
	}
	c, ok := b.X.(*ast.CallExpr)
	if !ok || len(c.Args) != 1 {
		return false
	}
	fun, ok := c.Fun.(*ast.Ident)
	x, ok2 := c.Args[0].(*ast.Ident)
	return ok && ok2 && fun.Name == "len" && o.Uses[x] == v
}

// leaves reports whether a statement has a return or a branch in it.
func leaves(s ast.Stmt) (found bool) {
	ast.Inspect(s, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.ReturnStmt, *ast.BranchStmt:
			found = true
		}
		return !found
	})
	return found
}

// OwnedGuard returns the condition c under which a kernel does nothing, for any index, if it
// begins with if c { return }.
func OwnedGuard(info *types.Info, d *ast.FuncDecl, sig *types.Signature, own map[int]*OwnedUse) ast.Expr {
	if len(own) == 0 || len(d.Body.List) == 0 {
		return nil
	}
	s, ok := d.Body.List[0].(*ast.IfStmt)
	if !ok || s.Init != nil || s.Else != nil || len(s.Body.List) != 1 {
		return nil
	}
	if r, ok := s.Body.List[0].(*ast.ReturnStmt); !ok || len(r.Results) > 0 {
		return nil
	}
	depends := false
	ast.Inspect(s.Cond, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			for i := range sig.Params().Len() {
				depends = depends || info.Uses[id] == sig.Params().At(i) && (i == 0 || own[i] != nil)
			}
		}
		return true
	})
	if depends {
		return nil
	}
	return s.Cond
}
