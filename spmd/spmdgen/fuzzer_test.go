package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// variable is one that a random kernel may use.
type variable struct {
	name, of string
	fixed    bool // may not be set
}

// fuzzer writes random kernels, by rules.
type fuzzer struct {
	*rand.Rand
	vars, fresh   []variable      // fresh are those that a statement declares
	used, changed map[string]bool // by a statement: Go leaves the order of both open
	budget, scope int
	rows, inLoop  bool
}

const (
	numbers  = "int32 int32 int64 uint8 int8 int16 uint16 uint32 uint64 int float32 float64"
	integers = "int32 int64 uint8 int8 int16 uint16 uint32 uint64 int"
	hostile  = "exp sin linux unix errno I AT SUB register double auto this class value_1 place_1 result_1 body_1 " +
		"n_1 i_1 part_1 x_1 v w é slot all_1 go_ spmd std r_ end_1 next_1 NULL abs printf uint32_t"
)

// constants are those at the edges of types, and others.
var constants = map[string]string{"bool": "true false", "int": "0 1 3 -2 1<<33 -1<<63",
	"int32": "0 1 -1 2147483647 -2147483648 7 int32(-5) 'x'", "uint64": "0 1 1<<63 18446744073709551615",
	"int64": "0 1 -1 9223372036854775807 -9223372036854775808 1<<40", "uint8": "0 255 128 3", "int8": "-128 127 -1 5",
	"int16": "-32768 32767 9", "uint16": "65535 1 255", "uint32": "0 4294967295 1<<31 77", "complex64": "2i 1 -0.5+3i",
	"float32": "0 1 -2.5 0.1 1e-3 16777217 3 1e38 1e-45", "float64": "0 1 -2.5 0.1 1e-3 16777217 1e300 5e-324"}

// rule is what stands between two rules.
var rule = regexp.MustCompile(`  |\n`)

// expressions are rules for values of a type. <T> is a value, <$T> a variable or another value that
// is no constant, <&T> a variable that a call changes, <@T> a place that the statement sets. mem is
// the memory behind slices. I, N and F are an integer type, any number's, and a float's.
var expressions = func() map[string][]string {
	rules := map[string]string{"bool": `
(<bool> && <bool>)  (<bool> || <bool>)  !<bool>  test(&<&int32>, <bool>)  (<$N> < <N>)  (<$N> == <N>)
(<$N> >= <N>)  (<$N> != <N>)  math.IsNaN(<float64>) != math.IsInf(<float64>, -1)`, "int32": `
next(&<&int32>)  next(&<&int32>)  <$mem><$[]int32>[<at>]  <$[4]int32>[<$int32>&3]  <&pair>.put(<int32>)
<$pair>.get(<int32>)  pair_get(<$pair>, <int32>)  <$pair>.a  <$pair>.c[<$int32>&3]
<$[2]pair>[<$int32>&1].c[<at>]  <&mem>bump(<$[]int32>, <int32>)  <$mem>peek(<[]int32>, <int32>)  same(<$int32>)
same_int32(<$int32>)  int32(len(<$[]int32>))  int32(bits.OnesCount32(<uint32>))
int32(bits.Len64(<uint64>) - bits.TrailingZeros8(<uint8>))  [3]int32{<int32>, <int32>, 2}[<$uint8>%3]`, "uint32": `
bits.RotateLeft32(<uint32>, <int>)  bits.ReverseBytes32(<uint32>)`, "float32": `
<$pair>.b  <$mem><$[]float32>[<at>]  same(<$float32>)  real(<$complex64>)  imag(<$complex64>)`, "float64": `
math.Max(<float64>, <float64>)  math.Min(<float64>, <float64>)  math.Copysign(<float64>, float64(<$int8>))
math.Inf(1)  math.NaN()  math.FMA(<float64>, <float64>, <float64>)  math.Ldexp(<float64>, <int>&15)`, "complex64": `
complex(<$float32>, <float32>)  (<$complex64> + <complex64>)  (<$complex64> * <complex64>)
(<$complex64> / <complex64>)  -(<$complex64>)`, "pair": `
pair{c: [4]int32{1: <int32>}, b: <float32>}  pair{<int32>, <float32>, <[4]int32>}  turn(<pair>)
<$[2]pair>[<$int>&1]`, "[4]int32": `
[4]int32{<int32>, 2: <int32>}  <$pair>.c`, "[2]pair": `
[2]pair{<pair>, {a: <int32>}}  [2]pair{1: <pair>}`, "[]int32": `
<$[]int32>[:4]  <$[]int32>  cut(<[]int32>, <int32>)  pick(<[]int32>, <$[]int32>, <bool>)`, "[]float32": `
<$[]float32>  <$[]float32>[1:]`, "at": `
<$I>&3  <$int32>&3  <int32>&3  next(&<&int32>)&3`}
	for _, t := range slices.Compact(strings.Fields(numbers)) {
		rules[t] += `
(<$T> + <T>)  (<$T> - <T>)  (<$T> * <T>)  min(<$T>, <T>)  max(<T>, <$T>, <T>)  T(<$I>)  -(<$T>)`
		more := `
(<$T> / (<T> | 1))  (<$T> % (<T> | 1))  (<$T> << (<$uint8> % 70))  (<$T> >> (<$I> & 67))  (<$T> & <T>)
(<$T> | <T>)  (<$T> ^ <T>)  (<$T> &^ <T>)  ^<$T>  whole[F, T](<F>)`
		if strings.HasPrefix(t, "float") {
			more = `
(<$T> / <T>)  T(<$F>)  T(math.Sqrt(float64(<T>)))  T(math.Floor(float64(<T>)) - math.Ceil(float64(<T>)))
T(math.Mod(float64(<T>), float64(<$T>)))
T(math.RoundToEven(float64(<$T>)) + math.Trunc(float64(<T>)) + math.Abs(float64(<T>)))`
		}
		rules[t] = regexp.MustCompile(`\bT\b`).ReplaceAllString(rules[t]+more, t)
	}
	all := map[string][]string{}
	for t, text := range rules {
		all[t] = rule.Split(strings.TrimSpace(text), -1)
	}
	return all
}()

