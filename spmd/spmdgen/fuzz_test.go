package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/internal/source"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdgen/internal/cpp"
	"lockstep/spmd/spmdgen/internal/ir"
)

// helpers are what random kernels call: with effects, several results, and slices that move.
const helpers = `package main

import (
	"math"
	"math/bits"
)

type pair struct {
	a int32
	b float32
	c [4]int32
}

func (p *pair) put(v int32) int32 {
	p.c[v&3] += v
	p.a++
	return p.c[0]
}

func (p pair) get(v int32) int32 { return p.a + p.c[v&3] }

func (p *pair) reset() { *p = pair{a: p.a + 1} }

func pair_get(p pair, v int32) int32 { return p.a - v }

func next(s *int32) int32 {
	*s = *s*1664525 + 1013904223
	return *s >> 8
}

func bump(x []int32, v int32) int32 {
	x[v&3] += v
	return x[0]
}

func peek(x []int32, v int32) int32 { return x[v&3] }

func set(x []float32, k int32, v float32) { x[k&3] = v }

func halves[T int32 | float32](x []T) (a, b []T) { return x[:8], x[8:] }

func cut(x []int32, v int32) []int32 { return x[(len(x)-4)&int(v):] }

func turn(p pair) pair {
	p.c[p.a&3], p.a = p.a, p.c[1]
	return p
}

// whole converts what has a value in the other type.
func whole[F float32 | float64, I int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64 | int](v F) I {
	if v > -1 && v < 128 || ^I(0) < 0 && math.Abs(float64(v)) < 128 {
		return I(v)
	}
	return 7
}

func pick(x, y []int32, first bool) []int32 {
	if first {
		return x
	}
	return y
}

func three(v int32) (a int32, _ float32, c int32) {
	a = v * 3
	c = int32(bits.RotateLeft32(uint32(a), 5))
	return
}

func two(s *int32) (int32, float32) { return next(s), float32(next(s)&63) / 4 }

func test(s *int32, v bool) bool {
	*s += 1
	return v
}

func same[T int32 | float32](v T) T { return v }

func same_int32(v int32) int32 { return v + 1 }

`

// refusals says for each kernel of a file why it cannot be translated, if it cannot.
func refusals(t *testing.T, text string) map[string]*source.Refusal {
	t.Helper()
	dir := folder(t, text)
	src, err := source.Parse(dir, source.Output)
	if err != nil {
		t.Fatalf("%v\n%s", err, numbered(text))
	}
	c, err := src.Check(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*source.Refusal{}
	for _, d := range src.Kernels() {
		var err error
		func() {
			defer refused(&err)
			(&unit{cpp.New(ir.New(c, cpp.Has)), map[string]bool{}}).instances(d)
		}()
		if errors.As(err, new(*source.Refusal)) {
			all[d.Name.Name] = err.(*source.Refusal)
		}
	}
	return all
}

// Random kernels mean the same on the host and emulated, also if two slices are one. LOCKSTEP_FUZZ
// says how long, such as 1h; LOCKSTEP_FUZZ_SEED begins with a seed. A kernel may be refused, with
// its line.
func TestFuzz(t *testing.T) {
	limit, atOnce := time.Duration(0), testkit.Few(t, "random kernels and more", 60, 1000)
	if testkit.AllCases() {
		limit = time.Minute
	}
	if text := os.Getenv("LOCKSTEP_FUZZ"); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		atOnce = 1000
	}
	seed, err := strconv.ParseUint(os.Getenv("LOCKSTEP_FUZZ_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	ran, refused, why := 0, 0, map[string]int{}
	for begin := time.Now(); ; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 3))}
			var each []string
			for k := range atOnce {
				each = append(each, f.kernel(fmt.Sprint("k", k)))
			}
			for name, r := range refusals(t, helpers+strings.Join(each, "")) {
				k, _ := strconv.Atoi(name[1:])
				if !strings.HasPrefix(r.What, "a kernel ") || r.At.Line <= strings.Count(helpers, "\n") {
					t.Fatalf("%v\n%s", r, each[k])
				}
				refused++
				what := regexp.MustCompile(` \S+( here| for each| in one loop|, which keeps| lives)`)
				why[what.ReplaceAllString(r.What, " ..$1")]++
				each[k] = ""
			}
			compiler, ones := quick+fastForm, "false"
			if seed%2 == 1 {
				compiler, ones = quick+anyForm, "false, true"
			}
			if seed%16 == 7 {
				compiler = "" // as programs have it
			}
			got := runBoth(t, helpers+strings.Join(each, ""), compiler, ones)
			ran += len(got)
			for k, one := range each {
				if what := got[fmt.Sprint("k", k)]; what != "same" && one != "" {
					t.Errorf("%s\n%s", what, one)
				}
			}
		})
		t.Logf("%d kernels, and %d of %d that were refused", ran, refused, ran+refused)
		if t.Failed() || time.Since(begin) > limit {
			break
		}
	}
	for what, n := range why {
		t.Logf("%d times: %s", n, what)
	}
}

