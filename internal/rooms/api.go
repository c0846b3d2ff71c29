package main

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"lockstep/internal/source"
)

// promised is the API that no later version changes, a line for each name, as in Go's own api
// folder.
const promised = "api/1.0.txt"

// onSpmd reports whether programs may import a package: spmd, and those on it.
func onSpmd(path string) bool {
	return path == "spmd" || strings.HasPrefix(path, "spmd/") && !strings.Contains(path, "/internal")
}

// api returns the packages in dir that programs import. Commands export nothing.
func api(dir string) (packages []*types.Package, err error) {
	from, paths, err := source.Importer(token.NewFileSet(), dir, []string{module + "/spmd/..."})
	for _, path := range paths {
		if !strings.HasPrefix(path, module+"/") || !onSpmd(below(path)) || err != nil {
			continue
		}
		var p *types.Package
		if p, err = from.Import(path); err == nil && p.Name() != "main" {
			packages = append(packages, p)
		}
	}
	return packages, err
}

// exported returns the lines of what packages export, sorted, and how many names programs import:
// constants, variables, functions, types, and the methods that the packages declare.
func exported(packages []*types.Package) (lines []string, names int) {
	a := apiOf{inside: map[string]string{}}
	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			a.add(p, p.Scope().Lookup(name))
		}
	}
	for i, line := range a.lines {
		a.lines[i] = fullName.ReplaceAllStringFunc(line, func(name string) string {
			return cmp.Or(a.inside[name], below(name))
		})
	}
	a.lines = slices.DeleteFunc(a.lines, func(line string) bool {
		return opaque.MatchString(line) || strings.Contains(line, "internal/")
	})
	slices.Sort(a.lines)
	return slices.Compact(a.lines), a.names
}

// opaque are the methods and fields of types that programs hand on and do not look into. What names
// a type of the inside is not promised either.
var opaque = regexp.MustCompile(`^pkg spmd, (method \(\*?Arg\)|type Arg struct,|const Version )`)

// fullName is a type of the module, by its import path.
var fullName = regexp.MustCompile(`\b` + module + `/[\w/]+\.\w+`)

// apiOf collects lines.
type apiOf struct {
	lines  []string
	names  int
	inside map[string]string // the exported alias of a type of the inside, by the type's name
}

// add adds the lines of an object of a package.
func (a *apiOf) add(p *types.Package, o types.Object) {
	if !o.Exported() {
		return
	}
	a.names++
	line := func(format string, args ...any) {
		a.lines = append(a.lines, "pkg "+below(p.Path())+", "+fmt.Sprintf(format, args...))
	}
	switch o := o.(type) {
	case *types.Const:
		line("const %s %s = %s", o.Name(), written(o.Type()), o.Val().ExactString())
	case *types.Var:
		line("var %s %s", o.Name(), written(o.Type()))
	case *types.Func:
		line("func %s%s", o.Name(), signature(o.Signature()))
	case *types.TypeName:
		t, _ := types.Unalias(o.Type()).(*types.Named)
		if t == nil { // of a literal
			line("type %s = %s", o.Name(), written(types.Unalias(o.Type())))
			return
		}
		if o.IsAlias() {
			a.inside[t.Obj().Pkg().Path()+"."+t.Obj().Name()] = below(p.Path()) + "." + o.Name()
		} else {
			for m := range t.Methods() {
				if m.Exported() {
					a.names++
				}
			}
		}
		head := "type " + o.Name() + parameters(t.TypeParams())
		switch u := t.Underlying().(type) {
		case *types.Struct:
			line("%s struct", head)
			for f := range u.Fields() {
				if f.Exported() {
					line("type %s struct, %s %s", o.Name(), f.Name(), written(f.Type()))
				}
			}
		default:
			line("%s %s", head, written(u))
		}
		if types.IsInterface(t) {
			return
		}
		of := types.NewMethodSet(t)
		for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
			if m.Obj().Exported() {
				to := o.Name()
				if of.Lookup(m.Obj().Pkg(), m.Obj().Name()) == nil {
					to = "*" + to
				}
				line("method (%s) %s%s", to, m.Obj().Name(), signature(m.Type().(*types.Signature)))
			}
		}
	}
}

// written returns a type in full.
func written(t types.Type) string {
	if s, ok := t.(*types.Signature); ok {
		return "func" + signature(s)
	}
	return types.TypeString(t, nil)
}

// signature returns what a function takes and returns, without the names of its parameters.
func signature(s *types.Signature) string {
	list := func(of *types.Tuple, variadic bool) string {
		var all []string
		for v := range of.Variables() {
			all = append(all, written(v.Type()))
		}
		if variadic {
			all[len(all)-1] = "..." + written(of.At(of.Len()-1).Type().(*types.Slice).Elem())
		}
		return strings.Join(all, ", ")
	}
	text := parameters(s.TypeParams()) + "(" + list(s.Params(), s.Variadic()) + ")"
	switch results := list(s.Results(), false); s.Results().Len() {
	case 0:
	case 1:
		text += " " + results
	default:
		text += " (" + results + ")"
	}
	return text
}

// parameters returns the parameters of a generic function or type.
func parameters(of *types.TypeParamList) string {
	var all []string
	for p := range of.TypeParams() {
		all = append(all, p.Obj().Name()+" "+written(p.Constraint()))
	}
	if all == nil {
		return ""
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// without returns the lines of a that are not among those of b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

// promise adds what has come to the lines that stand in dir. It refuses if one of these is gone, or
// has changed.
func promise(dir string) error {
	packages, err := api(dir)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, promised)
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lines, _ := exported(packages)
	if gone := without(strings.Split(strings.TrimSpace(string(old)), "\n"), lines); len(gone) > 0 && len(old) > 0 {
		return fmt.Errorf("%s promises: %s", promised, strings.Join(gone, "\n"))
	}
	return os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o666)
}