// statements are rules, too. <^T> is a place that is read, too, <+T> a new variable, <!T> one of a
// name that is not in use and that may not be set, <~T> one that may; <1> and <2> are their names.
var statements = rule.Split(`<+D> := <$D>  var <+D> D = <D>  var <+D> D = <D>  var <+N> N = <N>
<@S> = <S>  <@S> = <S>  <@S> = <S>  <^N> += <N>  <^N> *= <N>  <^I> -= <I>  <^I> <<= <$uint8> % 9  <@int32>, <@float32> = <int32>, <float32>
if <bool> {<block>}  if <bool> {<block>} else if <bool> {<block>} else {<block>}
if <~I> := <$I>; <1> > 3 {<block>}  for <!int32> := int32(0); <1> < 3 && <bool>; <1>++ {<block>}
switch <int32> { case <$int32>, <int32>: <block> default: <block>}
switch { case <bool>: <block> case <bool>: <block>}  {<block>}  <&pair>.put(<int32>)  <&pair>.put(<int32>)
var <+pair> pair  { const edge int32 = 1 << 3 - 10; <^int32> += edge}`, -1)

// Not in loops over the elements of a row, and not in kernels of rows.
var (
	outsideLoops = rule.Split(`<+[]int32> := <[]int32>  <$mem><$[]int32>[<at>] += <int32>  <$[]int32>[<at>] = <int32>
<$[]float32>[<at>] = <float32>`, -1)
	notInRows = rule.Split(`<@[]int32>, <@[]int32> = <$[]int32>, <[]int32>
for _, <~int32> := range <[4]int32> {<block>}
for _, <~pair> := range <$[2]pair> {<block>}  for <!int32> := range int32(3) {<block>}
for <!int>, <~int32> := range <$[]int32>[:3] {<$[]int32>[<1>] ^= <2>; <block>}
set(<$[]float32>, <int32>, <float32>)  <&pair>.reset()  <@int32>, <@float32> = two(&<&int32>)
_, <@float32> = two(&<&int32>)  <@int32>, _, <@int32> = three(<int32>)  <+*pair> := &<&pair>
<$*pair>.a, <$*pair>.b = <int32>, <float32>  <$*pair>.put(<int32>)
<label>: for <!int32> := range int32(3) { for range 3 { if <bool> { break <label>}; <block>}; <block>}
<label>: for <!int32> := range int32(3) { for range 3 { if <bool> { continue <label>}; <block>}; <block>}`, -1)
)

func (f *fuzzer) any(list ...string) string { return list[f.IntN(len(list))] }

// of returns a variable of a type, or "".
func (f *fuzzer) of(t string, may func(v variable) bool) string {
	found := []string{}
	hidden := map[string]bool{}
	for _, v := range slices.Backward(f.vars) {
		if v.of == t && !hidden[v.name] && may(v) {
			found = append(found, v.name)
		}
		hidden[v.name] = true
	}
	if len(found) == 0 {
		return ""
	}
	return f.any(found...)
}

// use returns a variable that is read, or "".
func (f *fuzzer) use(t string) string {
	name := f.of(t, func(v variable) bool { return !f.changed[v.name] })
	if name == "" && slices.Contains(strings.Fields(numbers), t) && t != "int32" {
		if name = f.use("int32"); name != "" {
			return t + "(" + name + ")"
		}
	}
	f.used[name] = true
	return name
}

