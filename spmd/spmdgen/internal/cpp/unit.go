package cpp

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"lockstep/internal/source"
)

// Unit is the CUDA source of a package, as it grows.
type Unit struct {
	*source.Checked
	funcs   map[string]*Function // instances by their names in C++
	Order   []*Function          // callees first
	Structs []string             // definitions, those of fields first
	named   map[*types.TypeName]string
	used    map[string]bool // names of declarations that the source is made of
	working []*types.Func   // functions whose bodies are being translated
}

func New(c *source.Checked) *Unit {
	return &Unit{Checked: c, funcs: map[string]*Function{}, named: map[*types.TypeName]string{},
		used: map[string]bool{}}
}

// Names returns the declarations that the source is made of.
func (u *Unit) Names() []string { return slices.Sorted(maps.Keys(u.used)) }

// TypeOf returns the type of a variable in an instance of a function.
func TypeOf(v *types.Var, sig *types.Signature, args []types.Type) types.Type {
	w := &writer{params: sig.TypeParams(), args: args}
	return w.subst(v.Type())
}

// Qualifier names packages as generated code does: spmd's inside is spmd's.
func Qualifier(p *types.Package) string {
	if p.Path() == "lockstep/internal/elem" {
		return "spmd"
	}
	return p.Name()
}

// GoType returns a type as Go writes it.
func GoType(t types.Type) string { return types.TypeString(t, Qualifier) }

// Function is one instance of a Go function.
type Function struct {
	Name    string // in C++
	Results []types.Type
	Text    string
	proto   string
	Written []bool // the parameters, slices and pointers, that it writes through; a receiver comes first
	Loops   bool   // it, or what it calls, has a loop
	Size    int    // nodes of its syntax, with those of what it calls
	Own     map[int]*OwnedUse
	Guarded bool // there is a function that says whether it does nothing
}

func (u *Unit) Refuse(at token.Pos, format string, a ...any) {
	panic(&source.Refusal{At: u.Fset.Position(at), What: fmt.Sprintf(format, a...)})
}

// use notes that the source depends on a declaration of the package.
func (u *Unit) use(obj types.Object) {
	if obj.Pkg() != u.Pkg || obj.Parent() != nil && obj.Parent() != u.Pkg.Scope() {
		return
	}
	name := obj.Name()
	if f, ok := obj.(*types.Func); ok && f.Signature().Recv() != nil {
		name = typeName(f.Signature().Recv().Type()) + "." + name
	}
	d, ok := u.Decls[name]
	if !ok || u.used[name] {
		return
	}
	u.used[name] = true
	if gen, ok := d.Node.(*ast.GenDecl); ok { // what a constant is computed from
		ast.Inspect(gen, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if o := u.Info.Uses[id]; o != nil {
					u.use(o)
				}
			}
			return true
		})
	}
}

// typeName returns the name of a named type, or of the type behind a pointer.
func typeName(t types.Type) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		return n.Obj().Name()
	}
	return ""
}

// basics are the types of Go that GPUs have, in C++.
var basics = map[types.BasicKind]string{
	types.Bool: "bool", types.Int: "int64_t", types.Int8: "int8_t", types.Int16: "int16_t", types.Int32: "int32_t",
	types.Int64: "int64_t", types.Uint: "uint64_t", types.Uint8: "uint8_t", types.Uint16: "uint16_t",
	types.Uint32: "uint32_t", types.Uint64: "uint64_t", types.Float32: "float", types.Float64: "double",
	types.Complex64: "spmd::complex<float>", types.Complex128: "spmd::complex<double>",
	types.UntypedComplex: "spmd::complex<double>", types.UntypedInt: "int64_t", types.UntypedFloat: "double",
	types.UntypedBool: "bool", types.UntypedRune: "int32_t",
}

// smallFloats are the types of package spmd that spmd.cuh has.
var smallFloats = map[string]string{"BF16": "bf16", "F16": "f16", "F8E4M3": "f8e4m3", "F8E5M2": "f8e5m2"}

// SmallFloat returns the name in C++ of a type such as spmd.BF16.
func SmallFloat(t types.Type) (string, bool) {
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != "lockstep/internal/elem" {
		return "", false
	}
	c, ok := smallFloats[n.Obj().Name()]
	return c, ok
}

// CType returns the type in C++. Slices depend on the type I of indices, which every function has
// as a parameter of its template.
func (u *Unit) CType(at token.Pos, t types.Type) string {
	t = types.Unalias(t)
	if c, ok := SmallFloat(t); ok {
		return c
	}
	if n, ok := t.(*types.Named); ok {
		if s, ok := n.Underlying().(*types.Struct); ok {
			return u.structure(at, n, s)
		}
		if n.Obj().Pkg() == u.Pkg {
			u.use(n.Obj())
		}
	}
	switch t := t.Underlying().(type) {
	case *types.Basic:
		if c, ok := basics[t.Kind()]; ok {
			return c
		}
	case *types.Slice:
		return "spmd::slice<" + u.CType(at, t.Elem()) + ", I>"
	case *types.Array:
		return fmt.Sprintf("spmd::array<%s, %d>", u.CType(at, t.Elem()), t.Len())
	case *types.Pointer:
		return u.CType(at, t.Elem()) + " *"
	}
	u.Refuse(at, "a kernel cannot use the type %s: GPUs have integers, floats, complex numbers, bool, and arrays, "+
		"structs, slices and pointers of them", types.TypeString(t, types.RelativeTo(u.Pkg)))
	return ""
}

