package main

import (
	"fmt"
	"go/token"
	"go/types"
	"strings"

	"lockstep/internal/source"
	"lockstep/spmd/spmdgen/internal/ir"
)

// named finds the function that a kernel's comment names for the reduction of its results.
func (u *unit) named(k *kernel, by string) {
	if by == "" {
		return
	}
	f, ok := u.Pkg.Scope().Lookup(by).(*types.Func)
	if ok && k.result != nil {
		sig := f.Signature()
		args := k.args[:min(len(k.args), sig.TypeParams().Len())]
		if sig.TypeParams().Len() <= len(k.args) && sig.Params().Len() == 2 && sig.Results().Len() == 1 &&
			k.op == "by" {
			ok = true
			for _, v := range []*types.Var{sig.Params().At(0), sig.Params().At(1), sig.Results().At(0)} {
				ok = ok && types.Identical(ir.TypeOf(v, sig, args), k.result)
			}
			if ok {
				k.by, k.byName = u.Translate(k.decl.Pos(), f, args), by
				return
			}
		}
	}
	u.Refuse(k.decl.Pos(), "%s reduce=%s: want the name of a function of two values of the type that %s returns, "+
		"which returns one", source.Mark, by, k.name)
}

// operation returns the reduction of a kernel in C++.
func (u *unit) operation(k *kernel) string {
	t := u.CType(token.NoPos, k.result)
	if k.by == nil {
		return fmt.Sprintf("spmd::op_%s<%s>", k.op, t)
	}
	return fmt.Sprintf("spmd::op_named<%s, by_%s>", t, k.name)
}

// reduction writes the loop of a kernel with reduced results, over all its indices as one.
func (u *unit) reduction(b *strings.Builder, k *kernel, index, out string, extents []string,
	call func(...string) string) {
	t := u.CType(token.NoPos, k.result)
	names, uses := "", ""
	if k.pack() > 1 {
		names, uses = k.uses()
	}
	fmt.Fprintf(b, "\tspmd::reduce<%s, %s, %d, %d, %s>(%s, %s, [&](int64_t at%s) {",
		t, u.operation(k), k.pack(), k.deep(), index, out, strings.Join(extents, " * "), names)
	switch k.dims {
	case 1:
		fmt.Fprintf(b, " return %s; ", call("at"))
	case 2:
		fmt.Fprintf(b, "\n\t\t%s row = (%s)at / (%s)%s;\n", index, index, index, extents[1])
		fmt.Fprintf(b, "\t\treturn %s;\n\t",
			call("(int64_t)row", fmt.Sprintf("(int64_t)((%s)at - row * (%s)%s)", index, index, extents[1])))
	default:
		fmt.Fprintf(b, "\n\t\t%s row = (%s)at / (%s)%s, plane = row / (%s)%s;\n",
			index, index, index, extents[2], index, extents[1])
		fmt.Fprintf(b, "\t\treturn %s;\n\t",
			call("(int64_t)plane", fmt.Sprintf("(int64_t)(row - plane * (%s)%s)", index, extents[1]),
				fmt.Sprintf("(int64_t)((%s)at - row * (%s)%s)", index, index, extents[2])))
	}
	fmt.Fprintf(b, "}%s);\n", uses)
}

// pack returns how many neighbouring indices a thread takes at once in a reduction.
func (k *kernel) pack() int {
	const largest = 150 // nodes of syntax
	if k.dims != 1 || k.op == "" || k.body.Loops || k.body.Size > largest || len(k.body.Own) == 0 {
		return 1
	}
	size := 2
	for i := range k.body.Own {
		size = max(size, k.elementSize(i))
	}
	return max(1, 16/size)
}

// deep returns how many of these packs are loaded before the first is used.
func (k *kernel) deep() int {
	if n := k.pack(); n == 1 || n > 4 {
		return 1
	}
	return max(1, 4/len(k.body.Own))
}

// elementSize returns the element size of the slice at a place among the parameters.
func (k *kernel) elementSize(i int) int {
	return int(types.SizesFor("gc", "amd64").Sizeof(k.params[i-k.dims].t.Underlying().(*types.Slice).Elem()))
}
