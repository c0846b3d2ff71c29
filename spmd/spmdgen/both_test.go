package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/source"
)

// driver runs kernels on the host and emulated, on equal arguments, and prints what differs.
const driver = `package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
	"unsafe"

	"lockstep/spmd"
)

type bothRun struct {
	w     *spmd.World
	s     *spmd.Stream
	out   []func() string
	k     uint64
	one   bool // the first two slices are one
	first any
}

func (o *bothRun) next() uint64 {
	o.k = o.k*6364136223846793005 + 1442695040888963407
	return o.k >> 29
}

func bothBuffer[T spmd.Stored](o *bothRun, n int) spmd.Buffer[T] {
	b, err := spmd.Alloc[T](o.w, n)
	if err != nil {
		panic(err)
	}
	if first, ok := o.first.(spmd.Buffer[T]); ok {
		o.one, o.first = false, nil
		return first
	}
	if o.one && n > 1 {
		o.first = b
	}
	v := make([]T, n)
	for i := range v {
		o.fill(any(&v[i]))
	}
	if err := b.CopyFrom(v); err != nil {
		panic(err)
	}
	o.out = append(o.out, func() string {
		if err := b.CopyTo(v); err != nil {
			panic(err)
		}
		for i := range v {
			if v[i] != v[i] { // which of two NaNs wins is the compiler's business
				v[i] = *new(T)
			}
		}
		return fmt.Sprintf("%x", unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0]))))
	})
	return b
}

func (o *bothRun) fill(p any) {
	x := o.next()
	switch v := reflect.ValueOf(p).Elem(); {
	case v.Type() == reflect.TypeFor[spmd.BF16]():
		v.SetUint(uint64(spmd.ToBF16(float32(int64(x%401) - 200))))
	case v.CanInt():
		v.SetInt(int64(x<<31) >> (x % 64))
	case v.CanUint():
		v.SetUint(x << 31 >> (x % 64))
	case v.CanFloat():
		v.SetFloat(float64(int64(x%4001)-2000) / 64)
	case v.CanComplex():
		v.SetComplex(complex(float64(int64(x%401)-200)/8, float64(x%7)))
	}
}

// run returns what a kernel leaves in its buffers.
func run(w *spmd.World, s *spmd.Stream, kernel func(o *bothRun) error) (got string, err error) {
	for _, one := range bothOnes {
		o := &bothRun{w: w, s: s, one: one}
		if err := errors.Join(kernel(o), s.Synchronize()); err != nil {
			return "", err
		}
		for _, f := range o.out {
			got += f() + "\n"
		}
	}
	return got, nil
}

func main() {
	var got [2][]string
	for d, device := range []string{"host", "emulate"} {
		got[d] = make([]string, len(bothAll))
		c := spmd.Config{Timeout: 5 * time.Minute, Device: device, LogLevel: "error", LogRanks: "all", Seed: 42}
		for from := 0; from < len(bothAll); { // a kernel that fails ends its World
			i := from
			err := spmd.Local(context.Background(), c, 1, func(_ context.Context, w *spmd.World) error {
				s, err := w.NewStream("kernels")
				for ; err == nil && i < len(bothAll); i++ {
					got[d][i], err = run(w, s, bothAll[i])
				}
				return err
			})
			if from = max(i, from+1); err != nil {
				got[d][from-1] = err.Error()
			}
		}
	}
	for i, name := range bothNames {
		a, b := got[0][i], got[1][i]
		if a == b && len(a) > 0 && a[len(a)-1] == '\n' {
			fmt.Printf("%s: same\n", name)
			continue
		}
		at := 0
		for at < min(len(a), len(b)) && a[at] == b[at] {
			at++
		}
		from := max(0, at-24)
		fmt.Printf("%s: from byte %d on %.60q, emulated %.300q\n", name, at/2, a[min(from, len(a)):],
			b[min(from, len(b)):])
	}
}
`

