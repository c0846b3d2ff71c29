// Package cpp prints kernels in their normal form as CUDA C++.
package cpp

import (
	"fmt"
	"go/token"
	"go/types"
	"strings"

	"lockstep/spmd/spmdgen/internal/ir"
)

// Unit is the CUDA source of a package, as it grows.
//
// A name of Go ends with _ in C++, where no macro, no keyword and no function of a library does.
// Names that Go has not end otherwise.
type Unit struct {
	*ir.Unit
	Structs []string // definitions, those of fields first
	names   map[any]string
	taken   map[string]bool
}

func New(u *ir.Unit) *Unit { return &Unit{Unit: u, names: map[any]string{}, taken: map[string]bool{}} }

// Name returns what a name of Go is in C++.
func Name(name string) string {
	for _, r := range name {
		if r > 127 {
			return fmt.Sprintf("x%x_u", name)
		}
	}
	return name + "_"
}

// Unique returns the name in C++ of a function or type, which no other has.
func (u *Unit) Unique(of any, name string) string {
	if n, ok := u.names[of]; ok {
		return n
	}
	n := Name(name)
	for k := 2; u.taken[n]; k++ {
		n = Name(fmt.Sprintf("%s_%d", name, k))
	}
	u.taken[n], u.names[of] = true, n
	return n
}

// Function returns the name of a function in C++.
func (u *Unit) Function(f *ir.Function) string {
	name := f.Of.Name()
	if recv := f.Of.Signature().Recv(); recv != nil {
		name = ir.TypeName(recv.Type()) + "_" + name
	}
	for _, a := range f.Args {
		name += "_" + InstanceName(a)
	}
	return u.Unique(f, name)
}

// InstanceName returns a type as a part of a name.
func InstanceName(t types.Type) string {
	return strings.NewReplacer(".", "_", "[", "_", "]", "_", "*", "p", "/",
		"_").Replace(types.TypeString(t, func(p *types.Package) string { return "" }))
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

// CType returns the type in C++. Slices depend on the type I of indices, which every function has
// as a parameter of its template.
func (u *Unit) CType(at token.Pos, t types.Type) string {
	u.Allow(at, t)
	if ir.SmallFloat(t) {
		return smallFloats[ir.TypeName(t)]
	}
	switch s := t.Underlying().(type) {
	case *types.Struct:
		return u.structure(at, types.Unalias(t).(*types.Named), s)
	case *types.Slice:
		return "spmd::slice<" + u.CType(at, s.Elem()) + ", I>"
	case *types.Array:
		return fmt.Sprintf("spmd::array<%s, %d>", u.CType(at, s.Elem()), s.Len())
	case *types.Pointer:
		return u.CType(at, s.Elem()) + " *"
	}
	return basics[t.Underlying().(*types.Basic).Kind()]
}

// structure defines a struct in C++, with the layout of Go's, and returns its name.
func (u *Unit) structure(at token.Pos, n *types.Named, s *types.Struct) string {
	_, done := u.names[n.Obj()]
	name := u.Unique(n.Obj(), n.Obj().Name())
	if !done {
		var b strings.Builder
		fmt.Fprintf(&b, "struct %s {\n", name)
		for f := range s.Fields() {
			fmt.Fprintf(&b, "\t%s;\n", declare(u.CType(f.Pos(), f.Type()), Name(f.Name())))
		}
		fmt.Fprintf(&b, "};\nstatic_assert(sizeof(%s) == %d, \"the layout of Go\");\n", name,
			types.SizesFor("gc", "amd64").Sizeof(n))
		u.Structs = append(u.Structs, b.String())
	}
	return "go::" + name
}

// declare returns the declaration of a variable.
func declare(ctype, name string) string {
	if strings.HasSuffix(ctype, "*") {
		return ctype + name
	}
	return ctype + " " + name
}
