package ir

import (
	"go/ast"
	"go/token"
	"go/types"
)

// TypeOf returns the type of a variable in an instance of a function.
func TypeOf(v *types.Var, sig *types.Signature, args []types.Type) types.Type {
	l := &lowering{params: sig.TypeParams(), fn: &Function{Args: args}}
	return l.subst(v.Type())
}

// subst replaces type parameters by an instance's types.
func (l *lowering) subst(t types.Type) types.Type {
	switch t := types.Unalias(t).(type) {
	case *types.TypeParam:
		for i := range l.params.Len() {
			if l.params.At(i) == t {
				return l.fn.Args[i]
			}
		}
	case *types.Slice:
		return types.NewSlice(l.subst(t.Elem()))
	case *types.Array:
		return types.NewArray(l.subst(t.Elem()), t.Len())
	case *types.Pointer:
		return types.NewPointer(l.subst(t.Elem()))
	}
	return t
}

func (l *lowering) typeOf(e ast.Expr) types.Type {
	t := l.Info.TypeOf(e)
	if t == nil {
		l.Refuse(e.Pos(), "a kernel cannot use %s: its type is not known", types.ExprString(e))
	}
	return l.subst(t)
}

func (u *Unit) inPackage(t types.Type) string { return types.TypeString(t, types.RelativeTo(u.Pkg)) }

// A thread of a GPU has so many bytes for variables, and a block so many for those that its threads
// share.
const mostLocal, mostShared = 1 << 18, 48 << 10

// Allow refuses types that GPUs do not have.
func (u *Unit) Allow(at token.Pos, t types.Type) {
	if SmallFloat(t) {
		return
	}
	if _, array := t.Underlying().(*types.Array); array && (sizeOf(t) < 0 || sizeOf(t) > mostLocal) {
		u.Refuse(at, "a kernel cannot use the type %s: a thread has %d bytes for variables", u.inPackage(t), mostLocal)
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		if s, ok := n.Underlying().(*types.Struct); ok {
			u.allowStruct(at, n, s)
			return
		}
		if n.Obj().Parent() != nil && n.Obj().Pkg() != nil && n.Obj().Parent() != n.Obj().Pkg().Scope() {
			u.Refuse(at, "a kernel cannot declare a type: declare it outside of the function")
		}
	}
	elem := func(t types.Type, in string) {
		if holdsMemory(t) {
			u.Refuse(at, "a kernel cannot use the type %s: a %s holds no slices and pointers", u.inPackage(t), in)
		}
		u.Allow(at, t)
	}
	switch t := t.Underlying().(type) {
	case *types.Basic:
		if t.Info()&(types.IsNumeric|types.IsBoolean) != 0 && t.Kind() != types.Uintptr {
			return
		}
	case *types.Slice:
		elem(t.Elem(), "slice")
		return
	case *types.Pointer:
		elem(t.Elem(), "variable with a pointer to it")
		return
	case *types.Array:
		if t.Len() == 0 {
			u.Refuse(at, "a kernel cannot use the type %s: arrays have elements", u.inPackage(t))
		}
		u.Allow(at, t.Elem())
		return
	}
	u.Refuse(at, "a kernel cannot use the type %s: GPUs have integers, floats, complex numbers, bool, and arrays, "+
		"structs, slices and pointers of them", u.inPackage(t))
}

func (u *Unit) allowStruct(at token.Pos, n *types.Named, s *types.Struct) {
	if n.Obj().Pkg() != u.Pkg || n.TypeArgs().Len() > 0 || n.Obj().Parent() != u.Pkg.Scope() {
		u.Refuse(at, "a kernel cannot use the type %s: structs are of the same package, and without type parameters",
			u.inPackage(n))
	}
	if s.NumFields() == 0 {
		u.Refuse(at, "a kernel cannot use the type %s: structs have fields", u.inPackage(n))
	}
	for f := range s.Fields() {
		if f.Embedded() || f.Name() == "_" {
			u.Refuse(f.Pos(), "a kernel cannot use struct %s: its fields are to have names", n.Obj().Name())
		}
		if holdsMemory(f.Type()) {
			u.Refuse(f.Pos(), "a kernel cannot use struct %s: field %s points to memory of the host", n.Obj().Name(),
				f.Name())
		}
		u.Allow(f.Pos(), f.Type())
	}
}

// holdsMemory reports whether a value of a type may be, or hold, a slice or a pointer.
func holdsMemory(t types.Type) bool {
	switch t := t.Underlying().(type) {
	case *types.Slice, *types.Pointer:
		return true
	case *types.Array:
		return holdsMemory(t.Elem())
	}
	return false
}