// quick has the shell that calls the C++ compiler want little of it. fastForm and anyForm have it
// make one form of kernels, which is then both.
const (
	quick    = "for a do case $a in -O2) a=-O0;; -g1) a=-g0;; esac; set -- \"$@\" \"$a\"; shift; done\n"
	fastForm = "sed -i '/^EMULATE/s/_<int64_t>/_<>/' kernel.cc\n"
	anyForm  = "sed -i '/^EMULATE/s/_<>/_<int64_t>/' kernel.cc\n"
)

// runBoth translates the kernels of a file, runs each both ways, and returns what differs by the
// names of the kernels: "same" for nothing. ones say for each run whether the first two slices are
// one.
func runBoth(t *testing.T, text, compiler, ones string) map[string]string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(t, text)
	write(t, dir, "go.mod", "module both\n\ngo 1.26.0\n")
	write(t, dir, "go.work", "go 1.26.0\n\nuse (\n\t.\n\t"+root+"\n)\n")
	write(t, dir, "driver.go", driver)
	if _, err := Write(dir); err != nil {
		t.Fatalf("%v\n%s", err, numbered(text))
	}
	write(t, dir, "calls.go", calls(t, text, ones))
	write(t, dir, "c++", "#!/bin/sh\n"+compiler+"exec c++ \"$@\"\n")
	if err := os.Chmod(filepath.Join(dir, "c++"), 0o777); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CXX="+filepath.Join(dir, "c++"), "LOCKSTEP_CACHE="+dir, "LOCKSTEP_RUNS=off")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%.2000s", name, err, out, &errs)
		}
		return string(out)
	}
	run("go", "build", "-gcflags=-N -l", "-ldflags=-w", "-o", "both", ".")
	got := map[string]string{}
	for line := range strings.Lines(run("./both")) {
		if name, what, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			got[name] = what
		}
	}
	return got
}

func numbered(text string) string {
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		fmt.Fprintf(&b, "%4d %s\n", i+1, line)
	}
	return b.String()
}

// calls writes the launches of the kernels of a file. A slice has 1,024 elements.
func calls(t *testing.T, text, ones string) string {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "kernels.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var names, runs []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		words, ok := source.Directive(fn)
		if !ok {
			continue
		}
		n, instance := "64", ""
		if strings.Contains(strings.Join(words, " "), "rows") {
			n = "5"
		}
		if fn.Type.TypeParams != nil {
			instance = words[len(words)-1]
		}
		kind := func(e ast.Expr) string {
			if s := types.ExprString(e); s != "T" {
				return s
			}
			return instance
		}
		var args []string
		if r := fn.Type.Results; r != nil {
			args = append(args, "bothBuffer["+kind(r.List[0].Type)+"](o, 1)")
		}
		var rest []string
		dims := 0
		for _, p := range fn.Type.Params.List {
			for _, id := range p.Names {
				switch p := p.Type.(type) {
				case *ast.ArrayType:
					if p.Len == nil {
						rest = append(rest, "bothBuffer["+kind(p.Elt)+"](o, 1024)")
					} else {
						rest = append(rest, types.ExprString(p)+"{3}")
					}
				case *ast.StarExpr:
					rest = append(rest, "bothBuffer["+kind(p.X)+"](o, 1)")
				default:
					if len(rest) == 0 && dims < 3 && (dims == 0 || id.Name == string("ijk"[dims])) && kind(p) == "int" {
						args = append(args, n)
						dims++
					} else {
						rest = append(rest, kind(p)+"(5)")
					}
				}
			}
		}
		names = append(names, fmt.Sprintf("%q", fn.Name.Name))
		runs = append(runs, fmt.Sprintf("func(o *bothRun) error { return %s(o.s, %s) }", launchName(fn.Name.Name),
			strings.Join(append(args, rest...), ", ")))
	}
	spmd := ""
	if strings.Contains(strings.Join(runs, ""), "spmd.") {
		spmd = "import \"lockstep/spmd\"\n"
	}
	return "package main\n" + spmd + "var bothOnes = []bool{" + ones + "}\n\nvar bothNames = []string{" +
		strings.Join(names, ", ") + "}\n\nvar bothAll = []func(o *bothRun) error{\n" +
		strings.Join(runs, ",\n") + ",\n}\n"
}
