package source

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Output is the name of the file that Generate makes for the kernels of a package. TestOutput is
// that for kernels in its tests, which are a package of their own: x_test beside x.
const (
	Output     = "kernels_spmd.go"
	TestOutput = "kernels_spmd_test.go"
)

// Mark is the comment that makes a kernel of a function. HostMark names the function that runs on
// the host in its place. ToleranceMark says by how much its results may differ there.
const (
	Mark          = "//spmd:kernel"
	HostMark      = "//spmd:host"
	ToleranceMark = "//spmd:tolerance"
)

// Refusal is something in a kernel that GPUs lack, and its place.
type Refusal struct {
	At   token.Position
	What string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s:%d: %s", filepath.Base(r.At.Filename), r.At.Line, r.What)
}

// Source is a parsed package, without the file of Generate.
type Source struct {
	Output string
	Fset   *token.FileSet
	Files  []*ast.File
	Decls  map[string]Decl // functions, types, constants and variables by name, methods as Type.Method
}

// Decl is one declaration at the level of the package.
type Decl struct {
	Node ast.Node
	name string
}

// Parse reads the Go files of a folder whose kernels go to output: those of the package, or those
// of the package x_test of its tests. It takes the files that the compiler takes, by their
// constraints and the tags in GOFLAGS.
func Parse(dir, output string) (*Source, error) {
	s := &Source{Output: output, Fset: token.NewFileSet(), Decls: map[string]Decl{}}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	compiler := build.Default
	for _, flag := range strings.Fields(os.Getenv("GOFLAGS")) {
		if tags, ok := strings.CutPrefix(strings.TrimLeft(flag, "-"), "tags="); ok {
			compiler.BuildTags = strings.Split(tags, ",")
		}
	}
	for _, name := range names {
		if filepath.Base(name) == output || strings.HasSuffix(name, "_test.go") != (output == TestOutput) {
			continue
		}
		if ok, err := compiler.MatchFile(dir, filepath.Base(name)); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		f, err := parser.ParseFile(s.Fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if output == TestOutput && !strings.HasSuffix(f.Name.Name, "_test") {
			if all := kernels([]*ast.File{f}); len(all) > 0 {
				return nil, &Refusal{s.Fset.Position(all[0].Pos()), "a kernel in a test is of the package " +
					f.Name.Name + "_test"}
			}
			continue
		}
		s.Files = append(s.Files, f)
		for _, d := range f.Decls {
			s.declare(d)
		}
	}
	return s, nil
}

func (s *Source) declare(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil && len(d.Recv.List) == 1 {
			name = receiver(d.Recv.List[0].Type) + "." + name
		}
		s.Decls[name] = Decl{d, name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.Decls[spec.Name.Name] = Decl{spec, spec.Name.Name}
			case *ast.ValueSpec:
				for _, n := range spec.Names {
					s.Decls[n.Name] = Decl{d, n.Name} // the whole of it: iota counts
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// Kernels returns the functions that are kernels, in the order of files and lines.
func (s *Source) Kernels() []*ast.FuncDecl { return kernels(s.Files) }

func kernels(files []*ast.File) []*ast.FuncDecl {
	var all []*ast.FuncDecl
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if _, ok := Directive(fn); ok {
					all = append(all, fn)
				}
			}
		}
	}
	return all
}

// nearMark matches a comment that is one of the marks, or that somebody may have meant for one.
var nearMark = regexp.MustCompile(`^//(\s*)spmd:(\s*)(\w+)(\S?)`)

// CheckMarks refuses a comment that was meant for a mark and is none. It would be passed over
// without a word.
func (s *Source) CheckMarks() error {
	for _, f := range s.Files {
		of := map[*ast.Comment]ast.Node{} // those of functions
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Doc != nil {
				for _, c := range fn.Doc.List {
					of[c] = fn
				}
			}
		}
		type marked struct {
			fn   ast.Node
			mark string
		}
		seen := map[marked]bool{}
		for _, g := range f.Comments {
			for _, c := range g.List {
				m := nearMark.FindStringSubmatch(c.Text)
				if m == nil {
					continue
				}
				mark, what := "//spmd:"+m[3], ""
				switch known := mark == Mark || mark == HostMark || mark == ToleranceMark; {
				case !known && m[1]+m[2] == "":
					what = fmt.Sprintf("%s is no comment of spmdgen: there are %s, %s and %s",
						mark, Mark, HostMark, ToleranceMark)
				case !known:
				case m[1]+m[2] != "":
					what = fmt.Sprintf("write %s without a space", mark)
				case m[4] != "":
					what = fmt.Sprintf("write %s with a space behind it", mark)
				case of[c] == nil:
					what = mark + " belongs to no function: leave no empty line behind it"
				case seen[marked{of[c], mark}]:
					what = "the function has another " + mark
				}
				if what != "" {
					return &Refusal{s.Fset.Position(c.Pos()), what}
				}
				seen[marked{of[c], mark}] = true
			}
		}
	}
	return nil
}

