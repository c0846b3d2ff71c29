package testkit

import (
	"go/token"
	"go/types"
	"os/exec"
	"regexp"
	"testing"

	"lockstep/internal/source"
)

// onSpmd are the packages that a program may use on streams and communicators.
var onSpmd = regexp.MustCompile(`^lockstep/(spmd(?:/(?:\w+))?)$`)

// apart are packages whose functions are none of a program's on ranks.
var apart = regexp.MustCompile(`^spmd/(spmdgen|spmdtest)$`)

// Calls returns the exported functions of spmd and of the packages on it, and the methods of their
// exported types, by names such as vector.Sum and parallel.Reducer.Wait.
func Calls(t *testing.T) map[string]*types.Signature {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go list tells what is exported: ", err)
	}
	from, paths, err := source.Importer(token.NewFileSet(), root(t), []string{"lockstep/spmd/..."})
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]*types.Signature{}
	for _, path := range paths {
		if m := onSpmd.FindStringSubmatch(path); m == nil || apart.MatchString(m[1]) {
			continue
		}
		p, err := from.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range p.Scope().Names() {
			switch o := p.Scope().Lookup(name).(type) {
			case *types.Func:
				if o.Exported() {
					calls[p.Name()+"."+name] = o.Signature()
				}
			case *types.TypeName:
				named, ok := o.Type().(*types.Named)
				for i := 0; ok && o.Exported() && i < named.NumMethods(); i++ {
					if m := named.Method(i); m.Exported() {
						calls[p.Name()+"."+name+"."+m.Name()] = m.Signature()
					}
				}
			}
		}
	}
	return calls
}
