package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
	"testing"

	"lockstep/internal/source"
)

// checked are the functions that multiply what they have asked elem.Product about.
var checked = map[string]string{
	"spmd/gokernel Launch":     "Shape.check has asked",
	"spmd/attention Workspace": "Shape.check has asked",
	"spmd/blas Part":           "Matrix.check has asked",
	"spmd ShardOf":             "a part of a number is less",
}

// A size that a program gives may wrap in a product: elem.Product makes it, and refuses what no
// memory has. The exported functions of packages on spmd multiply none of their parameters.
func TestLengths(t *testing.T) {
	fset, met := token.NewFileSet(), map[string]bool{}
	from, _, err := source.Importer(fset, root, []string{module + "/spmd/..."})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.path, "spmd") || !public(p.path) || strings.HasPrefix(p.path, "spmd/spmd") {
			continue
		}
		files := p.parsed(t, fset)
		info := types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
			Types: map[ast.Expr]types.TypeAndValue{}}
		check := types.Config{Importer: from, FakeImportC: true}
		if _, err := check.Check(module+"/"+p.path, fset, files, &info); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !fn.Name.IsExported() {
					continue
				}
				for _, x := range products(fn, &info) {
					name := p.path + " " + fn.Name.Name
					met[name] = true
					if checked[name] == "" {
						t.Errorf("%s: %s multiplies its parameters: elem.Product does", fset.Position(x.Pos()), name)
					}
				}
			}
		}
	}
	for name := range checked {
		if !met[name] {
			t.Errorf("%s multiplies nothing", name)
		}
	}
}

// products returns the products of ints of a function in which its parameters are, or parts of
// them, which its caller gives.
func products(fn *ast.FuncDecl, info *types.Info) (all []*ast.BinaryExpr) {
	given := map[types.Object]bool{}
	for _, field := range fn.Type.Params.List {
		for _, name := range field.Names {
			given[info.Defs[name]] = true
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt: // elements of a parameter, too
			if x, ok := n.X.(*ast.Ident); ok && given[info.Uses[x]] {
				for _, v := range []ast.Expr{n.Key, n.Value} {
					if v, ok := v.(*ast.Ident); ok {
						given[info.Defs[v]] = true
					}
				}
			}
		case *ast.BinaryExpr:
			b, ok := info.Types[n].Type.(*types.Basic)
			if n.Op != token.MUL || !ok || b.Kind() != types.Int || info.Types[n].Value != nil {
				return true
			}
			ast.Inspect(n, func(m ast.Node) bool {
				_, call := m.(*ast.CallExpr) // of lengths that there are
				if x, ok := m.(*ast.Ident); ok && given[info.Uses[x]] && info.Uses[x] != nil {
					all = append(all, n)
				}
				return !call
			})
		}
		return true
	})
	return all
}
