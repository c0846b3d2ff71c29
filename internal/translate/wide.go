package translate

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"lockstep/internal/translate/source"
)

// A slice of which a kernel of one index uses no element but x[i] is moved 16 bytes at a time: a thread has several indices
// that follow each other, and of such slices a copy of these elements. The function that the kernel becomes is a template
// over the types of these slices.

// owned is what the function of a kernel does with such a slice.
type owned struct {
	read    bool // what it holds before matters
	written bool
}

// ownedSlices finds the parameters of a kernel that are such slices, by their places.
func (u *unit) ownedSlices(d *ast.FuncDecl, sig *types.Signature) map[int]*owned {
	if _, ok := source.Directive(d); !ok || d.Recv != nil || sig.Params().Len() < 2 || sig.Params().At(0).Name() != indices[0] || sig.Params().At(1).Name() == indices[1] {
		return nil
	}
	index := sig.Params().At(0)
	of := map[types.Object]*owned{}
	for i := 1; i < sig.Params().Len(); i++ {
		if _, ok := sig.Params().At(i).Type().Underlying().(*types.Slice); ok {
			of[sig.Params().At(i)] = &owned{}
		}
	}
	o := &ownership{unit: u, index: index, of: of}
	ast.Inspect(d.Body, o.visit)
	all := map[int]*owned{}
	for i := 1; i < sig.Params().Len(); i++ {
		if x := of[sig.Params().At(i)]; x != nil && (x.read || x.written) && !o.moves && !o.apart {
			all[i] = x
		}
	}
	body := d.Body.List
	if u.guard(d, sig, all) != nil {
		body = body[1:]
	}
	for i, x := range all {
		x.read = x.read || !o.sets(body, sig.Params().At(i))
	}
	return all
}

// ownership looks at a body.
type ownership struct {
	*unit
	index types.Object
	of    map[types.Object]*owned
	moves bool // the index changes
	apart bool // neighbouring threads read neighbouring elements of another slice, which they would not any more
}

// element returns the slice of which an expression is x[i].
func (o *ownership) element(e ast.Expr) types.Object {
	x, ok := e.(*ast.IndexExpr)
	if !ok {
		return nil
	}
	s, ok := x.X.(*ast.Ident)
	i, ok2 := x.Index.(*ast.Ident)
	if !ok || !ok2 || o.Info.Uses[i] != o.index || o.of[o.Info.Uses[s]] == nil {
		return nil
	}
	return o.Info.Uses[s]
}

func (o *ownership) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for _, l := range n.Lhs {
			switch v := o.element(l); {
			case v != nil:
				o.of[v].written = true
				o.of[v].read = o.of[v].read || n.Tok != token.ASSIGN
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
			*o.of[v] = owned{read: true, written: true}
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
			if b, ok := o.Info.Uses[id].(*types.Builtin); ok && b.Name() == "len" {
				_, plain := n.Args[0].(*ast.Ident)
				return !plain
			}
		}
	case *ast.IndexExpr:
		if v := o.element(n); v != nil {
			o.of[v].read = true
			return false
		}
		o.apart = o.apart || o.follows(n.Index)
	case *ast.Ident: // in any other place
		delete(o.of, o.Info.Uses[n])
	}
	return true
}

// follows says whether an index is another for each index of the kernel, in a way that neighbours have neighbours.
func (o *ownership) follows(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return o.follows(e.X)
	case *ast.Ident:
		return o.Info.Uses[e] == o.index
	case *ast.BinaryExpr:
		return (e.Op == token.ADD || e.Op == token.SUB || e.Op == token.MUL) && (o.follows(e.X) || o.follows(e.Y))
	}
	return false
}

func (o *ownership) changed(e ast.Expr) {
	if id, ok := e.(*ast.Ident); ok && o.Info.Uses[id] == o.index {
		o.moves = true
	}
}

// sets says whether statements assign v's element whatever way they take, before they return.
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

// given says whether a condition is len(v) > 0: of a slice of no elements nothing is stored.
func (o *ownership) given(e ast.Expr, v types.Object) bool {
	b, ok := e.(*ast.BinaryExpr)
	if !ok || b.Op != token.GTR || o.Info.Types[b.Y].Value == nil || o.Info.Types[b.Y].Value.String() != "0" {
		return false
	}
	c, ok := b.X.(*ast.CallExpr)
	if !ok || len(c.Args) != 1 {
		return false
	}
	fun, ok := c.Fun.(*ast.Ident)
	x, ok2 := c.Args[0].(*ast.Ident)
	return ok && ok2 && fun.Name == "len" && o.Info.Uses[x] == v
}

