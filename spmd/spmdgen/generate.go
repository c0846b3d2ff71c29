package main

import (
	"bytes"
	"go/ast"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lockstep/internal/source"
	"lockstep/spmd/spmdgen/internal/cpp"
	"lockstep/spmd/spmdgen/internal/ir"
)

// unit is a package with the CUDA source that its kernels become.
type unit struct {
	*cpp.Unit
	taken map[string]bool // names of kernels
}

type kernel struct {
	fn       *types.Func
	decl     *ast.FuncDecl
	symbol   string // in CUDA, where entries have a _ behind it
	types    string // the instance there, if the instances are one template
	dims     int
	args     []types.Type // of its type parameter
	params   []param
	op       string // of a reduction; "by" for the function named
	by       *ir.Function
	byName   string
	result   types.Type
	body     *ir.Function
	instance types.Type // what the type parameter is; nil for none
	onHost   string     // the function for a range of indices on the host; "" for the kernel itself
	part     string     // the tolerance
	row      int        // threads of a row, or 0
	loops    bool       // see loopWord
}

// param is one parameter of a kernel behind its indices.
type param struct {
	v       *types.Var
	name    string     // in the output
	t       types.Type // of the instance
	kind    paramKind
	c       string // its type in C++, of a slice or pointer that of the element
	written bool
	structs bool // a slice of structs
	small   bool // the fast form computes addresses from it in 32 bits; with several indices
}

type paramKind int

const (
	number paramKind = iota
	slice
	pointer
	structure
)

// loopWord is in the comment of a kernel that mostly does nothing. The blocks of its fast form take
// several parts of the indices, one after the other: to begin a block for each part would take
// longer than all else.
const loopWord = "loop"

// indices are the names that a kernel's indices have in what is written.
var indices = []string{"i", "j", "k"}

// operations are the reductions of a kernel's results.
var operations = []string{"sum", "prod", "min", "max"}

// Generate returns the text of output, which is source.Output or source.TestOutput, for the package
// in a folder, or nil if it has no kernels.
func Generate(dir, output string) (text []byte, err error) {
	u, all, err := translate(dir, output)
	if len(all) == 0 || err != nil {
		return nil, err
	}
	defer refused(&err)
	return u.golang(all), nil
}

// refused makes an error of a refusal.
func refused(err *error) {
	switch r := recover().(type) {
	case nil:
	case *source.Refusal:
		*err = r
	default:
		panic(r)
	}
}

// translate makes the normal form of the kernels of a folder.
func translate(dir, output string) (u *unit, all [][]*kernel, err error) {
	src, err := source.Parse(dir, output)
	if err != nil {
		return nil, nil, err
	}
	if err := src.CheckMarks(); err != nil {
		return nil, nil, err
	}
	marked := src.Kernels()
	if len(marked) == 0 {
		return nil, nil, nil
	}
	c, err := src.Check(dir)
	if err != nil {
		return nil, nil, err
	}
	defer refused(&err)
	u = &unit{cpp.New(ir.New(c, cpp.Has)), map[string]bool{}}
	for _, d := range marked {
		all = append(all, u.instances(d))
	}
	return u, all, nil
}

