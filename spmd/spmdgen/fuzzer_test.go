package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// variable is one that a random kernel may use.
type variable struct{ name, of string }

// fuzzer writes random kernels.
type fuzzer struct {
	*rand.Rand
	b      strings.Builder
	depth  int
	vars   []variable
	fixed  map[string]bool // may not be set
	budget int
	rows   bool
	inLoop bool
}

var hostile = strings.Fields("exp sin linux unix errno I AT SUB register double auto this class value_1 place_1 " +
	"result_1 body_1 n_1 i_1 part_1 x_1 v w é slot all_1 go_ spmd std r_ end_1 next_1 NULL abs printf uint32_t")

func (f *fuzzer) line(format string, a ...any) {
	f.b.WriteString(strings.Repeat("\t", f.depth) + fmt.Sprintf(format, a...) + "\n")
}

func (f *fuzzer) any(list ...string) string { return list[f.IntN(len(list))] }

// of returns a variable of a type, or "".
func (f *fuzzer) of(t string, toSet bool) string {
	var found []string
	hidden := map[string]bool{}
	for i := len(f.vars) - 1; i >= 0; i-- {
		v := f.vars[i]
		if v.of == t && !hidden[v.name] && !(toSet && f.fixed[v.name]) {
			found = append(found, v.name)
		}
		hidden[v.name] = true
	}
	if len(found) == 0 {
		return ""
	}
	return f.any(found...)
}

func (f *fuzzer) constant(t string) string {
	switch t {
	case "bool":
		return f.any("true", "false")
	case "int32":
		return f.any("0", "1", "-1", "2147483647", "-2147483648", "7", "int32(-5)")
	case "int64":
		return f.any("0", "1", "-1", "9223372036854775807", "-9223372036854775808", "1<<40")
	case "uint8":
		return f.any("0", "255", "128", "3")
	case "int8":
		return f.any("-128", "127", "-1", "5")
	case "uint32":
		return f.any("0", "4294967295", "1<<31", "77")
	case "int":
		return f.any("0", "1", "3", "-2", "1<<33")
	case "float32", "float64":
		return f.any("0", "1", "-2.5", "0.1", "1e-3", "16777217", "3")
	case "[4]int32":
		return "[4]int32{" + f.expr("int32", 1) + ", 2: " + f.expr("int32", 1) + "}"
	case "pair":
		return "pair{c: [4]int32{1: " + f.expr("int32", 1) + "}, b: " + f.expr("float32", 1) + "}"
	}
	return f.of(t, false)
}

var integers = []string{"int32", "int64", "uint8", "int8", "uint32", "int"}

// number returns T(x), which is no constant.
func (f *fuzzer) number(t string, d int) string {
	if f.IntN(8) == 0 && t != "" {
		if v := f.of(t, false); v != "" {
			return v
		}
	}
	return t + "(" + f.variableOf(f.any(integers...), d) + ")"
}

func (f *fuzzer) variableOf(t string, d int) string {
	if v := f.of(t, false); v != "" {
		return v
	}
	if v := f.of("int32", false); v != "" {
		return t + "(" + v + ")"
	}
	return f.number(t, d)
}

func (f *fuzzer) index(d int) string { return f.variableOf(f.any("int32", "int", "uint8"), d) + "&7" }

