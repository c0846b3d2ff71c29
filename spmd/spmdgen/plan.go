package main

import (
	"fmt"
	"go/types"
	"strings"

	"lockstep/spmd/spmdgen/internal/ir"
)

// plan says how the parameters of a kernel become those of its launch, the arguments of CUDA, and
// the variables of the host.
type plan struct {
	stream, out         string
	a, lo, hi           string // of the host's function, as acc and the two below
	acc, at             string
	extents             []string
	params, args        []string // of the function in Go; of CUDA
	host                []string // statements
	call                []string // arguments of the kernel in Go, behind its indices
	written, one, small uint64   // places among the arguments
}

// plan plans the parameters. They are the same for all instances, in terms of the type parameter.
func (g *goFile) plan(k *kernel) plan {
	taken := map[string]bool{"i": true, "j": true, "k": true}
	if l := k.decl.Type.TypeParams; l != nil {
		taken[l.List[0].Names[0].Name] = true
	}
	unused := func(n string) string { // also by the package, by what it imports, and by Go
		for taken[n] || types.Universe.Lookup(n) != nil || g.Pkg.Scope().Lookup(n) != nil || g.importsName(n) {
			n += "_"
		}
		taken[n] = true
		return n
	}
	for i := range k.params {
		k.params[i].name = unused(k.params[i].v.Name())
	}
	var p plan
	p.stream = unused("s")
	p.params = append(p.params, p.stream+" *spmd.Stream")
	if k.op != "" {
		r := k.fn.Signature().Results().At(0)
		p.out = r.Name()
		if p.out == "" || p.out == "_" {
			p.out = "out"
		}
		p.out = unused(p.out)
		p.params = append(p.params, fmt.Sprintf("%s spmd.Buffer[%s]", p.out, g.typeText(r.Type())))
	}
	if k.dims == 1 {
		p.extents = []string{unused("n")}
	} else {
		for _, i := range indices[:k.dims] {
			p.extents = append(p.extents, unused("n"+i))
		}
	}
	for _, e := range p.extents {
		p.params = append(p.params, e+" int")
		p.args = append(p.args, "spmd.I64("+e+")")
	}
	if k.op != "" {
		p.written |= 1 << len(p.args)
		p.one |= 1 << len(p.args)
		p.args = append(p.args, p.out+".Arg()")
	}
	p.a, p.lo, p.hi, p.acc, p.at = unused("args"), unused("lo"), unused("hi"), unused("acc"), unused("at")
	for i := range k.params {
		g.param(&p, &k.params[i])
	}
	p.args = append(p.args, "gokernel.Report("+p.stream+")")
	if len(p.args) > 64 {
		g.Refuse(k.decl.Pos(), "%s: a kernel has at most 64 arguments in CUDA, of which a slice is two: put numbers "+
			"into a struct", k.fn.Name())
	}
	return p
}

// importsName reports whether a name is that of an imported package.
func (g *goFile) importsName(n string) bool {
	for path := range g.imports {
		if path == n || strings.HasSuffix(path, "/"+n) {
			return true
		}
	}
	return false
}

// param adds one parameter to the plan.
func (g *goFile) param(p *plan, q *param) {
	n, at := q.name, len(p.args)
	generic := q.v.Type() // in terms of the type parameter
	text := g.typeText(generic)
	p.call = append(p.call, n)
	if q.written {
		p.written |= 1 << at
	}
	if q.small {
		p.small |= 1 << at
	}
	switch q.kind {
	case slice:
		elem, buffer, arg := g.typeText(generic.Underlying().(*types.Slice).Elem()), "Buffer", ".Arg()"
		values := "ArgSlice"
		if q.structs {
			buffer, arg, values = "Structs", ".Bytes().Arg()", "ArgStructs"
		}
		p.params = append(p.params, fmt.Sprintf("%s spmd.%s[%s]", n, buffer, elem))
		p.args = append(p.args, n+arg, "spmd.I64("+n+".Len())")
		p.host = append(p.host, fmt.Sprintf("%s := spmd.%s[%s](%s, %d)", n, values, elem, p.a, at))
	case pointer:
		elem := g.typeText(generic.Underlying().(*types.Pointer).Elem())
		p.one |= 1 << at
		p.params = append(p.params, fmt.Sprintf("%s spmd.Buffer[%s]", n, elem))
		p.args = append(p.args, n+".Arg()")
		p.host = append(p.host, fmt.Sprintf("%s := &spmd.ArgSlice[%s](%s, %d)[0]", n, elem, p.a, at))
	case structure:
		p.params = append(p.params, n+" "+text)
		p.args = append(p.args, "spmd.Struct("+n+")")
		p.host = append(p.host, fmt.Sprintf("%s := spmd.ArgStruct[%s](%s, %d)", n, text, p.a, at))
	default:
		p.params = append(p.params, n+" "+text)
		arg, value := "spmd.Scalar("+n+")", fmt.Sprintf("spmd.ArgScalar[%s](%s, %d)", text, p.a, at)
		b, basic := types.Unalias(generic).(*types.Basic)
		small := ir.SmallFloat(q.t)
		_, isParam := types.Unalias(generic).(*types.TypeParam)
		switch {
		case isParam || small:
		case !basic:
			under := q.t.Underlying().(*types.Basic)
			arg, value = g.numberAs(under, p.a, under.Name()+"("+n+")", at)
			value = text + "(" + value + ")"
		default:
			arg, value = g.numberAs(b, p.a, n, at)
		}
		p.args = append(p.args, arg)
		p.host = append(p.host, fmt.Sprintf("%s := %s", n, value))
	}
}

// numberAs returns a number as an argument, and the code that reads it again.
func (g *goFile) numberAs(b *types.Basic, a, n string, at int) (arg, value string) {
	switch b.Kind() {
	case types.Int:
		return "spmd.I64(" + n + ")", fmt.Sprintf("%s.I64(%d)", a, at)
	case types.Uint:
		return "spmd.Scalar(uint64(" + n + "))", fmt.Sprintf("uint(%s.U64(%d))", a, at)
	case types.Bool:
		return "spmd.Bool(" + n + ")", fmt.Sprintf("%s.Bool(%d)", a, at)
	}
	return "spmd.Scalar(" + n + ")", fmt.Sprintf("spmd.ArgScalar[%s](%s, %d)", b.Name(), a, at)
}
