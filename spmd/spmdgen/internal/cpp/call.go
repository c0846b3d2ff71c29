package cpp

import (
	"fmt"
	"go/ast"
	"go/types"
	"strings"
)

func (w *writer) call(e *ast.CallExpr) string {
	if tv := w.Info.Types[e.Fun]; tv.IsType() {
		return w.conversion(e)
	}
	if e.Ellipsis.IsValid() {
		w.Refuse(e.Pos(), "a kernel cannot pass a slice as any number of arguments")
	}
	fun := e.Fun
	if p, ok := fun.(*ast.ParenExpr); ok {
		fun = p.X
	}
	var id *ast.Ident
	switch f := fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
		if sel := w.Info.Selections[f]; sel != nil {
			return w.method(e, f, sel)
		}
	case *ast.IndexExpr:
		id, _ = f.X.(*ast.Ident)
		if s, ok := f.X.(*ast.SelectorExpr); ok {
			id = s.Sel
		}
	case *ast.IndexListExpr:
		id, _ = f.X.(*ast.Ident)
	}
	if id == nil {
		w.Refuse(e.Pos(), "a kernel cannot call %s", types.ExprString(e.Fun))
	}
	switch o := w.Info.Uses[id].(type) {
	case *types.Builtin:
		return w.builtin(e, o.Name())
	case *types.Func:
		if o.Pkg() == w.Pkg {
			var args []types.Type
			if inst, ok := w.Info.Instances[id]; ok {
				for i := range inst.TypeArgs.Len() {
					args = append(args, w.subst(inst.TypeArgs.At(i)))
				}
			}
			return w.apply(w.Translate(e.Pos(), o, args), nil, e.Args, o.Signature())
		}
		return w.library(e, o)
	}
	w.Refuse(e.Pos(), "a kernel cannot call %s", types.ExprString(e.Fun))
	return ""
}

// apply writes the call of a function of the package.
func (w *writer) apply(fn *Function, recv ast.Expr, args []ast.Expr, sig *types.Signature) string {
	w.fn.Loops = w.fn.Loops || fn.Loops
	w.fn.Size += fn.Size
	var texts []string
	at := 0
	pass := func(e ast.Expr, text string) {
		texts = append(texts, text)
		if fn.Written[at] {
			for _, p := range w.rootsOf(e) {
				w.fn.Written[p] = true
			}
		}
		at++
	}
	if recv != nil {
		text := w.expr(recv)
		_, isPointer := w.typeOf(recv).Underlying().(*types.Pointer)
		_, wants := sig.Recv().Type().Underlying().(*types.Pointer)
		switch {
		case wants && !isPointer:
			text = "&" + text
		case !wants && isPointer:
			text = "*" + text
		}
		pass(recv, text)
	}
	for i, a := range args {
		t := sig.Params().At(i).Type()
		if _, ok := types.Unalias(t).(*types.TypeParam); ok {
			t = w.Info.TypeOf(a)
		}
		pass(a, w.as(a, t))
	}
	head := "SPMD_HERE"
	if len(texts) > 0 {
		head = "SPMD_HERE_AND "
	}
	return fmt.Sprintf("%s<I>(%s%s)", fn.Name, head, strings.Join(texts, ", "))
}

func (w *writer) method(e *ast.CallExpr, f *ast.SelectorExpr, sel *types.Selection) string {
	o, ok := sel.Obj().(*types.Func)
	if !ok {
		w.Refuse(e.Pos(), "a kernel cannot call %s", types.ExprString(e.Fun))
	}
	if _, ok := SmallFloat(w.typeOf(f.X)); ok && o.Name() == "Float32" {
		return "to_float(" + w.expr(f.X) + ")"
	}
	if o.Pkg() == w.Pkg && len(sel.Index()) == 1 {
		if _, ok := sel.Recv().Underlying().(*types.Interface); !ok {
			return w.apply(w.Translate(e.Pos(), o, nil), f.X, e.Args, o.Signature())
		}
	}
	w.Refuse(e.Pos(), "a kernel cannot call %s: functions of this package, math, math/bits and some of spmd it can",
		types.ExprString(e.Fun))
	return ""
}

// conversion writes T(x).
func (w *writer) conversion(e *ast.CallExpr) string {
	to, x := w.typeOf(e), e.Args[0]
	c := w.CType(e.Pos(), to)
	if w.Info.Types[x].Value != nil { // of a type parameter: else it would be a constant
		return "(" + c + ")(" + w.as(x, to) + ")"
	}
	from := w.typeOf(x)
	b, ok := to.Underlying().(*types.Basic)
	_, ok2 := from.Underlying().(*types.Basic)
	if !ok || !ok2 || b.Info()&types.IsString != 0 {
		if types.Identical(to.Underlying(), from.Underlying()) {
			if _, ok := to.Underlying().(*types.Struct); !ok || types.Identical(to, from) {
				return w.expr(x)
			}
		}
		w.Refuse(e.Pos(), "a kernel cannot convert %s to %s",
			types.TypeString(from, types.RelativeTo(w.Pkg)), types.TypeString(to, types.RelativeTo(w.Pkg)))
	}
	if _, ok := SmallFloat(to); ok {
		w.Refuse(e.Pos(), "a kernel cannot convert to %s: call spmd.To%s",
			types.TypeString(to, types.RelativeTo(w.Pkg)), b.Name())
	}
	if b.Kind() == types.Float32 {
		if text, ok := w.single(x); ok {
			return text
		}
	}
	return "(" + c + ")" + parenthesized(w.expr(x))
}

