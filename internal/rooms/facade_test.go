package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// exported returns how many names a declaration adds to those that a program can use: constants,
// variables, types, functions, and methods of exported types.
func exported(d ast.Decl) (n int) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && exportedReceiver(d) {
			n++
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() {
					n++
				}
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					if name.IsExported() {
						n++
					}
				}
			}
		}
	}
	return n
}

// TestFacade: package spmd has few names, for a program's author has to know them.
func TestFacade(t *testing.T) {
	const most = 170
	files, err := filepath.Glob(filepath.Join(root, "spmd", "*.go"))
	testkit.Must(t, err)
	n := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		testkit.Must(t, err)
		for _, d := range file.Decls {
			n += exported(d)
		}
	}
	if t.Logf("%d names", n); n < most/2 || n > most {
		t.Errorf("package spmd has %d exported names, at most %d are wanted", n, most)
	}
}