// Directive returns the words behind the Mark of a kernel.
func Directive(fn *ast.FuncDecl) ([]string, bool) { return Marked(fn, Mark) }

func Marked(fn *ast.FuncDecl, comment string) ([]string, bool) {
	if fn.Doc == nil {
		return nil, false
	}
	for _, c := range fn.Doc.List {
		if rest, ok := strings.CutPrefix(c.Text, comment); ok && (rest == "" || strings.ContainsAny(rest[:1], " \t")) {
			return strings.Fields(rest), true
		}
	}
	return nil, false
}

type Checked struct {
	*Source
	Pkg    *types.Package
	Info   *types.Info
	errors []types.Error
	dir    string
}

// Check finds the types of a package. It keeps errors: code that launches the kernels does not
// compile before Generate has run.
func (s *Source) Check(dir string) (*Checked, error) {
	from, _, err := Importer(s.Fset, dir, importsOf(s.Files))
	if err != nil {
		return nil, err
	}
	c := &Checked{Source: s, dir: dir, Info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{},
		Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Instances: map[*ast.Ident]types.Instance{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
		Implicits: map[ast.Node]types.Object{}}}
	conf := types.Config{Importer: from, FakeImportC: true,
		Sizes: types.SizesFor("gc", "amd64"), Error: func(err error) {
			var e types.Error
			if errors.As(err, &e) && !e.Soft {
				c.errors = append(c.errors, e)
			}
		}}
	c.Pkg, _ = conf.Check(s.Files[0].Name.Name, s.Fset, s.Files, c.Info) // its error is the first of the kept ones
	return c, nil
}

// Fits says why a file does not compile as a part of the package, or means something of the package
// where it means Go's own. at is the place of what the package is to change, or of nothing.
func (c *Checked) Fits(text []byte) (at token.Pos, what string) {
	file, err := parser.ParseFile(c.Fset, c.Output, text, parser.SkipObjectResolution)
	if err != nil {
		return token.NoPos, err.Error()
	}
	whole := *c.Source
	whole.Files = append(slices.Clip(whole.Files), file)
	all, err := whole.Check(c.dir)
	if err != nil {
		return token.NoPos, err.Error()
	}
	place := func(name string) token.Pos {
		if o := c.Pkg.Scope().Lookup(name); o != nil {
			return o.Pos()
		}
		return token.NoPos
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && what == "" && types.Universe.Lookup(id.Name) != nil {
			if o := all.Info.Uses[id]; o != nil && o.Parent() == all.Pkg.Scope() {
				at = place(id.Name)
				what = "the package has a " + id.Name + " of its own, and a kernel that needs Go's: rename it"
			}
		}
		return true
	})
	for _, e := range all.errors {
		if what == "" && file.Pos() <= e.Pos && e.Pos < file.End() && !strings.HasPrefix(e.Msg, "could not import") {
			name, _, _ := strings.Cut(e.Msg, " ")
			at, what = place(name), e.Msg
			if name, ok := strings.CutPrefix(e.Msg, "\tother declaration of "); ok {
				at, what = place(name), "the package has a "+name+" of its own: rename it"
			}
		}
	}
	return at, what
}

// Failure returns the error that lies in a function or a type, if there is one.
func (c *Checked) Failure(n ast.Node) *Refusal {
	for _, e := range c.errors {
		if n.Pos() <= e.Pos && e.Pos < n.End() {
			return &Refusal{c.Fset.Position(e.Pos), e.Msg}
		}
	}
	return nil
}

// importsOf returns what files import.
func importsOf(files []*ast.File) (imports []string) {
	for _, f := range files {
		for _, i := range f.Imports {
			if path := strings.Trim(i.Path.Value, `"`); path != "C" && path != "unsafe" {
				imports = append(imports, path)
			}
		}
	}
	slices.Sort(imports)
	return slices.Compact(imports)
}

// Importer returns what finds the types of packages, which patterns of the go command name in dir,
// and of those that they import. The go command makes the compiler's tables of them. paths are what
// it found.
func Importer(set *token.FileSet, dir string, patterns []string) (from types.Importer, paths []string, err error) {
	at := map[string]string{}
	if len(patterns) > 0 {
		cmd := exec.Command("go", append([]string{"list", "-e", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}",
			"--"}, patterns...)...)
		cmd.Dir = dir
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return nil, nil, fmt.Errorf("go list: %w\n%s", err, &errs)
		}
		for line := range strings.Lines(out.String()) {
			if path, file, ok := strings.Cut(strings.TrimSpace(line), "="); ok && file != "" {
				at[path] = file
				paths = append(paths, path)
			}
		}
	}
	return importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		file, ok := at[path]
		if !ok {
			return nil, fmt.Errorf("package %s does not compile", path)
		}
		return os.Open(file)
	}), paths, nil
}
