package ccall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// counted are the places where a pointer becomes a number that stays in Go, or that nothing can
// make wrong. Places that compare it, or ask for its alignment, are allowed beside these.
var counted = []string{
	"cuda IPCHandle", // the difference of two
	"cuda/cublas alignment",
	"internal/ccall Address",
	"spmd Address",                         // of a Buffer, whose memory is not Go's
	"spmd/internal/job NudgeThread",        // in the arguments of a call in assembly
	"spmd/internal/coll Hidden",            // TestMakeKeepsNoCall
	"spmd/internal/exec Overlap",           // to find overlaps
	"spmd/internal/exec checkTensor",       // for a message
	"spmd/internal/exec/hostexec copiesOf", // to sort, and to find overlaps
	"spmd/internal/exec/hostexec describe", // for a message
	"spmd/internal/trace name",             // a hash
	"spmd/internal/transport reduce",
}

// Every pointer that is passed as a number goes through Address, which makes the compiler put its
// memory on the heap.
func TestNumbersOfPointers(t *testing.T) {
	var found []string
	for _, p := range load(t) {
		p.each(func(f *ast.FuncDecl, stack []ast.Node) {
			call, ok := stack[len(stack)-1].(*ast.CallExpr)
			if ok && p.numbers(call) && !compared(stack) {
				found = append(found, p.below+" "+f.Name.Name)
			}
		})
	}
	slices.Sort(found)
	for _, where := range slices.Compact(found) {
		if !slices.Contains(counted, where) {
			t.Errorf("%s makes a number of a pointer without ccall.Address", where)
		}
	}
	for _, where := range counted {
		if !slices.Contains(found, where) {
			t.Errorf("%s makes no number of a pointer any more", where)
		}
	}
}

// The compiler says that the memory of each parameter that a function passes as a number escapes.
func TestEscapes(t *testing.T) {
	pkgs := load(t)
	var build []string
	passed := map[string]string{} // "file:line: parameter" of functions
	for _, p := range pkgs {
		p.each(func(f *ast.FuncDecl, stack []ast.Node) {
			call, ok := stack[len(stack)-1].(*ast.CallExpr)
			if !ok || len(call.Args) != 1 ||
				!slices.Contains([]string{"Address", "Escape", "address", "addr"}, name(call.Fun)) {
				return
			}
			arg, ok := call.Args[0].(*ast.Ident)
			if !ok {
				return
			}
			for _, field := range f.Type.Params.List {
				for _, id := range field.Names {
					if p.info.Defs[id] != nil && p.info.Defs[id] == p.info.Uses[arg] && isPointer(p.info.TypeOf(id)) {
						at := p.set.Position(id.Pos())
						passed[fmt.Sprintf("%s:%d: %s", path.Join(p.ImportPath, filepath.Base(at.Filename)), at.Line,
							id.Name)] = f.Name.Name
						build = append(build, p.ImportPath)
					}
				}
			}
		})
	}
	if len(passed) < 50 {
		t.Fatalf("only %d parameters are passed as numbers: the test does not see them", len(passed))
	}
	leaks := report(t, build, `leaking param: (\w+)`)
	for _, where := range slices.Sorted(maps.Keys(passed)) {
		if !leaks[where] {
			t.Errorf("%s of %s is passed as a number, and may lie on a stack", where, passed[where])
		}
	}
}

// The compiler does not know that a Hidden call is passed to a Make, and leaves it on its caller's
// stack. So no Make keeps it, or passes it to something that the compiler does not know.
func TestMakeKeepsNoCall(t *testing.T) {
	var build []string
	makes := map[string]bool{}
	for _, p := range load(t) {
		for _, file := range p.files {
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Name.Name != "Make" || f.Recv == nil || len(f.Type.Params.List) != 1 {
					continue
				}
				id := f.Type.Params.List[0].Names[0]
				if p.info.TypeOf(id).String() != "*lockstep/spmd/internal/coll.Call" {
					continue
				}
				at := p.set.Position(id.Pos())
				makes[fmt.Sprintf("%s:%d: %s", path.Join(p.ImportPath, filepath.Base(at.Filename)), at.Line, id.Name)] =
					true
				build = append(build, p.ImportPath)
			}
		}
	}
	if len(makes) < 2 {
		t.Fatalf("only %d methods Make", len(makes))
	}
	for _, p := range load(t) { // the collector does not see what is hidden
		hides, keeps := map[string]int{}, map[string]int{}
		p.each(func(f *ast.FuncDecl, stack []ast.Node) {
			if call, ok := stack[len(stack)-1].(*ast.CallExpr); ok {
				switch name(call.Fun) {
				case "Hidden":
					hides[f.Name.Name]++
				case "KeepAlive":
					keeps[f.Name.Name]++
				}
			}
		})
		for f, n := range hides {
			if keeps[f] < n {
				t.Errorf("%s %s has a call Hidden without runtime.KeepAlive behind it", p.below, f)
			}
		}
	}
	kept := report(t, build, `leaking param: (\w+)`)
	known := report(t, build, `(?:leaking param content: (\w+)|(\w+) does not escape)`)
	for where := range makes {
		if kept[where] || !known[where] {
			t.Errorf("%s is kept by Make, or passed to an interface without Hidden", where)
		}
	}
}

