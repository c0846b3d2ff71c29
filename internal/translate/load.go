package translate

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Output is the name of the file that Generate makes for a package.
const Output = "kernels_spmd.go"

// mark is the comment that makes a kernel of a function, hostMark one that names what runs on the host in its place.
const (
	mark     = "//spmd:kernel"
	hostMark = "//spmd:host"
)

// Refusal is what a kernel has and GPUs do not, and where.
type Refusal struct {
	At   token.Position
	What string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s:%d: %s", filepath.Base(r.At.Filename), r.At.Line, r.What)
}

// source is a package as it is parsed, without tests and without what Generate wrote.
type source struct {
	fset  *token.FileSet
	files []*ast.File
	decls map[string]decl // functions, types, constants and variables by their names, methods as Type.Method
}

// decl is one declaration at the level of the package.
type decl struct {
	node ast.Node
	name string
}

// parse reads the Go files of a folder.
func parse(dir string) (*source, error) {
	s := &source{fset: token.NewFileSet(), decls: map[string]decl{}}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		if base := filepath.Base(name); base == Output || strings.HasSuffix(base, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(s.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, f)
		for _, d := range f.Decls {
			s.declare(d)
		}
	}
	return s, nil
}

func (s *source) declare(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil && len(d.Recv.List) == 1 {
			name = receiver(d.Recv.List[0].Type) + "." + name
		}
		s.decls[name] = decl{d, name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.decls[spec.Name.Name] = decl{spec, spec.Name.Name}
			case *ast.ValueSpec:
				for _, n := range spec.Names {
					s.decls[n.Name] = decl{d, n.Name} // the whole of it: iota counts
				}
			}
		}
	}
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// kernels returns the functions that are kernels, in the order of files and lines.
func (s *source) kernels() []*ast.FuncDecl {
	var all []*ast.FuncDecl
	for _, f := range s.files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if _, ok := directive(fn); ok {
					all = append(all, fn)
				}
			}
		}
	}
	return all
}

// directive returns the words behind the mark of a kernel.
func directive(fn *ast.FuncDecl) ([]string, bool) { return marked(fn, mark) }

func marked(fn *ast.FuncDecl, mark string) ([]string, bool) {
	if fn.Doc == nil {
		return nil, false
	}
	for _, c := range fn.Doc.List {
		if rest, ok := strings.CutPrefix(c.Text, mark); ok && (rest == "" || rest[0] == ' ') {
			return strings.Fields(rest), true
		}
	}
	return nil, false
}

// checked is a package with types.
type checked struct {
	*source
	pkg    *types.Package
	info   *types.Info
	errors []types.Error
}

// check finds the types of a package. Errors are kept: what launches the kernels does not compile before Generate has run.
func (s *source) check(dir string) (*checked, error) {
	find, err := exports(dir, s.files)
	if err != nil {
		return nil, err
	}
	c := &checked{source: s, info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Instances: map[*ast.Ident]types.Instance{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Implicits: map[ast.Node]types.Object{}}}
	conf := types.Config{Importer: importer.ForCompiler(s.fset, "gc", find), FakeImportC: true, Sizes: types.SizesFor("gc", "amd64"), Error: func(err error) {
		var e types.Error
		if errors.As(err, &e) && !e.Soft {
			c.errors = append(c.errors, e)
		}
	}}
	c.pkg, _ = conf.Check(s.files[0].Name.Name, s.fset, s.files, c.info) // its error is the first of those kept
	return c, nil
}

// failure returns the error that lies in a function or a type, if there is one.
func (c *checked) failure(n ast.Node) *Refusal {
	for _, e := range c.errors {
		if n.Pos() <= e.Pos && e.Pos < n.End() {
			return &Refusal{c.fset.Position(e.Pos), e.Msg}
		}
	}
	return nil
}

// exports returns what opens the compiler's tables of the packages that files import. The go command makes them.
func exports(dir string, files []*ast.File) (func(path string) (io.ReadCloser, error), error) {
	var imports []string
	for _, f := range files {
		for _, i := range f.Imports {
			if path := strings.Trim(i.Path.Value, `"`); path != "C" && path != "unsafe" && !slices.Contains(imports, path) {
				imports = append(imports, path)
			}
		}
	}
	at := map[string]string{}
	if len(imports) > 0 {
		slices.Sort(imports)
		cmd := exec.Command("go", append([]string{"list", "-e", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}", "--"}, imports...)...)
		cmd.Dir = dir
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("go list: %w\n%s", err, &errs)
		}
		for line := range strings.Lines(out.String()) {
			if path, file, ok := strings.Cut(strings.TrimSpace(line), "="); ok && file != "" {
				at[path] = file
			}
		}
	}
	return func(path string) (io.ReadCloser, error) {
		file, ok := at[path]
		if !ok {
			return nil, fmt.Errorf("package %s does not compile", path)
		}
		return os.Open(file)
	}, nil
}