// structure defines a struct in C++, with the layout of Go's, and returns its name.
func (u *Unit) structure(at token.Pos, n *types.Named, s *types.Struct) string {
	if c, ok := u.named[n.Obj()]; ok {
		return c
	}
	if n.Obj().Pkg() != u.Pkg || n.TypeArgs().Len() > 0 {
		u.Refuse(at, "a kernel cannot use the type %s: structs are of the same package, and without type parameters",
			types.TypeString(n, types.RelativeTo(u.Pkg)))
	}
	u.use(n.Obj())
	name := Safe(n.Obj().Name())
	u.named[n.Obj()] = "go::" + name
	var b strings.Builder
	fmt.Fprintf(&b, "struct %s {\n", name)
	for i := range s.NumFields() {
		f := s.Field(i)
		if f.Embedded() || f.Name() == "_" {
			u.Refuse(f.Pos(), "a kernel cannot use struct %s: its fields are to have names", n.Obj().Name())
		}
		switch f.Type().Underlying().(type) {
		case *types.Slice, *types.Pointer:
			u.Refuse(f.Pos(), "a kernel cannot use struct %s: field %s points to memory of the host",
				n.Obj().Name(), f.Name())
		}
		fmt.Fprintf(&b, "\t%s %s;\n", u.CType(f.Pos(), f.Type()), Safe(f.Name()))
	}
	size := types.SizesFor("gc", "amd64").Sizeof(n)
	fmt.Fprintf(&b, "};\nstatic_assert(sizeof(%s) == %d, \"the layout of Go\");\n", name, max(size, 1))
	u.Structs = append(u.Structs, b.String())
	return u.named[n.Obj()]
}

// Reserved are names that mean something in C++, CUDA or the header.
var Reserved = strings.Fields(
	`alignas alignof and and_eq asm auto bitand bitor bool catch char char16_t char32_t class compl const_cast
	constexpr decltype delete do double dynamic_cast enum explicit export extern false float friend inline int long mutable namespace new noexcept not
	not_eq nullptr operator or or_eq private protected public register reinterpret_cast short signed sizeof static static_assert static_cast template
	this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq const I r_ spmd
	threadIdx blockIdx blockDim gridDim warpSize int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t bf16 f16 f8e4m3 f8e5m2 mix
	to_float from_float AT AT_NARROW slot_`)

// TakenInC are functions of C. Other functions may not have their names.
var TakenInC = strings.Fields(
	`abs labs min max exp exp2 expm1 log log2 log10 log1p pow sqrt cbrt hypot sin cos tan asin acos atan atan2 sinh cosh
	tanh asinh acosh atanh floor ceil trunc round rint fmod remainder fma erf erfc tgamma lgamma copysign ldexp frexp modf j0 j1 y0 y1 norm
	clock printf malloc free memcpy memset assert main go`)

// Safe returns a name that C++ allows for a variable or field.
func Safe(name string) string {
	if slices.Contains(Reserved, name) {
		return name + "_"
	}
	for _, r := range name {
		if r > 127 {
			return fmt.Sprintf("x%x", name)
		}
	}
	return name
}

// Translate returns the translated instance of a function of the package.
func (u *Unit) Translate(at token.Pos, f *types.Func, args []types.Type) *Function {
	name := f.Name()
	if recv := f.Signature().Recv(); recv != nil {
		name = typeName(recv.Type()) + "_" + name
	}
	for _, a := range args {
		name += "_" + InstanceName(a)
	}
	name = Safe(name)
	if done, ok := u.funcs[name]; ok {
		return done
	}
	if slices.Contains(u.working, f) {
		u.Refuse(at, "a kernel cannot call %s in %s: GPUs have no stack for recursion", f.Name(), f.Name())
	}
	key := f.Name()
	if recv := f.Signature().Recv(); recv != nil {
		key = typeName(recv.Type()) + "." + key
	}
	d, ok := u.Decls[key].Node.(*ast.FuncDecl)
	if !ok || d.Body == nil {
		u.Refuse(at, "a kernel cannot call %s: it has no body in Go", f.Name())
	}
	if RowsOf(d) > 0 && len(u.working) > 0 {
		u.Refuse(at, "a kernel cannot call %s: it is a kernel of rows", f.Name())
	}
	if r := u.Failure(d); r != nil {
		panic(r)
	}
	u.use(f)
	u.working = append(u.working, f)
	fn := &Function{Name: name}
	w := &writer{Unit: u, fn: fn, text: &strings.Builder{}, names: map[types.Object]string{}, taken: map[string]bool{},
		roots: map[types.Object][]int{}, twins: map[types.Object]string{}}
	if p := f.Signature().TypeParams(); p != nil {
		w.params, w.args = p, args
	}
	w.function(d, f)
	u.working = u.working[:len(u.working)-1]
	u.funcs[name] = fn
	u.Order = append(u.Order, fn)
	return fn
}

// InstanceName returns a type as a part of a name.
func InstanceName(t types.Type) string {
	return strings.NewReplacer(".", "_", "[", "_", "]", "_", "*", "p", "/",
		"_").Replace(types.TypeString(t, func(p *types.Package) string { return "" }))
}