func parenthesized(text string) string {
	if strings.HasPrefix(text, "(") && strings.HasSuffix(text, ")") && strings.Count(text, "(") == 1 {
		return text
	}
	return "(" + text + ")"
}

// single writes f(float64(x)), which becomes a float32, in single precision if math cannot say
// it otherwise.
func (w *writer) single(e ast.Expr) (string, bool) {
	for {
		p, ok := e.(*ast.ParenExpr)
		if !ok {
			break
		}
		e = p.X
	}
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	o, ok := w.Info.Uses[sel.Sel].(*types.Func)
	if !ok || o.Pkg() == nil || o.Pkg().Path() != "math" || !mathSingle[o.Name()] {
		return "", false
	}
	var args []string
	for _, a := range call.Args {
		if v := w.Info.Types[a].Value; v != nil {
			args = append(args, w.constant(a.Pos(), v, types.Typ[types.Float32]))
			continue
		}
		conv, ok := a.(*ast.CallExpr)
		if !ok || !w.Info.Types[conv.Fun].IsType() || len(conv.Args) != 1 || w.Info.Types[conv.Args[0]].Value != nil {
			return "", false
		}
		if b, ok := w.typeOf(conv.Args[0]).Underlying().(*types.Basic); !ok || b.Kind() != types.Float32 {
			return "", false
		}
		args = append(args, w.expr(conv.Args[0]))
	}
	return mathFunctions[o.Name()] + "f(" + strings.Join(args, ", ") + ")", true
}

// mathFunctions are the functions of package math that have the same meaning in C.
var mathFunctions = map[string]string{"Sqrt": "sqrt", "Abs": "fabs", "Exp": "exp", "Exp2": "exp2", "Expm1": "expm1",
	"Log": "log", "Log2": "log2", "Log10": "log10", "Log1p": "log1p", "Pow": "pow", "Sin": "sin", "Cos": "cos",
	"Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Atan2": "atan2", "Sinh": "sinh", "Cosh": "cosh",
	"Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Floor": "floor", "Ceil": "ceil",
	"Trunc": "trunc", "Round": "round", "RoundToEven": "rint", "Hypot": "hypot", "Cbrt": "cbrt", "Erf": "erf",
	"Erfc": "erfc", "Gamma": "tgamma", "Copysign": "copysign", "Mod": "fmod", "Remainder": "remainder", "FMA": "fma",
	"Ldexp": "spmd::ldexp", "Max": "spmd::max_of", "Min": "spmd::min_of", "IsNaN": "spmd::is_nan",
	"IsInf": "spmd::is_inf", "Inf": "spmd::inf", "NaN": "spmd::nan", "Signbit": "spmd::signbit_of",
	"Float32bits": "__float_as_uint", "Float32frombits": "__uint_as_float", "Float64bits": "spmd::double_bits",
	"Float64frombits": "spmd::bits_double"}

// mathSingle are the functions with a form for float in C.
var mathSingle = map[string]bool{}

func init() {
	for name, c := range mathFunctions {
		mathSingle[name] = !strings.Contains(c, ":") && !strings.HasPrefix(c, "__") && name != "FMA"
	}
}