// loaded is a package of the module with its types.
type loaded struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
	Module                  *struct{ Path string }

	below string
	set   *token.FileSet
	files []*ast.File
	info  *types.Info
}

// load reads the packages of the module that import unsafe, once.
func load(t *testing.T) []*loaded {
	t.Helper()
	if all == nil {
		all = read(t)
	}
	return all
}

var all []*loaded

func read(t *testing.T) []*loaded {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles,CgoFiles,Module", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	exports := map[string]string{}
	var all []*loaded
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(loaded)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Path == "lockstep" {
			all = append(all, p)
		}
	}
	set := token.NewFileSet()
	from := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	all = slices.DeleteFunc(all, func(p *loaded) bool {
		hides := false
		for _, name := range append(p.GoFiles, p.CgoFiles...) {
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			testkit.Must(t, err)
			for _, i := range file.Imports {
				hides = hides || i.Path.Value == `"unsafe"`
			}
			p.files = append(p.files, file)
		}
		return !hides
	})
	for _, p := range all {
		p.below, p.set = strings.TrimPrefix(p.ImportPath, "lockstep/"), set
		p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
			Uses: map[*ast.Ident]types.Object{}}
		// Names from C have no types here, which makes errors in the code that uses them.
		check := types.Config{Importer: from, FakeImportC: true, Error: func(error) {}}
		_, _ = check.Check(p.ImportPath, set, p.files, p.info)
	}
	return all
}

// each visits the nodes of all functions, with the nodes around each.
func (p *loaded) each(visit func(f *ast.FuncDecl, stack []ast.Node)) {
	for _, file := range p.files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			var stack []ast.Node
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if n == nil {
					stack = stack[:len(stack)-1]
					return true
				}
				stack = append(stack, n)
				visit(f, stack)
				return true
			})
		}
	}
}

// numbers says whether a call converts a pointer to a number, or reads pointers as numbers.
func (p *loaded) numbers(call *ast.CallExpr) bool {
	if len(call.Args) != 1 || !isPointer(p.info.TypeOf(call.Args[0])) {
		return false
	}
	if s, ok := call.Fun.(*ast.SelectorExpr); ok && name(s.X) == "C" {
		return strings.HasSuffix(s.Sel.Name, "_t") || strings.HasSuffix(s.Sel.Name, "_ptr")
	}
	to := p.info.Types[call.Fun]
	if !to.IsType() {
		return false
	}
	if at, ok := to.Type.Underlying().(*types.Pointer); ok {
		return isUintptr(at.Elem()) // whose pointers these are nobody knows
	}
	return isUintptr(to.Type)
}

func isPointer(t types.Type) bool { return isBasic(t, types.UnsafePointer) }
func isUintptr(t types.Type) bool { return isBasic(t, types.Uintptr) }

func isBasic(t types.Type, kind types.BasicKind) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Kind() == kind
}

// compared says whether the number is only compared, subtracted, or divided for its remainder.
func compared(stack []ast.Node) bool {
	if len(stack) < 2 {
		return false
	}
	b, ok := stack[len(stack)-2].(*ast.BinaryExpr)
	return ok && slices.Contains([]token.Token{token.REM, token.SUB, token.EQL, token.LSS, token.GEQ}, b.Op)
}

// name returns the last word of a name.
func name(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// report builds packages and returns what the compiler says about names: "file:line: name".
func report(t *testing.T, pkgs []string, pattern string) map[string]bool {
	t.Helper()
	slices.Sort(pkgs)
	args := append([]string{"build", "-trimpath", "-gcflags=-m", "-o", os.DevNull}, slices.Compact(pkgs)...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	line := regexp.MustCompile(`(?m)^(\S+\.go:\d+):\d+: ` + pattern + `$`)
	said := map[string]bool{}
	for _, m := range line.FindAllStringSubmatch(string(out), -1) {
		said[m[1]+": "+strings.Join(m[2:], "")] = true
	}
	return said
}
