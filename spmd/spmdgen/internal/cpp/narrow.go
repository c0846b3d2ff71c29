package cpp

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
)

// If all buffers are shorter than 2^31, indices are computed with 32 bits. Sums,
// differences and products are then right modulo 2^32, and so is an index in range. This
// pays if there are products.
//
// A variable that is such an index, and never changes, has a twin of the type I beside it. The
// compiler leaves out the unused one of the two.

// settled finds the local variables of a function that are assigned only in their declaration.
func (w *writer) settled(body *ast.BlockStmt) {
	w.once = map[types.Object]bool{}
	changed := map[types.Object]bool{}
	change := func(e ast.Expr) {
		if id, ok := e.(*ast.Ident); ok {
			if o := w.Info.Uses[id]; o != nil {
				changed[o] = true
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, l := range n.Lhs {
				change(l)
			}
		case *ast.IncDecStmt:
			change(n.X)
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				change(n.X)
			}
		case *ast.Ident:
			if o := w.Info.Defs[n]; o != nil && types.Identical(o.Type(), types.Typ[types.Int]) {
				w.once[o] = true
			}
		}
		return true
	})
	for o := range changed {
		delete(w.once, o)
	}
}

// multiplies reports whether an index has a product, in itself or in a variable with a twin.
func (w *writer) multiplies(e ast.Expr) bool {
	if w.Info.Types[e].Value != nil {
		return false
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return w.multiplies(e.X)
	case *ast.Ident:
		return w.twins[w.Info.ObjectOf(e)] != ""
	case *ast.BinaryExpr:
		return e.Op == token.MUL || (e.Op == token.ADD || e.Op == token.SUB) && (w.multiplies(e.X) || w.multiplies(e.Y))
	}
	return false
}

// twin declares the twin of a variable, if it needs one.
func (w *writer) twin(o types.Object, value ast.Expr) {
	if !w.once[o] || !w.multiplies(value) {
		return
	}
	name := w.fresh(w.name(o) + "_narrow")
	w.line("const I %s = %s;", name, w.narrow(value))
	w.twins[o] = name
}

// narrow writes an index in the type I.
func (w *writer) narrow(e ast.Expr) string {
	if w.Info.Types[e].Value == nil {
		switch e := e.(type) {
		case *ast.ParenExpr:
			return w.narrow(e.X)
		case *ast.Ident:
			if t := w.twins[w.Info.ObjectOf(e)]; t != "" {
				return t
			}
		case *ast.BinaryExpr:
			if b, ok := w.typeOf(e).Underlying().(*types.Basic); ok && b.Info()&types.IsInteger != 0 &&
				b.Kind() == types.Int && (e.Op == token.ADD || e.Op == token.SUB || e.Op == token.MUL) {
				return fmt.Sprintf("(%s %s %s)", w.narrow(e.X), e.Op, w.narrow(e.Y))
			}
		}
	}
	return "(I)" + parenthesized(w.as(e, types.Typ[types.Int]))
}