// bitsFunctions are the functions of package math/bits.
var bitsFunctions = map[string]string{"OnesCount": "spmd::ones<uint64_t>", "OnesCount8": "spmd::ones<uint8_t>",
	"OnesCount16": "spmd::ones<uint16_t>", "OnesCount32": "spmd::ones<uint32_t>", "OnesCount64": "spmd::ones<uint64_t>",
	"Len": "spmd::bit_len<uint64_t>", "Len8": "spmd::bit_len<uint8_t>",
	"Len16": "spmd::bit_len<uint16_t>", "Len32": "spmd::bit_len<uint32_t>", "Len64": "spmd::bit_len<uint64_t>",
	"LeadingZeros": "spmd::leading<uint64_t>", "LeadingZeros8": "spmd::leading<uint8_t>",
	"LeadingZeros16": "spmd::leading<uint16_t>", "LeadingZeros32": "spmd::leading<uint32_t>",
	"LeadingZeros64": "spmd::leading<uint64_t>", "TrailingZeros": "spmd::trailing<uint64_t>",
	"TrailingZeros8": "spmd::trailing<uint8_t>", "TrailingZeros16": "spmd::trailing<uint16_t>",
	"TrailingZeros32": "spmd::trailing<uint32_t>", "TrailingZeros64": "spmd::trailing<uint64_t>",
	"RotateLeft": "spmd::rotate<uint64_t>", "RotateLeft8": "spmd::rotate<uint8_t>",
	"RotateLeft16": "spmd::rotate<uint16_t>", "RotateLeft32": "spmd::rotate<uint32_t>",
	"RotateLeft64": "spmd::rotate<uint64_t>", "Reverse": "spmd::reverse<uint64_t>",
	"Reverse8": "spmd::reverse<uint8_t>", "Reverse16": "spmd::reverse<uint16_t>",
	"Reverse32": "spmd::reverse<uint32_t>", "Reverse64": "spmd::reverse<uint64_t>",
	"ReverseBytes": "spmd::reverse_bytes<uint64_t>", "ReverseBytes16": "spmd::reverse_bytes<uint16_t>",
	"ReverseBytes32": "spmd::reverse_bytes<uint32_t>", "ReverseBytes64": "spmd::reverse_bytes<uint64_t>",
	"Mul64": "spmd::mul64"}

// complexFunctions are the functions of package math/cmplx.
var complexFunctions = map[string]string{"Abs": "spmd::complex_abs", "Conj": "spmd::conj"}

// spmdFunctions are the functions of package spmd.
var spmdFunctions = map[string]string{"UniformBits": "spmd::uniform_bits", "RandomBits": "spmd::random_bits",
	"ToBF16": "from_float<bf16>", "ToF16": "from_float<f16>",
	"ToF8E4M3": "from_float<f8e4m3>", "ToF8E5M2": "from_float<f8e5m2>", "AtomicAdd": "spmd::atomic_add",
	"AtomicMax": "spmd::atomic_max", "Widen": "to_float"}

// library writes a call of a function of another package.
func (w *writer) library(e *ast.CallExpr, o *types.Func) string {
	var name string
	var ok bool
	switch o.Pkg().Path() {
	case "math":
		name, ok = mathFunctions[o.Name()]
	case "math/cmplx":
		name, ok = complexFunctions[o.Name()]
	case "math/bits":
		name, ok = bitsFunctions[o.Name()]
	case "lockstep/spmd":
		name, ok = spmdFunctions[o.Name()]
		if o.Name() == "Narrow" {
			name, ok = "from_float<"+w.CType(e.Pos(), w.typeOf(e))+">", true
		}
	case "lockstep/internal/elem":
		name, ok = "mix", o.Name() == "MixBits"
	}
	if !ok {
		w.Refuse(e.Pos(), "a kernel cannot call %s.%s: functions of this package, and of math, math/bits, "+
			"math/cmplx and spmd such as GPUs have, it can", o.Pkg().Name(), o.Name())
	}
	var args []string
	for i, a := range e.Args {
		t := o.Signature().Params().At(i).Type()
		if _, ok := types.Unalias(t).(*types.TypeParam); ok {
			t = w.Info.TypeOf(e.Args[0]) // AtomicAdd's value has the type behind the pointer
			if p, ok := t.Underlying().(*types.Pointer); ok {
				t = p.Elem()
			}
		}
		args = append(args, w.as(a, t))
	}
	return name + "(" + strings.Join(args, ", ") + ")"
}

func (w *writer) builtin(e *ast.CallExpr, name string) string {
	switch name {
	case "real", "imag":
		return fmt.Sprintf("(%s).%s", w.as(e.Args[0], types.Default(w.typeOf(e.Args[0]))), name[:2])
	case "complex":
		t := w.typeOf(e)
		part := types.Typ[types.Float64]
		if b, ok := t.Underlying().(*types.Basic); ok && b.Kind() == types.Complex64 {
			part = types.Typ[types.Float32]
		}
		return fmt.Sprintf("%s{%s, %s}", w.CType(e.Pos(), t), w.as(e.Args[0], part), w.as(e.Args[1], part))
	case "len":
		switch t := w.typeOf(e.Args[0]).Underlying().(type) {
		case *types.Slice:
			return "(" + w.expr(e.Args[0]) + ").n"
		case *types.Array:
			return fmt.Sprint(t.Len())
		}
	case "min", "max":
		t := w.typeOf(e)
		text := w.as(e.Args[0], t)
		for _, a := range e.Args[1:] {
			text = fmt.Sprintf("spmd::%s_of<%s>(%s, %s)", name, w.CType(e.Pos(), t), text, w.as(a, t))
		}
		return text
	case "new", "make", "append":
		w.Refuse(e.Pos(), "a kernel cannot allocate: it cannot call %s", name)
	case "panic":
		w.Refuse(e.Pos(), "a kernel cannot panic: write what it finds wrong to memory")
	}
	w.Refuse(e.Pos(), "a kernel cannot call %s", name)
	return ""
}
