package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
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
	name     string // in CUDA, where the fast form has a _ behind it
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

// indices are the names of a kernel's first parameters that make them indices.
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
	set := typeSet(tp.At(0).Constraint())
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
	k := &kernel{fn: f, decl: d, name: f.Name(), instance: instance, row: ir.RowsOf(d)}
	if instance != nil {
		k.args = []types.Type{instance}
		k.name += "_" + cpp.InstanceName(instance)
	}
	k.name = u.symbol(k.name)
	sig := f.Signature()
	for k.dims < min(len(indices), sig.Params().Len()) {
		p := sig.Params().At(k.dims)
		if p.Name() != indices[k.dims] || !types.Identical(p.Type(), types.Typ[types.Int]) {
			break
		}
		k.dims++
	}
	if k.dims == 0 {
		u.Refuse(d.Pos(), "%s: a kernel begins with its indices: i int, or i, j int, or i, j, k int", f.Name())
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
		if elements, _ := k.wide(); elements == 0 || k.body.Guard == nil {
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

// symbol returns a name that no other kernel has.
func (u *unit) symbol(name string) string {
	name = strings.TrimSuffix(cpp.Name(name), "_")
	for n, k := name, 2; ; k++ {
		if !u.taken[n] {
			u.taken[n] = true
			return n
		}
		n = fmt.Sprintf("%s_%d", name, k)
	}
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
		if t.Kind() == types.Int16 || t.Kind() == types.Uint16 {
			if !ir.SmallFloat(p.t) {
				u.Refuse(v.Pos(), "a kernel cannot have the parameter %s: it is of 16 bits; give it as an int32",
					v.Name())
			}
		}
	default:
		p.kind, p.c = structure, u.CType(v.Pos(), p.t)
	}
	if v.Name() == "" || v.Name() == "_" {
		u.Refuse(v.Pos(), "a kernel's parameters have names")
	}
	return p
}

// each returns how many indices a thread takes: several if the loads of one need not wait for
// those of another.
func (k *kernel) each() int {
	if elements, packs := k.wide(); elements > 0 {
		return elements * packs
	}
	small := 150 // nodes of syntax
	if k.dims > 1 {
		small = 400
	}
	if k.row > 0 || k.op != "" || k.body.Loops || k.body.Size >= small {
		return 1
	}
	return 4
}

func (k *kernel) threads() int {
	if k.row <= 32 {
		return 256
	}
	return k.row
}

// cuda writes the two forms of a kernel. The first is for buffers shorter than 2^31, none of which
// is written and overlaps another. The second is for all others.
func (u *unit) cuda(b *strings.Builder, k *kernel) {
	if k.by != nil {
		t := u.CType(token.NoPos, k.result)
		fmt.Fprintf(b, "\nstruct by_%s {\n\tSPMD_INLINE static %s call(%s a, %s b) {\n"+
			"\t\tspmd::report *spmd_report = nullptr;\n\t\tSPMD_KERNEL(%q)\n\t\treturn go::%s<uint32_t>(SPMD_HERE_AND "+
			"a, b);\n\t}\n};\n",
			k.name, t, t, t, k.byName, u.Function(k.by))
	}
	for _, general := range []bool{false, true} {
		name, index, restrict, each := k.name+"_", "uint32_t", "__restrict__ ", k.each()
		if general {
			name, index, restrict, each = k.name+"_any", "int64_t", "", 1
		}
		var params, views, args, extents []string
		for _, i := range indices[:k.dims] {
			params, extents = append(params, "int64_t n"+i), append(extents, "n"+i)
		}
		if k.op != "" {
			params = append(params, u.CType(token.NoPos, k.result)+" *"+restrict+"out")
		}
		for _, p := range k.params {
			n := cpp.Name(p.v.Name())
			constant := "const "
			if p.written {
				constant = ""
			}
			switch p.kind {
			case slice:
				params = append(params, constant+p.c+" *"+restrict+n+"p", "int64_t "+n+"n")
				views = append(views, fmt.Sprintf("\tspmd::slice<%s, %s> %s{(%s *)%sp, %sn};\n",
					p.c, index, n, p.c, n, n))
			case pointer:
				params = append(params, constant+p.c+" *"+restrict+n+"p")
				views = append(views, fmt.Sprintf("\t%s *%s = (%s *)%sp;\n", p.c, n, p.c, n))
			case structure:
				params = append(params, fmt.Sprintf("const __grid_constant__ %s %s", p.c, n))
			default:
				params = append(params, p.c+" "+n)
				if p.small && !general {
					views = append(views, fmt.Sprintf("\t%s = (int32_t)%s;\n", n, n))
				}
			}
			args = append(args, n)
		}
		params = append(params, "spmd::report *spmd_report")
		fmt.Fprintf(b, "\nextern \"C\" __global__ void __launch_bounds__(%d) %s(%s) {\n\tSPMD_KERNEL(%q)\n%s",
			k.threads(), name, strings.Join(params, ", "), k.fn.Name(), strings.Join(views, ""))
		call := func(is ...string) string {
			return fmt.Sprintf("go::%s<%s>(SPMD_HERE_AND %s)",
				u.Function(k.body), index, strings.Join(slices.Concat(is, args), ", "))
		}
		is := indices[:k.dims]
		lambda := func(body string) string {
			return fmt.Sprintf("[&](int64_t %s) { %s; }", strings.Join(is, ", int64_t "), body)
		}
		switch {
		case k.row > 0:
			fmt.Fprintf(b, "\tspmd::each_row<%d>(%s, %s);\n", k.row, extents[0], lambda(call(is...)))
		case k.op == "" && k.dims == 1:
			u.line(b, k, general, extents[0], is[0], call)
		case k.op == "" && !general:
			fmt.Fprintf(b, "\tspmd::grid%d<%d>(%s, %s);\n",
				k.dims, each, strings.Join(extents[k.dims-2:], ", "), lambda(call(is...)))
		case k.op == "":
			fmt.Fprintf(b, "\tspmd::each%d(%s, %s);\n", k.dims, strings.Join(extents, ", "), lambda(call(is...)))
		default:
			u.reduction(b, k, index, "out", extents, call)
		}
		b.WriteString("}\n")
	}
	if k.op != "" {
		t := u.CType(token.NoPos, k.result)
		fmt.Fprintf(b, "\nextern \"C\" __global__ void __launch_bounds__(256) %s_parts(%s *out, const %s *part, "+
			"int64_t n) { spmd::reduce_parts<%s, %s>(out, part, n); }\n",
			k.name, t, t, t, u.operation(k))
	}
}

// source writes the whole CUDA source.
func (u *unit) source(all [][]*kernel) string {
	var b strings.Builder
	b.WriteString("#include \"spmd_go.cuh\"\n")
	if slices.ContainsFunc(all, func(list []*kernel) bool { return list[0].row > 0 }) {
		b.WriteString("#include \"spmd_rows.cuh\"\n")
	}
	var functions []string
	for _, f := range u.Order {
		functions = append(functions, u.Print(f)+"\n")
	}
	var kernels strings.Builder
	for _, list := range all {
		for _, k := range list {
			u.cuda(&kernels, k)
		}
	}
	b.WriteString("\nnamespace go {\n\n")
	for _, s := range u.Structs {
		b.WriteString(s + "\n")
	}
	b.WriteString(strings.Join(functions, ""))
	b.WriteString("} // namespace go\n" + kernels.String())
	return b.String()
}
