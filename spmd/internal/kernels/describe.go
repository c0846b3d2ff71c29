package kernels

import (
	"fmt"
	"strconv"
	"strings"
)

// Param is a parameter of a kernel.
type Param struct {
	Pointer bool
	// Kind is i for integers and bool, f for floats, h, b, e and w for float16, bfloat16 and the
	// two 8-bit floats, v for void and pointers to pointers, and s for other types.
	Kind byte
	Size int // of the value, or of what is pointed to
}

func (p Param) String() string {
	name := ""
	switch p.Kind {
	case 'i':
		name = fmt.Sprintf("int%d", 8*p.Size)
	case 'f':
		name = fmt.Sprintf("float%d", 8*p.Size)
	case 'h':
		name = "float16"
	case 'b':
		name = "bfloat16"
	case 'e':
		name = "float8e4m3"
	case 'w':
		name = "float8e5m2"
	case 'v':
		name = "void"
	default:
		name = fmt.Sprintf("a struct of %d bytes", p.Size)
	}
	if p.Pointer {
		return "a pointer to " + name
	}
	return name
}

// small are the floats of spmd.cuh.
const small = `
namespace emulated {
template <> struct described<f16> { static void to(char *&p) { p += sprintf(p, "h2"); } };
template <> struct described<bf16> { static void to(char *&p) { p += sprintf(p, "b2"); } };
template <> struct described<f8e4m3> { static void to(char *&p) { p += sprintf(p, "e1"); } };
template <> struct described<f8e5m2> { static void to(char *&p) { p += sprintf(p, "w1"); } };
}
`

// Describe returns the parameters of the kernels of a source by their names, as a C++ compiler
// understands their declarations. It makes no code of their bodies, which may have instructions of
// GPUs. dir keeps the results.
func Describe(dir string, s EmulatedSource) (map[string][]Param, error) {
	text := "#define EMULATE_NO_BODIES\n" + declared(s)
	if strings.Contains(s.Text, "#include \"spmd") {
		text += small
	}
	for i, name := range s.Names {
		text += fmt.Sprintf("DESCRIBE(describe_%d, (%s))\n", i, name)
	}
	functions, symbols := table("describe_", s.Names)
	if _, err := load(dir, "described", text, s, symbols, "-O0", "-fpermissive"); err != nil {
		return nil, err
	}
	all := map[string][]Param{}
	for i, name := range s.Names {
		params := []Param{}
		for _, word := range strings.Fields(sysDescribe(functions[i])) {
			rest, pointer := strings.CutPrefix(word, "p")
			p := Param{Pointer: pointer, Kind: rest[0]}
			var err error
			if p.Size, err = strconv.Atoi(rest[1:]); err != nil { // void, or a pointer
				p.Kind, p.Size = 'v', 0
			}
			params = append(params, p)
		}
		all[name] = params
	}
	return all, nil
}