func (f *fuzzer) expr(t string, d int) string {
	if d <= 0 {
		if f.IntN(3) == 0 {
			return f.constant(t)
		}
		if v := f.of(t, false); v != "" {
			return v
		}
		return f.constant(t)
	}
	e := func(t string) string { return f.expr(t, d-1) }
	switch t {
	case "bool":
		switch f.IntN(6) {
		case 0:
			return "(" + e("bool") + f.any(" && ", " || ") + e("bool") + ")"
		case 1:
			return "!" + e("bool")
		case 2:
			return "test(&" + f.of("int32", true) + ", " + e("bool") + ")"
		}
		of := f.any("int32", "int64", "uint32", "float32", "int8")
		return "(" + f.number0(of, d) + f.any(" < ", " == ", " >= ", " != ") + e(of) + ")"
	case "float32", "float64":
		switch f.IntN(8) {
		case 0:
			if x := f.of("[]float32", false); x != "" && t == "float32" {
				return x + "[" + f.index(d-1) + "]"
			}
		case 1:
			return f.any("min", "max") + "(" + f.number0(t, d) + ", " + e(t) + ")"
		case 2:
			if t == "float32" {
				if p := f.of("pair", false); p != "" {
					return p + ".b"
				}
			}
		case 3:
			return t + "(" + f.variableOf(f.any("int32", "uint8", "int8"), d) + ")"
		case 4:
			if t == "float32" {
				return "same(" + f.number0("float32", d) + ")"
			}
		}
		return "(" + f.number0(t, d) + f.any(" + ", " - ", " * ") + e(t) + ")"
	case "[4]int32", "pair":
		return f.constant(t)
	case "[]int32":
		if x := f.of(t, false); x != "" && f.IntN(2) == 0 && !f.rows {
			return "pick(" + x + ", " + f.of(t, false) + ", " + e("bool") + ")"
		}
		return f.of(t, false)
	case "[]float32":
		return f.of(t, false)
	}
	if t == "int32" {
		switch f.IntN(12) {
		case 0, 1:
			return "next(&" + f.of("int32", true) + ")"
		case 2:
			if x := f.of("[]int32", false); x != "" {
				return x + "[" + f.index(d-1) + "]"
			}
		case 3:
			if x := f.of("[4]int32", false); x != "" {
				return x + "[" + f.variableOf("int32", d-1) + "&3]"
			}
		case 4:
			if p := f.of("pair", true); p != "" {
				return p + f.any(".put(", ".get(") + e("int32") + ")"
			}
		case 5:
			if p := f.of("pair", false); p != "" {
				return f.any("pair_get("+p+", "+e("int32")+")", p+".a")
			}
		case 6:
			if x := f.of("[]int32", false); x != "" && !f.inLoop {
				return f.any("bump", "peek", "peek") + "(" + x + ", " + e("int32") + ")"
			}
		case 7:
			return f.any("same(", "same_int32(") + f.number0("int32", d) + ")"
		}
	}
	switch f.IntN(8) {
	case 0:
		return f.number(t, d-1)
	case 1:
		return "(" + f.number0(t, d) + f.any(" / ", " % ") + "(" + e(t) + " | 1))"
	case 2:
		return "(" + f.number0(t, d) + f.any(" << ", " >> ") + "(" + f.variableOf("uint8", d-1) + " % 70))"
	case 3:
		return f.any("-", "^") + f.number0(t, d)
	case 4:
		return f.any("min", "max") + "(" + f.number0(t, d) + ", " + e(t) + ")"
	}
	return "(" + f.number0(t, d) + f.any(" + ", " - ", " * ", " & ", " | ", " ^ ", " &^ ") + e(t) + ")"
}

// number0 is an operand that is no constant, so that no constant overflows.
func (f *fuzzer) number0(t string, d int) string {
	if strings.HasPrefix(t, "float") {
		if v := f.of(t, false); v != "" {
			return v
		}
		return t + "(" + f.variableOf("int8", d) + ")"
	}
	if d > 1 && t == "int32" && f.IntN(2) == 0 {
		return "next(&" + f.of("int32", true) + ")"
	}
	return f.variableOf(t, d)
}

var declared = strings.Fields("int32 int32 int64 uint8 int8 uint32 int float32 float64 bool [4]int32 pair " +
	"[]int32 []float32")

// name returns a name that the scope from first on has not.
func (f *fuzzer) name(first int) string {
	for {
		n := f.any(hostile...)
		taken := false
		for _, v := range f.vars[first:] {
			taken = taken || v.name == n
		}
		if !taken {
			delete(f.fixed, n)
			return n
		}
	}
}

func (f *fuzzer) place(t string) string {
	switch f.IntN(4) {
	case 0:
		if x := f.of("[4]int32", true); x != "" && t == "int32" {
			return x + "[" + f.variableOf("int32", 1) + "&3]"
		}
	case 1:
		if x := f.of("pair", true); x != "" {
			if t == "float32" {
				return x + ".b"
			} else if t == "int32" {
				return x + f.any(".a", ".c["+f.variableOf("int8", 1)+"&3]")
			}
		}
	case 2:
		if x := f.of("[]"+t, false); x != "" && !f.inLoop {
			return x + "[" + f.index(1) + "]"
		}
	}
	return f.of(t, true)
}

func (f *fuzzer) block(n int) {
	f.depth++
	vars, first := f.vars, len(f.vars)
	for range 1 + f.IntN(n) {
		f.stmt(first)
	}
	f.vars = vars
	f.depth--
}