func (f *fuzzer) value(t string, depth int) string {
	rules := expressions[t]
	for range 5 {
		rule := f.any(rules...)
		calls := strings.Contains(rule, "<&mem>") || strings.HasPrefix(t, "[]") && strings.Contains(rule, "(")
		if depth > 0 && f.IntN(8) > 0 && !(calls && f.rows) {
			if text := f.fill(rule, depth-1); text != "" {
				return text
			}
		}
	}
	if constants[t] == "" {
		return f.use(t)
	}
	if f.IntN(3) > 0 {
		if name := f.use(t); name != "" {
			return name
		}
	}
	return f.any(strings.Fields(constants[t])...)
}

// places are parts of variables that a statement may set.
var places = map[string][]string{"float32": {"<@pair>.b"}, "pair": {"<@[2]pair>[<$int32>&1]"},
	"int32": {"<@[4]int32>[<$int32>&3]", "<@pair>.a", "<@pair>.c[<$int8>&3]", "<@[2]pair>[<$int>&1].c[2]"}}

func (f *fuzzer) place(t string) string {
	if list := places[t]; list != nil && f.IntN(2) == 0 {
		return f.fill(f.any(list...), 0)
	}
	return f.of(t, func(v variable) bool { return !v.fixed })
}

// name returns a name that variables have not.
func (f *fuzzer) name(but []variable) string {
	for {
		n := f.any(strings.Fields(hostile)...)
		if !slices.ContainsFunc(slices.Concat(but, f.fresh), func(v variable) bool { return v.name == n }) {
			return n
		}
	}
}

var (
	calling = regexp.MustCompile(`(next|same\w*|get|put|peek|bump|turn|whole|test|cut|pick|(math|bits)\.\w+)[[(]`)
	holes   = regexp.MustCompile(`<([$&@^+!~]?)([^<> =]+)>|\{`)
	kinds   = regexp.MustCompile(`\b[INFDS]\b`)
	kind    = map[string]string{"I": integers, "N": numbers, "F": "float32 float64", "S": numbers + " pair [4]int32",
		"D": numbers + " bool [4]int32 pair [2]pair complex64"}
)

// fill returns a rule with its holes filled, or "" if there is no variable for one.
func (f *fuzzer) fill(rule string, depth int) string {
	is := map[string]string{}
	rule = kinds.ReplaceAllStringFunc(rule, func(k string) string {
		if is[k] == "" {
			is[k] = f.any(strings.Fields(kind[k])...)
		}
		return is[k]
	})
	ok, first := true, len(f.fresh)
	if calling.MatchString(rule) && depth < 2 { // what a call is given is read in its turn
		used, changed := f.used, f.changed
		f.used, f.changed = maps.Clone(used), map[string]bool{}
		defer func() {
			maps.Copy(changed, f.changed)
			f.used, f.changed = used, changed
		}()
	}
	text := holes.ReplaceAllStringFunc(rule, func(hole string) (got string) {
		m := holes.FindStringSubmatch(hole)
		t := m[2]
		switch n, err := strconv.Atoi(t); {
		case hole == "{": // what the statement declares is in scope
			for _, v := range f.fresh[first:] {
				hole += " _ = " + v.name + "\n"
			}
			f.vars = append(f.vars, f.fresh[first:]...)
			return hole
		case err == nil:
			return f.fresh[first+n-1].name
		case t == "block":
			return "\n" + f.block(3) + "\n"
		case t == "label":
			return fmt.Sprint("out", f.budget)
		case t == "mem":
			ok = ok && !f.changed[t] && !(m[1] == "&" && f.used[t])
			f.used[t], f.changed[t] = true, f.changed[t] || m[1] == "&"
			return ""
		case m[1] == "":
			got = f.value(t, depth)
		case m[1] == "$" && constants[t] != "" && depth > 0 && f.IntN(2) == 0:
			got = f.fill(f.any(expressions[t]...), depth-1)
		case m[1] == "$":
			got = f.use(t)
		case m[1] == "@":
			got = f.place(t)
		case m[1] == "^":
			got = f.place(t)
			of, _, _ := strings.Cut(strings.ReplaceAll(got, "[", "."), ".")
			ok, f.used[of] = ok && !f.changed[of], true
		case m[1] == "&":
			got = f.of(t, func(v variable) bool { return !v.fixed && !f.used[v.name] })
			f.changed[got] = true
		default:
			block := f.vars
			if m[1] == "+" {
				block = f.vars[f.scope:]
			}
			got = f.name(block)
			f.fresh = append(f.fresh, variable{got, t, m[1] == "!"})
		}
		ok = ok && got != ""
		return got
	})
	if !ok {
		return ""
	}
	return text
}

