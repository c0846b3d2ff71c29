package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/internal/source"
	"lockstep/internal/testkit"
)

// helpers are what random kernels call: with effects, several results, and slices that move.
const helpers = `package main

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
	x[v&7] += v
	return x[0]
}

func peek(x []int32, v int32) int32 { return x[v&7] }

func set(x []float32, k int32, v float32) { x[k&7] = v }

func halves[T int32 | float32](x []T) (a, b []T) { return x[:8], x[8:] }

func pick(x, y []int32, first bool) []int32 {
	if first {
		return x
	}
	return y
}

func three(v int32) (a int32, _ float32, c int32) {
	a = v * 3
	c = a ^ 5
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

// accepted says whether a file of kernels can be translated.
func accepted(t *testing.T, text string) error {
	_, _, err := translate(folder(t, text), source.Output)
	return err
}

// Random kernels mean the same on the host and emulated. LOCKSTEP_FUZZ says how long, such as 1h;
// LOCKSTEP_FUZZ_SEED makes those of one seed again. A kernel may be refused, with its line.
func TestFuzz(t *testing.T) {
	limit, atOnce := time.Duration(0), testkit.Few(t, "random kernels and more", 40, 250)
	if testkit.AllCases() {
		limit = time.Minute
	}
	if text := os.Getenv("LOCKSTEP_FUZZ"); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		atOnce = 250
	}
	seed, err := strconv.ParseUint(os.Getenv("LOCKSTEP_FUZZ_SEED"), 10, 64)
	only := err == nil
	if !only {
		seed = uint64(time.Now().UnixNano())
	}
	ran, refused := 0, 0
	for begin := time.Now(); ; seed++ {
		f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 3))}
		text, each := helpers, map[string]string{}
		for k := range atOnce {
			name := fmt.Sprintf("k%d", k)
			one := f.kernel(name)
			err := accepted(t, helpers+one)
			var r *source.Refusal
			switch {
			case err == nil:
				text += one + "\n"
				each[name] = one
			case errors.As(err, &r) && strings.HasPrefix(r.What, "a kernel ") && r.At.Line > 0:
				refused++
			default:
				t.Fatalf("seed %d: %v\n%s", seed, err, numbered(helpers+one))
			}
		}
		got := runBoth(t, text)
		ran += len(each)
		for name, one := range each {
			if got[name] != "same" {
				t.Errorf("seed %d: %s: %s\n%s", seed, name, got[name], one)
			}
		}
		if only || t.Failed() || time.Since(begin) > limit {
			break
		}
	}
	t.Logf("%d kernels, and %d of %d that were refused", ran, refused, ran+refused)
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
	for range testkit.Few(t, "programs outside of what kernels have", 5, 50) {
		for _, what := range outside {
			one := f.kernel("k")
			for accepted(t, helpers+one) != nil {
				one = f.kernel("k")
			}
			lines := strings.Split(one, "\n")
			at := 3 + f.IntN(2) // behind the first statements
			if f.rows {
				at = 5
			}
			lines[at] += "\n{ n, a, t := int32(i), p, pair{}; _, _, _ = n, a, t\n" + what + "\n}"
			text := helpers + outsideHelpers + strings.Join(lines, "\n")
			want := strings.Count(text[:strings.Index(text, "\n"+what+"\n}")], "\n") + 2
			err := accepted(t, text)
			var r *source.Refusal
			declared := strings.Count(helpers, "\n")
			if !errors.As(err, &r) || r.At.Line != want &&
				(r.At.Line < declared || r.At.Line > declared+strings.Count(outsideHelpers, "\n")) {
				t.Fatalf("%v, want line %d: %s\n%s", err, want, what, numbered(text))
			}
		}
	}
}