func (f *fuzzer) declare(first int, t, value string) {
	n := f.name(first)
	f.line("%s := %s", n, value)
	f.line("_ = %s", n)
	f.vars = append(f.vars, variable{n, t})
}

func (f *fuzzer) stmt(first int) {
	if f.budget--; f.budget < 0 {
		return
	}
	switch f.IntN(16) {
	case 0, 1, 2:
		t := f.any(declared...)
		if f.inLoop && strings.HasPrefix(t, "[]") {
			t = "int32"
		}
		value := f.expr(t, 2)
		if value == "" {
			return
		}
		if strings.Contains(" int32 int64 uint8 int8 uint32 float32 float64 ", " "+t+" ") {
			n := f.name(first)
			f.line("var %s %s = %s", n, t, value)
			f.line("_ = %s", n)
			f.vars = append(f.vars, variable{n, t})
			return
		}
		f.declare(first, t, value)
	case 3, 4:
		t := f.any("int32", "int32", "float32", "int64", "uint8", "bool", "[4]int32", "pair")
		if p := f.place(t); p != "" {
			f.line("%s = %s", p, f.expr(t, 3))
		}
	case 5:
		t := f.any("int32", "int64", "uint8", "float32", "float64")
		if p := f.place(t); p != "" {
			f.line("%s %s= %s", p, f.any("+", "-", "*"), f.expr(t, 2))
		}
	case 6:
		t := f.any("int32", "float32")
		p, q := f.place(t), f.place(t)
		if p != "" && q != "" {
			f.line("%s, %s = %s, %s", p, q, f.any(q, f.expr(t, 2)), f.any(p, f.expr(t, 2)))
		}
	case 7:
		if x, y := f.of("[]int32", true), f.of("[]int32", true); x != "" && !f.inLoop {
			f.line("%s, %s = %s, %s", x, y, y, x)
		}
	case 8:
		f.line("if %s {", f.expr("bool", 2))
		f.block(3)
		if f.IntN(2) == 0 {
			f.line("} else if %s {", f.expr("bool", 2))
			f.block(2)
		}
		f.line("}")
	case 9:
		n := f.name(0)
		f.line("for %s := %s; %s < 3 && %s; %s++ {", n, "int32(0)", n, f.expr("bool", 1), n)
		f.loop(variable{n, "int32"}, true)
	case 10:
		n := f.name(0)
		if f.rows && !f.inLoop {
			return
		}
		if x := f.of("[4]int32", false); x != "" && f.IntN(2) == 0 {
			f.line("for _, %s := range %s {", n, x)
			f.loop(variable{n, "int32"}, false)
			return
		}
		f.line("for %s := range int32(3) {", n)
		f.loop(variable{n, "int32"}, false)
	case 11:
		f.line("switch %s {", f.expr("int32", 2))
		f.line("case %s, %s:", f.of("int32", false), f.expr("int32", 2))
		f.block(2)
		f.line("default:")
		f.block(2)
		f.line("}")
	case 12:
		label := fmt.Sprintf("out%d", f.budget)
		a := f.name(0)
		if f.rows {
			return
		}
		f.line("%s:\n\tfor %s := range int32(3) {", label, a)
		f.vars = append(f.vars, variable{a, "int32"})
		f.line("for range 3 {")
		f.line("if %s {\n%s %s\n}", f.expr("bool", 2), f.any("break", "continue"), label)
		f.vars = f.vars[:len(f.vars)-1]
		f.loop(variable{a, "int32"}, false)
		f.line("}")
	case 13:
		if f.inLoop || f.rows {
			return
		}
		switch f.IntN(4) {
		case 0:
			if x := f.of("[]float32", false); x != "" {
				f.line("set(%s, %s, %s)", x, f.expr("int32", 2), f.expr("float32", 2))
			}
		case 1:
			if p := f.of("pair", true); p != "" {
				f.line("%s.reset()", p)
			}
		case 2:
			f.line("%s, %s = two(&%s)", f.place("int32"), f.any("_", f.of("float32", true)), f.of("int32", true))
		default:
			f.line("%s, _, %s = three(%s)", f.place("int32"), f.of("int32", true), f.expr("int32", 2))
		}
	case 14:
		f.line("{")
		f.block(3)
		f.line("}")
	default:
		if p := f.of("pair", true); p != "" {
			f.line("%s.put(%s)", p, f.expr("int32", 2))
		}
	}
}

