package cpp

import (
	"fmt"
	"go/constant"
	"go/types"
	"strings"

	"lockstep/spmd/spmdgen/internal/ir"
)

func (p *printer) conversion(e *ir.Expr) string {
	if e.Type.Underlying().(*types.Basic).Kind() == types.Float32 {
		if text, ok := p.single(e.Args[0]); ok {
			return text
		}
	}
	return "(" + p.CType(e.At, e.Type) + ")(" + p.expr(e.Args[0]) + ")"
}

// single prints f(float64(x)), which becomes a float32, in single precision if math cannot say
// it otherwise. A constant must be the same in it.
func (p *printer) single(e *ir.Expr) (string, bool) {
	if e.Op != ir.Library || e.Obj.Pkg().Path() != "math" {
		return "", false
	}
	c := mathFunctions[e.Obj.Name()]
	if strings.Contains(c, ":") || strings.HasPrefix(c, "__") || c == "fma" { // which have no form for float
		return "", false
	}
	var args []string
	for _, a := range e.Args {
		switch {
		case a.Op == ir.Const:
			f, _ := constant.Float32Val(a.Value)
			if d, _ := constant.Float64Val(a.Value); float64(f) != d {
				return "", false
			}
			args = append(args, p.constant(a.At, a.Value, types.Typ[types.Float32]))
		case a.Op == ir.Convert && a.Args[0].Op != ir.Const &&
			a.Args[0].Type.Underlying().(*types.Basic).Kind() == types.Float32:
			args = append(args, p.expr(a.Args[0]))
		default:
			return "", false
		}
	}
	return c + "f(" + strings.Join(args, ", ") + ")", true
}

// mathFunctions are the functions of package math that have the same meaning in C.
var mathFunctions = map[string]string{"Sqrt": "sqrt", "Abs": "fabs", "Exp": "exp", "Exp2": "exp2", "Expm1": "expm1",
	"Log": "log", "Log2": "log2", "Log10": "log10", "Log1p": "log1p", "Pow": "pow", "Sin": "sin", "Cos": "cos",
	"Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Atan2": "atan2", "Sinh": "sinh", "Cosh": "cosh",
	"Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Floor": "floor", "Ceil": "ceil",
	"Trunc": "trunc", "Round": "round", "RoundToEven": "rint", "Hypot": "hypot", "Cbrt": "cbrt", "Erf": "erf",
	"Erfc": "erfc", "Gamma": "tgamma", "Copysign": "copysign", "Mod": "fmod", "Remainder": "remainder", "FMA": "fma",
	"Ldexp": "spmd::ldexp", "Max": "spmd::math_max", "Min": "spmd::math_min", "IsNaN": "spmd::is_nan",
	"IsInf": "spmd::is_inf", "Inf": "spmd::inf", "NaN": "spmd::nan", "Signbit": "spmd::signbit_of",
	"Float32bits": "__float_as_uint", "Float32frombits": "__uint_as_float", "Float64bits": "spmd::double_bits",
	"Float64frombits": "spmd::bits_double"}

// bitsFunctions are the functions of package math/bits.
var bitsFunctions = map[string]string{"Mul64": "spmd::mul64"}

func init() {
	for name, c := range map[string]string{"OnesCount": "ones", "Len": "bit_len", "LeadingZeros": "leading",
		"TrailingZeros": "trailing", "RotateLeft": "rotate", "Reverse": "reverse", "ReverseBytes": "reverse_bytes"} {
		for _, size := range []string{"8", "16", "32", "64"} {
			bitsFunctions[name+size] = "spmd::" + c + "<uint" + size + "_t>"
		}
		bitsFunctions[name] = bitsFunctions[name+"64"]
	}
}

// complexFunctions are the functions of package math/cmplx.
var complexFunctions = map[string]string{"Abs": "spmd::complex_abs", "Conj": "spmd::conj"}

// spmdFunctions are the functions of package spmd.
var spmdFunctions = map[string]string{"UniformBits": "spmd::uniform_bits", "RandomBits": "spmd::random_bits",
	"ToBF16": "from_float<bf16>", "ToF16": "from_float<f16>",
	"ToF8E4M3": "from_float<f8e4m3>", "ToF8E5M2": "from_float<f8e5m2>", "AtomicAdd": "spmd::atomic_add",
	"AtomicMax": "spmd::atomic_max", "Widen": "to_float", "Narrow": "from_float"}

// libraries are the functions of other packages, by their paths.
var libraries = map[string]map[string]string{"math": mathFunctions, "math/cmplx": complexFunctions,
	"math/bits": bitsFunctions, "lockstep/spmd": spmdFunctions,
	"lockstep/internal/elem": {"MixBits": "mix", "Float32": "to_float"}}

// Has reports whether C++ has a function of another package.
func Has(o *types.Func) bool { return libraries[o.Pkg().Path()][o.Name()] != "" }

// library prints a call of a function of another package.
func (p *printer) library(e *ir.Expr) string {
	name := libraries[e.Obj.Pkg().Path()][e.Obj.Name()]
	if e.Obj.Name() == "Narrow" {
		name += "<" + p.CType(e.At, e.Type) + ">"
	}
	return name + "(" + p.list(e.Args) + ")"
}

func (p *printer) builtin(e *ir.Expr) string {
	switch e.Name {
	case "real", "imag":
		return fmt.Sprintf("(%s).%s", p.expr(e.Args[0]), e.Name[:2])
	case "complex":
		return fmt.Sprintf("(%s{%s})", p.CType(e.At, e.Type), p.list(e.Args))
	}
	text := p.expr(e.Args[0])
	for _, a := range e.Args[1:] {
		text = fmt.Sprintf("spmd::%s_of<%s>(%s, %s)", e.Name, p.CType(e.At, e.Type), text, p.expr(a))
	}
	return text
}