// outside are statements that kernels do not have. n is an int32, a a slice of them, t a pair.
var outside = strings.Split(`m := map[int32]int32{1: 2}; _ = m
s := []int32{1, 2}; _ = s
s := make([]int32, 3); _ = s
p := new(int32); _ = p
p := &pair{}; _ = p
f := func() int32 { return 1 }; n = f()
func() { n++ }()
go leaf()
defer leaf()
panic("x")
print("x")
var e any = n; _ = e
switch any(n).(type) { case int32: n++ }
c := make(chan int32); _ = c
select {}
goto out; out: n++
switch n { case 1: n++; fallthrough; case 2: n-- }
n = global
q := "text"; _ = q
for range "text" { n++ }
z := append(a, 1); _ = z
copy(a, a)
clear(a)
_ = cap(a)
_ = a[1:2:3]
type mine int32; var u mine; _ = u
n = recursive(n)
g := t.get; n = g(1)
if t == t { n++ }
switch t { case pair{}: n++ }
switch t.c { case [4]int32{}: n++ }
if t.c == [4]int32{1} { n++ }
if a == nil { n++ }
var u uintptr = 1; _ = u
u := struct{ a int32 }{1}; _ = u
pp := &t; ppp := &pp; _ = ppp
pa := &a; _ = pa
variadic(n, n)
variadic(a...)
b := box[int32]{1}; _ = b
var em embedded; _ = em
var sl slices; _ = sl
var none [0]int32; _ = none
var nothing struct{}; _ = nothing
var huge [1 << 40]int32; _ = huge
v, ok := any(n).(int32); _, _ = v, ok
for v := range seq { n += v }
n = int32(len(string(rune(n))))
n = *(*int32)(nil)
var d doer; d.do()
n += next(&n)
n = n + next(&n)
a[n] = next(&n)
x, y := n, next(&n); _, _ = x, y
t.a += t.put(n)
n = four()
n = int32(len([4]int32{next(&n)}))
var k int; for k = range a { n++ }; _ = k
n = (*pair).put(&t, n)
n = int32(real(complex(1, 2)) + float64(n) + float64(any(2.0).(float64)))`, "\n")

const outsideHelpers = `
var global int32

type embedded struct{ pair }

type slices struct{ a []int32 }

type box[T any] struct{ v T }

type doer interface{ do() }

func leaf() {}

func recursive(n int32) int32 { return recursive(n - 1) }

func variadic(a ...int32) {}

func seq(yield func(int32) bool) {}

func four() (a int32) {
	a, _, _, _ = more()
	return
}

func more() (a, b, c, d int32) { return }

`

// A random kernel with one statement that kernels do not have is refused at the statement's line,
// or at that of what it names.
func TestOutside(t *testing.T) {
	f := &fuzzer{Rand: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))}
	first := strings.Count(helpers, "\n")
	for range testkit.Few(t, "programs outside of what kernels have", 5, 200) {
		var plain []string // 60 in 100 can be translated
		text := helpers
		for k := range 3 * len(outside) {
			plain = append(plain, f.kernel(fmt.Sprint("k", k)))
			text += plain[k]
		}
		none := refusals(t, text)
		text = helpers + outsideHelpers
		last := strings.Count(text, "\n")
		at, want := 0, map[string]int{}
		for _, what := range outside {
			for none[fmt.Sprint("k", at)] != nil {
				at++
			}
			head, tail, _ := strings.Cut(plain[at], "// first\n")
			text += head + "{ n, a, t := int32(i), p, pair{}; _, _, _ = n, a, t\n"
			want[fmt.Sprint("k", at)] = strings.Count(text, "\n") + 1
			text += what + "\n}\n" + tail
			at++
		}
		for name, r := range refusals(t, text) {
			if line := want[name]; r.At.Line == line || first < r.At.Line && r.At.Line <= last {
				delete(want, name)
			} else {
				t.Errorf("%v, want line %d", r, line)
			}
		}
		if len(want) > 0 {
			t.Fatalf("%v are not refused\n%s", want, numbered(text))
		}
	}
}