// block returns at most n statements.
func (f *fuzzer) block(n int) string {
	vars, fresh, scope := f.vars, f.fresh, f.scope
	f.scope = len(vars)
	text := ""
	for range 1 + f.IntN(n) {
		text += f.statement()
	}
	f.vars, f.fresh, f.scope = vars, fresh, scope
	return text
}

func (f *fuzzer) statement() string {
	rules := statements
	if !f.inLoop {
		rules = slices.Concat(rules, outsideLoops)
	}
	if !f.rows {
		rules = slices.Concat(rules, notInRows)
	}
	f.budget--
	for tries := 0; f.budget >= 0 && tries < 20; tries++ {
		vars := f.vars
		f.fresh, f.used, f.changed = nil, map[string]bool{}, map[string]bool{}
		rule := f.any(rules...)
		text := f.fill(rule, 2)
		f.vars = vars
		if text == "" {
			continue
		}
		if strings.Contains(rule, "<+") {
			f.vars = append(f.vars, f.fresh...)
			text += "\n_ = " + f.fresh[0].name
		}
		return text + "\n"
	}
	return ""
}

// declare adds variables, each a name and a type.
func (f *fuzzer) declare(list string) {
	for v := range slices.Chunk(strings.Fields(list), 2) {
		f.vars = append(f.vars, variable{v[0], v[1], false})
	}
}

// kernel returns a random kernel.
func (f *fuzzer) kernel(name string) string {
	f.vars, f.budget, f.rows, f.inLoop, f.scope = nil, 4+f.IntN(8), f.IntN(6) == 0, false, 0
	f.declare("n int32 by float32 s int32 t pair o [4]int32")
	if f.rows {
		f.declare("in []int32 out []int32 re []float32 im []float32")
		text := "//spmd:kernel rows=" + f.any("32", "64", "128") + "\nfunc " + name +
			`(i int, p, q []int32, x, y []float32, n int32, by float32) {
in, out, re, im := p[i*200:(i+1)*200], q[i*200:(i+1)*200], x[i*200:(i+1)*200], y[i*200:(i+1)*200]
s, sum := int32(i), int32(0)
var o [4]int32
var t pair
_, _, _, _, _ = sum, o, t, in, im
// first
`
		for range 1 + f.IntN(3) {
			text += f.statement() + f.elements()
		}
		return text + "out[0] += s + o[1] + t.get(n) + sum\nre[1], im[2] = by, t.b\n}\n"
	}
	f.declare("a []int32 b []int32 c []int32 d []float32")
	result, end := f.any("", "", "", "", " int32"), ""
	if result != "" {
		end = "return n + s\n"
	}
	at := f.any("i", "3*i", "3*i")
	text := "//spmd:kernel\nfunc " + name + "(i int, p, q []int32, x []float32, z []int32, n int32, by float32)" +
		result + ` {
a, b := halves(p[i*16:(i+1)*16])
c, d := q[i*16:(i+1)*16], x[i*16:(i+1)*16]
s, t, o := z[` + at + `], pair{a: n}, [4]int32{}
// first
`
	for f.budget > 0 {
		text += f.statement()
	}
	return text + "z[" + at + `] = s
a[0] += n
b[1] ^= o[2]
c[2] -= t.a
d[3] += t.b + by
c[1] += t.c[3]
` + end + "}\n"
}

// elements returns a loop over the elements of a row.
func (f *fuzzer) elements() string {
	x, y, other := f.any("in", "out"), "re", "im"
	if f.IntN(2) == 0 {
		y, other = other, y
	}
	set := x + "[j] " + f.any("", "+", "^") + "= k + m.a\n" + y + "[j] = float32(" +
		f.any(y+"[j]", y+"[j]", y+"[j]", other+"[199-j]", other+"[199-j]", other+"[199-j]", y+"[199-j]") + ")\n"
	if f.IntN(2) == 0 { // which may be the slice that another loop has written
		set = y + "[j] = float32(" + f.any("in", "out") + "[199-j] ^ m.a)\n"
	}
	vars, scope := f.vars, f.scope
	f.vars = nil
	for _, v := range vars {
		if !strings.HasPrefix(v.of, "[]") {
			f.vars = append(f.vars, variable{v.name, v.of, true})
		}
	}
	f.scope = len(f.vars)
	f.declare("k int32 m pair")
	f.inLoop = true
	text := "for j, e := range " + x + " {\nk := int32(j) ^ e\nm := pair{a: k}\n{\n" + f.block(3) + "}\n" + set +
		f.any("", "", "sum += k\n", "sum -= e\n") + "}\n"
	f.vars, f.scope, f.inLoop = vars, scope, false
	return text
}
