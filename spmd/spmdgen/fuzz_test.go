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
	limit := time.Duration(testkit.Few(t, "seconds of random kernels", 5, 60)) * time.Second
	if text := os.Getenv("LOCKSTEP_FUZZ"); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
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
		for k := range 100 {
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
