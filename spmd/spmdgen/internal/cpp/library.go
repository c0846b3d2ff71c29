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
	if e.Op != ir.Library || e.Obj.Pkg().Path() != "math" || !mathSingle[e.Obj.Name()] {
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
	return mathFunctions[e.Obj.Name()] + "f(" + strings.Join(args, ", ") + ")", true
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