// Write makes or removes source.Output and source.TestOutput in a folder, and says whether one
// changed.
func Write(dir string) (changed bool, err error) {
	for _, output := range []string{source.Output, source.TestOutput} {
		text, err := Generate(dir, output)
		if err != nil {
			return changed, err
		}
		path := filepath.Join(dir, output)
		old, err := os.ReadFile(path)
		switch {
		case err != nil && !os.IsNotExist(err):
			return changed, err
		case bytes.Equal(old, text):
			continue
		case text == nil:
			err = os.Remove(path)
		default:
			err = os.WriteFile(path, text, 0o666)
		}
		changed = true
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// instances translates a kernel for each of its types.
func (u *unit) instances(d *ast.FuncDecl) []*kernel {
	if r := u.Failure(d); r != nil {
		panic(r)
	}
	if d.Recv != nil {
		u.Refuse(d.Pos(), "a kernel cannot be a method")
	}
	if d.Name.Name == "_" {
		u.Refuse(d.Pos(), "a kernel has a name")
	}
	f := u.Info.Defs[d.Name].(*types.Func)
	words, _ := source.Directive(d)
	op, by := "", ""
	var wanted []string
	rows := false
	for _, word := range words {
		again := false
		switch {
		case slices.Contains(operations, word):
			again, op = op != "", word
		case strings.HasPrefix(word, "reduce="):
			again, op, by = op != "", "by", strings.TrimPrefix(word, "reduce=")
		case word == "rows" || strings.HasPrefix(word, "rows="):
			again, rows = rows, true
			if !slices.Contains(ir.RowThreads, ir.RowsOf(d)) {
				u.Refuse(d.Pos(), "%s %s: a row has 32, 64, 128, 256, 512 or 1024 threads", source.Mark, word)
			}
		case word == loopWord:
		case word == ir.UnsetWord && ir.RowsOf(d) > 0:
		default:
			wanted = append(wanted, word)
		}
		if again {
			u.Refuse(d.Pos(), "%s %s: one is enough", source.Mark, strings.Join(words, " "))
		}
	}
	if op != "" && f.Signature().Results().Len() == 0 {
		u.Refuse(d.Pos(), "%s %s: the function returns nothing", source.Mark, strings.Join(words, " "))
	} else if op == "" {
		op = "sum"
	}
	tp := f.Signature().TypeParams()
	if tp.Len() == 0 {
		if len(wanted) > 0 {
			u.Refuse(d.Pos(), "%s %s: want one of %s, or nothing",
				source.Mark, strings.Join(wanted, " "), strings.Join(operations, ", "))
		}
		return []*kernel{u.kernel(d, f, op, by, nil)}
	}
	if tp.Len() > 1 {
		u.Refuse(d.Pos(), "a kernel cannot have more than one type parameter")
	}
	var list []*kernel
	set := u.typeSet(d, tp.At(0).Constraint())
	for _, t := range set {
		if len(wanted) == 0 || slices.Contains(wanted, ir.GoType(t)) {
			list = append(list, u.kernel(d, f, op, by, t))
		}
	}
	if len(list) == 0 || len(wanted) > 0 && len(list) < len(wanted) {
		u.Refuse(d.Pos(), "%s %s: the types of %s are %s",
			source.Mark, strings.Join(wanted, " "), tp.At(0), strings.Join(names(set), ", "))
	}
	return list
}

func (u *unit) kernel(d *ast.FuncDecl, f *types.Func, op, by string, instance types.Type) *kernel {
	k := &kernel{fn: f, decl: d, instance: instance, row: ir.RowsOf(d)}
	if instance != nil {
		k.args = []types.Type{instance}
	}
	sig := f.Signature()
	if k.dims = ir.Indices(sig); k.dims == 0 {
		u.Refuse(d.Pos(), "%s: a kernel begins with its indices: i int, or i, j int, or i, j, k int, or one int of "+
			"another name and then no int", f.Name())
	}
	k.body = u.Translate(d.Pos(), f, k.args)
	for i := k.dims; i < sig.Params().Len(); i++ {
		p := u.param(sig.Params().At(i), ir.TypeOf(sig.Params().At(i), sig, k.args), k.body.Writes[i])
		p.small = k.dims > 1 && len(k.body.Results) == 0 && types.Identical(p.t, types.Typ[types.Int])
		k.params = append(k.params, p)
	}
	if k.row > 0 && (k.dims > 1 || len(k.body.Results) > 0) {
		u.Refuse(d.Pos(), "%s: a kernel of rows has one index, and returns nothing", f.Name())
	}
	switch len(k.body.Results) {
	case 0:
	case 1:
		k.op, k.result = op, k.body.Results[0]
		b, ok := k.result.(*types.Basic)
		if !ok || !slices.Contains([]types.BasicKind{types.Int32, types.Uint32, types.Int64, types.Uint64,
			types.Float32, types.Float64, types.Complex64, types.Complex128}, b.Kind()) {
			u.Refuse(d.Pos(), "%s: a kernel returns int32, uint32, int64, uint64, float32, float64, complex64 or "+
				"complex128, of which the %s is taken, not %s", f.Name(), op, ir.GoType(k.result))
		}
		if b.Info()&types.IsComplex != 0 && (op == "min" || op == "max") {
			u.Refuse(d.Pos(), "%s: %s has no order, and no %s", f.Name(), ir.GoType(k.result), op)
		}
	default:
		u.Refuse(d.Pos(), "%s: a kernel returns at most one value, of which the %s is taken", f.Name(), op)
	}
	if words, _ := source.Directive(d); slices.Contains(words, loopWord) {
		if k.wide() == 0 || k.body.Guard == nil {
			u.Refuse(d.Pos(), "%s %s: a kernel that loops has one index i, uses x[i] of a slice, and begins with if "+
				"c { return }", source.Mark, loopWord)
		}
		k.loops = true
	}
	u.named(k, by)
	u.hostFunction(k)
	if words, ok := source.Marked(d, source.ToleranceMark); ok {
		k.part = strings.Join(words, " ")
		if v, err := strconv.ParseFloat(k.part, 64); err != nil || v < 0 {
			u.Refuse(d.Pos(), "%s %s: want a number, such as 1e-6", source.ToleranceMark, k.part)
		}
	}
	return k
}

// hostFunction finds the function that runs on the host in a kernel's place, if its comment names
// one: func(lo, hi int, ...), with the parameters and the result of the kernel.
func (u *unit) hostFunction(k *kernel) {
	words, ok := source.Marked(k.decl, source.HostMark)
	if !ok {
		return
	}
	sig := k.fn.Signature()
	want := []*types.Var{types.NewParam(0, nil, "lo", types.Typ[types.Int]),
		types.NewParam(0, nil, "hi", types.Typ[types.Int])}
	for i := k.dims; i < sig.Params().Len(); i++ {
		want = append(want, sig.Params().At(i))
	}
	wanted := types.NewSignatureType(nil, nil, nil, types.NewTuple(want...), sig.Results(), false)
	if len(words) == 1 && k.dims == 1 && k.instance == nil {
		if f, ok := u.Pkg.Scope().Lookup(words[0]).(*types.Func); ok && types.Identical(f.Signature(), wanted) {
			k.onHost = words[0]
			return
		}
	}
	u.Refuse(k.decl.Pos(), "%s %s: want the name of a %s, for a kernel of one index without type parameters",
		source.HostMark, strings.Join(words, " "), types.TypeString(wanted, ir.Qualifier))
}

func (u *unit) param(v *types.Var, t types.Type, written bool) param {
	p := param{v: v, t: t, written: written}
	stored := func(t types.Type) {
		if ir.SmallFloat(t) {
			return
		}
		b, ok := types.Unalias(t).(*types.Basic)
		if !ok || !slices.Contains([]types.BasicKind{types.Int8, types.Uint8, types.Int32, types.Uint32, types.Int64,
			types.Uint64, types.Float32, types.Float64, types.Complex64, types.Complex128}, b.Kind()) {
			u.Refuse(v.Pos(), "a kernel cannot have the parameter %s: buffers have no elements of type %s",
				v.Name(), ir.GoType(t))
		}
	}
	switch t := p.t.Underlying().(type) {
	case *types.Slice:
		if p.structs = isStruct(t.Elem()); !p.structs {
			stored(t.Elem())
		}
		p.kind, p.c = slice, u.CType(v.Pos(), t.Elem())
	case *types.Pointer:
		stored(t.Elem())
		p.kind, p.c = pointer, u.CType(v.Pos(), t.Elem())
	case *types.Basic:
		p.c = u.CType(v.Pos(), p.t)
		if (t.Kind() == types.Int16 || t.Kind() == types.Uint16) && !ir.SmallFloat(p.t) {
			u.Refuse(v.Pos(), "a kernel cannot have the parameter %s: it is of 16 bits; give it as an int32", v.Name())
		}
	default:
		p.kind, p.c = structure, u.CType(v.Pos(), p.t)
	}
	if v.Name() == "" || v.Name() == "_" {
		u.Refuse(v.Pos(), "a kernel's parameters have names")
	}
	return p
}

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
		"which returns one", source.Mark, by, k.fn.Name())
}

func isStruct(t types.Type) bool {
	_, ok := t.Underlying().(*types.Struct)
	return ok
}

func names(list []types.Type) (all []string) {
	for _, t := range list {
		all = append(all, ir.GoType(t))
	}
	return all
}

// typeSet returns the types of a kernel's constraint.
func (u *unit) typeSet(d *ast.FuncDecl, constraint types.Type) (all []types.Type) {
	i, ok := constraint.Underlying().(*types.Interface)
	if !ok {
		return []types.Type{constraint}
	}
	for e := range i.EmbeddedTypes() {
		if union, ok := types.Unalias(e).(*types.Union); ok {
			for t := range union.Terms() {
				if t.Tilde() {
					u.Refuse(d.Pos(), "a kernel cannot have ~%s in its constraint: buffers have no elements of named "+
						"types", t.Type())
				}
				all = append(all, u.typeSet(d, t.Type())...)
			}
		} else {
			all = append(all, u.typeSet(d, e)...)
		}
	}
	return all
}
