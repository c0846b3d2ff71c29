// Package cpp prints kernels in their normal form as CUDA C++.
package cpp

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"lockstep/spmd/spmdgen/internal/ir"
)

// Unit is the CUDA source of a package, as it grows.
//
// A name of Go ends with _ in C++, where no macro, no keyword and no function of a library does.
// Names that Go has not end otherwise.
type Unit struct {
	*ir.Unit
	structs []string // definitions, those of fields first
	names   map[any]string
	taken   map[string]bool
	calls   map[*ir.Function]string // what a call writes, without its arguments
	types   []types.Type            // what the type parameters of what is printed are
}

func New(u *ir.Unit) *Unit {
	return &Unit{Unit: u, names: map[any]string{}, taken: map[string]bool{}, calls: map[*ir.Function]string{}}
}

// Name returns what a name of Go is in C++.
func Name(name string) string {
	for _, r := range name {
		if r > 127 {
			return fmt.Sprintf("x%x_u", name)
		}
	}
	return name + "_"
}

// unique returns the name in C++ of a function or type, which no other has.
func (u *Unit) unique(of any, name string) string {
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

// Source returns the structs and the functions, callees first.
func (u *Unit) Source() string {
	var b strings.Builder
	for i, f := range u.Order {
		if !slices.ContainsFunc(u.Order[:i], func(o *ir.Function) bool { return o.Of == f.Of }) {
			b.WriteString(u.functions(f.Of))
		}
	}
	return "namespace go {\n" + strings.Join(append(u.structs, b.String()), "") + "} // namespace go\n"
}

// functions prints the instances of a Go function.
func (u *Unit) functions(of *types.Func) (all string) {
	name := of.Name()
	if recv := of.Signature().Recv(); recv != nil {
		name = ir.TypeName(recv.Type()) + "_" + name
	}
	list := slices.DeleteFunc(slices.Clone(u.Order), func(f *ir.Function) bool { return f.Of != of })
	var args [][]types.Type
	for _, f := range list {
		args = append(args, f.Args)
	}
	texts, one := u.Instances(args, func(i int) string { return u.print(list[i]) })
	for i, f := range list {
		n, call := name, ""
		for _, a := range f.Args {
			if one {
				call += u.CType(of.Pos(), a) + ", "
			} else {
				n += "_" + InstanceName(a)
			}
		}
		if one {
			n = u.unique(of, n)
		} else {
			n = u.unique(f, n)
		}
		u.calls[f] = "go::" + n + "<" + call + "I>"
		if i < len(texts) {
			all += strings.ReplaceAll(texts[i], self, n)
		}
	}
	return all
}

// self stands for the name of a function in its own text.
const self = "\x00"

// Call returns what calls a function, up to its arguments.
func (u *Unit) Call(f *ir.Function) string { return u.calls[f] }

// Skips is Call of the function that says whether a kernel with a guard does nothing.
func (u *Unit) Skips(f *ir.Function) string { return strings.Replace(u.calls[f], "<", "skips<", 1) }

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
	name := u.unique(n.Obj(), n.Obj().Name())
	if !done {
		var b strings.Builder
		fmt.Fprintf(&b, "struct %s {\n", name)
		for f := range s.Fields() {
			fmt.Fprintf(&b, "\t%s;\n", declare(u.CType(f.Pos(), f.Type()), Name(f.Name())))
		}
		fmt.Fprintf(&b, "};\nstatic_assert(sizeof(%s) == %d, \"the layout of Go\");\n", name,
			types.SizesFor("gc", "amd64").Sizeof(n))
		u.structs = append(u.structs, b.String())
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