func (f *fuzzer) loop(v variable, set bool) {
	vars := f.vars
	f.vars = append(f.vars, v)
	was := f.fixed[v.name]
	f.fixed[v.name] = set // or it might not end
	f.depth++
	f.line("_ = %s", v.name)
	f.depth--
	f.block(3)
	f.fixed[v.name] = was
	f.vars = vars
	f.line("}")
}

// kernel writes one random kernel.
func (f *fuzzer) kernel(name string) string {
	f.b.Reset()
	f.vars, f.fixed, f.budget, f.depth, f.rows, f.inLoop = nil, map[string]bool{}, 14, 1, f.IntN(4) == 0, false
	if f.rows {
		f.line("//spmd:kernel rows=%s", f.any("32", "64", "128"))
		f.b.WriteString("func " + name + "(i int, p, q []int32, x, y []float32, n int32, by float32) {\n")
		f.line("in, out, re, im := p[i*200:(i+1)*200], q[i*200:(i+1)*200], x[i*200:(i+1)*200], y[i*200:(i+1)*200]")
		f.vars = []variable{{"n", "int32"}, {"by", "float32"}, {"in", "[]int32"}, {"out", "[]int32"},
			{"re", "[]float32"}, {"im", "[]float32"}}
		f.line("s, sum := int32(i), int32(0)")
		f.vars = append(f.vars, variable{"s", "int32"}, variable{"sum", "int32"})
		f.line("var o [4]int32\n\tvar t pair\n\t_, _, _, _, _ = sum, o, t, in, im")
		f.vars = append(f.vars, variable{"o", "[4]int32"}, variable{"t", "pair"})
		for range 3 {
			f.stmt(0)
			f.elements()
		}
		f.line("out[0] += s + o[1] + t.get(n) + sum\n\tre[1], im[2] = by, t.b\n}")
		return f.b.String()
	}
	f.b.WriteString("//spmd:kernel\nfunc " + name + "(i int, p, q []int32, x []float32, n int32, by float32) int32 {\n")
	f.line("a, b := halves(p[i*16:(i+1)*16])\n\tc, d := q[i*16:(i+1)*16], x[i*16:(i+1)*16]")
	f.line("s, t, o := int32(i), pair{a: n}, [4]int32{}")
	f.vars = []variable{{"n", "int32"}, {"by", "float32"}, {"a", "[]int32"}, {"b", "[]int32"}, {"c", "[]int32"},
		{"d", "[]float32"}, {"s", "int32"}, {"t", "pair"}, {"o", "[4]int32"}}
	first := len(f.vars)
	for range 6 {
		f.stmt(first)
	}
	f.line("a[0] += s\n\tb[1] ^= o[2]\n\tc[2] -= t.a\n\td[3] += t.b + by\n\treturn n + t.c[3]\n}")
	return f.b.String()
}

// elements writes a loop over the elements of a row.
func (f *fuzzer) elements() {
	x, y := f.any("in", "out"), f.any("re", "im")
	f.line("for j, e := range %s {", x)
	vars := f.vars
	outside := map[string]bool{}
	for _, v := range f.vars {
		outside[v.name] = f.fixed[v.name]
		f.fixed[v.name] = true
	}
	f.vars = nil
	for _, v := range vars {
		if !strings.HasPrefix(v.of, "[]") && v.name != "sum" {
			f.vars = append(f.vars, v)
		}
	}
	f.depth++
	f.line("k := int32(j) ^ e\n\tm := pair{a: k}")
	f.depth--
	f.vars = append(f.vars, variable{"k", "int32"}, variable{"m", "pair"})
	delete(f.fixed, "k")
	delete(f.fixed, "m")
	f.inLoop = true
	f.line("\t{")
	f.block(3)
	f.line("\t}")
	f.inLoop = false
	f.line("\t%s[j] %s= k + m.a\n\t%s[j] = float32(%s[%s])", x, f.any("", "+", "^"), y, f.any("re", y),
		f.any("j", "j", "199-j"))
	f.line("\tsum %s %s", f.any("+=", "-="), f.any("k", "e"))
	f.line("}")
	f.vars = vars
	for n, was := range outside {
		f.fixed[n] = was
	}
}