// leaves says whether a statement has a return or a branch in it.
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

// guard returns the condition under which a kernel does nothing, whatever its index: where it begins with if c { return }.
func (u *unit) guard(d *ast.FuncDecl, sig *types.Signature, own map[int]*owned) ast.Expr {
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
				depends = depends || u.Info.Uses[id] == sig.Params().At(i) && (i == 0 || own[i] != nil)
			}
		}
		return true
	})
	if depends {
		return nil
	}
	return s.Cond
}

// wide says how many indices that follow each other a thread takes at once, and how often; 0 where there is nothing to gain.
func (k *kernel) wide() (elements, packs int) {
	const largest = 800 // nodes of syntax
	if k.dims != 1 || k.op != "" || k.body.loops || k.body.size > largest || len(k.body.own) == 0 {
		return 0, 0
	}
	size, readers := 0, 0
	for i, o := range k.body.own {
		size = max(size, int(types.SizesFor("gc", "amd64").Sizeof(k.params[i-k.dims].t.Underlying().(*types.Slice).Elem())))
		if o.read {
			readers++
		}
	}
	if packs = 1; readers <= 2 {
		packs = 2
	}
	return 16 / size, packs
}

// packs writes what blocks do all of whose indices exist, where all such slices are aligned.
func (u *unit) packs(b *strings.Builder, k *kernel, index, extent string, unused func(string) string) {
	elements, packs := k.wide()
	if elements == 0 {
		return
	}
	first, p, e := unused("first_"), unused("p_"), unused("e_")
	var fits, declared, loads, stores, args, plain []string
	for i, q := range k.params {
		n := safe(q.v.Name())
		plain = append(plain, n)
		o := k.body.own[i+k.dims]
		if o == nil {
			args = append(args, n)
			continue
		}
		pack := unused(n + "_pack")
		fits = append(fits, fmt.Sprintf("spmd::fits<%d>(%s, %s)", elements, n, extent))
		declared = append(declared, fmt.Sprintf("\t\tspmd::pack<%s, %d> %s[%d];\n", q.c, elements, pack, packs))
		at := fmt.Sprintf("%s + %s * %d", first, p, elements)
		if o.read {
			loads = append(loads, fmt.Sprintf("\t\t\t%s[%s].load(%s, %s * spmd::THREADS);\n", pack, p, n, at))
		}
		if o.written {
			stores = append(stores, fmt.Sprintf("\t\t\t%s[%s].store(%s, %s * spmd::THREADS);\n", pack, p, n, at))
		}
		args = append(args, fmt.Sprintf("%s[%s].one(%s, %s)", pack, p, n, e))
	}
	fmt.Fprintf(b, "\tif (spmd::whole<%d>(%s) && %s) {\n", elements*packs, extent, strings.Join(fits, " && "))
	if k.body.guarded {
		fmt.Fprintf(b, "\t\tif (go::%s_skips_<%s>(SPMD_HERE_AND 0, %s)) return;\n", k.body.name, index, strings.Join(plain, ", "))
	}
	fmt.Fprintf(b, "\t\tconst int64_t %s = (int64_t)blockIdx.x * (%d * spmd::THREADS) + threadIdx.x * %d;\n%s", first, elements*packs, elements, strings.Join(declared, ""))
	loop := func(body []string) {
		if len(body) > 0 {
			fmt.Fprintf(b, "#pragma unroll\n\t\tfor (int %s = 0; %s < %d; %s++) {\n%s\t\t}\n", p, p, packs, p, strings.Join(body, ""))
		}
	}
	loop(loads)
	loop([]string{fmt.Sprintf("#pragma unroll\n\t\t\tfor (int %s = 0; %s < %d; %s++) go::%s<%s>(SPMD_HERE_AND %s + %s * %d * spmd::THREADS + %s, %s);\n",
		e, e, elements, e, k.body.name, index, first, p, elements, e, strings.Join(args, ", "))})
	loop(stores)
	b.WriteString("\t\treturn;\n\t}\n")
}
