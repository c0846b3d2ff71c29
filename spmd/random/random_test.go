package random

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// on runs fn on one rank of a device.
func on(t *testing.T, device string, fn func(w *spmd.World, s *spmd.Stream)) {
	t.Helper()
	c := spmdtest.Config()
	c.Device = device
	if err := spmd.Local(t.Context(), c, 1, func(_ context.Context, w *spmd.World) error {
		fn(w, spmdtest.Stream(t, w, "random"))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

type fill[T float32 | float64] func(s *spmd.Stream, dst spmd.Buffer[T], seed uint64, offset int) error

func filled[T float32 | float64](t *testing.T, w *spmd.World, s *spmd.Stream, f fill[T], n int, seed uint64,
	offset int) []T {
	t.Helper()
	b, v := spmdtest.Alloc[T](t, w, n), make([]T, n)
	spmdtest.Must(t, f(s, b, seed, offset))
	spmdtest.Must(t, s.Synchronize())
	spmdtest.Must(t, b.CopyTo(v))
	return v
}

// The numbers are those of the formulas, with math's functions.
func TestFormulas(t *testing.T) {
	on(t, spmdtest.Config().Device, func(w *spmd.World, s *spmd.Stream) {
		const n, seed, offset = 20_000, 42, 7
		uniform, single := filled(t, w, s, Uniform[float64], n, seed, offset),
			filled(t, w, s, Uniform[float32], n, seed, offset)
		normal, short := filled(t, w, s, Normal[float64], n, seed, offset),
			filled(t, w, s, Normal[float32], n, seed, offset)
		for i := range n {
			at := uint64(offset + i)
			bits := spmd.RandomBits(seed, at)
			if want := math.Ldexp(float64(bits>>11), -53); uniform[i] != want ||
				single[i] != float32(math.Ldexp(float64(bits>>40), -24)) {
				t.Fatalf("place %d: %v and %v, want %v", at, uniform[i], single[i], want)
			}
			pair := at / 2
			u, v := spmd.RandomBits(seed^other, 2*pair), spmd.RandomBits(seed^other, 2*pair+1)
			want := func(u, v float64) float64 {
				sin, cos := math.Sincos(2 * math.Pi * (v - 1./8))
				return math.Sqrt(-2*math.Log(u)) * []float64{cos, sin}[at%2]
			}
			if want := want(math.Ldexp(float64(u>>11+1), -53),
				math.Ldexp(float64(v>>11), -53)); math.Abs(normal[i]-want) > 1e-14 {
				t.Fatalf("place %d: %v, want %v", at, normal[i], want)
			}
			bits = spmd.RandomBits(seed^other, pair)
			u, v = bits>>32, bits&math.MaxUint32
			if want := want(math.Ldexp(float64(u+1), -32),
				math.Ldexp(float64(v), -32)); math.Abs(float64(short[i])-want) > 3e-6 {
				t.Fatalf("place %d: %v, want %v", at, short[i], want)
			}
		}
	})
}

// The numbers have their distribution: the largest distance from the distribution function is
// within chance.
func TestDistribution(t *testing.T) {
	on(t, spmdtest.Config().Device, func(w *spmd.World, s *spmd.Stream) {
		const n = 50_000
		check := func(what string, v []float64, distribution func(x float64) float64) {
			var neighbours float64
			for i := range n - 1 {
				neighbours += (distribution(v[i]) - 0.5) * (distribution(v[i+1]) - 0.5)
			}
			if most := 4 * math.Sqrt(n) / 12; math.Abs(neighbours) > most {
				t.Errorf("%s: the sum over neighbours is %v, at most %v", what, neighbours, most)
			}
			slices.Sort(v)
			for i, x := range v {
				if d := math.Abs(distribution(x) - (float64(i)+0.5)/n); d > 1.95/math.Sqrt(n) { // 1 in 1000 goes beyond
					t.Fatalf("%s: %v of the numbers are below %v, want %v", what, float64(i)/n, x, distribution(x))
				}
			}
		}
		wide := func(v []float32) (d []float64) {
			for _, x := range v {
				d = append(d, float64(x))
			}
			return d
		}
		even := func(x float64) float64 { return x }
		bell := func(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
		check("Uniform of float32", wide(filled(t, w, s, Uniform[float32], n, 1, 0)), even)
		check("Uniform of float64", filled(t, w, s, Uniform[float64], n, 2, 0), even)
		check("Normal of float32", wide(filled(t, w, s, Normal[float32], n, 3, 0)), bell)
		check("Normal of float64", filled(t, w, s, Normal[float64], n, 4, 0), bell)
	})
}

// The first start says that it compiles, while it does. The compiler goes on when it has said so,
// and fails.
func TestFirstStart(t *testing.T) {
	dir := t.TempDir()
	gate, cache := filepath.Join(dir, "gate"), filepath.Join(dir, "cache")
	spmdtest.Must(t, syscall.Mkfifo(gate, 0o600))
	let, err := os.OpenFile(gate, os.O_RDWR, 0)
	spmdtest.Must(t, err)
	defer let.Close()
	spmdtest.Must(t, os.WriteFile(filepath.Join(dir, "cxx"), []byte("#!/bin/sh\nread x <"+gate+"\nexit 1\n"), 0o700))
	t.Setenv("LOCKSTEP_CACHE", cache)
	t.Setenv("CXX", filepath.Join(dir, "cxx"))
	said, stderr, err := os.Pipe()
	spmdtest.Must(t, err)
	old, err := syscall.Dup(2)
	spmdtest.Must(t, err)
	spmdtest.Must(t, syscall.Dup3(int(stderr.Fd()), 2, 0))
	stderr.Close()
	go func() {
		defer syscall.Dup3(old, 2, 0) // which ends the log
		c := spmdtest.Config()
		c.Device, c.LogLevel, c.LogFormat = "emulate", "info", "json"
		_ = spmd.Local(t.Context(), c, 3, func(_ context.Context, w *spmd.World) error {
			s := spmdtest.Stream(t, w, "random")
			return errors.Join(Uniform(s, spmdtest.Alloc[float32](t, w, 1), 1, 0), s.Synchronize())
		})
	}()
	lines := 0
	for log := bufio.NewScanner(said); log.Scan(); {
		if strings.Contains(log.Text(), `"compiling and timing`) {
			lines++
			if !strings.Contains(log.Text(), `"kept":"`+cache) || !strings.Contains(log.Text(), " for this processor") {
				t.Error(log.Text())
			}
			_, err := let.WriteString(strings.Repeat("\n", 100))
			spmdtest.Must(t, err)
		}
	}
	if lines != 1 {
		t.Errorf("%d lines say what is compiled", lines)
	}
}

// Any division gives the same numbers, and so does CUDA C++.
func TestDivision(t *testing.T) {
	const n, seed = 1001, 9
	var whole []string
	all := func(w *spmd.World, s *spmd.Stream, n, offset int) []string {
		return []string{
			fmt.Sprintf("%x", filled(t, w, s, Uniform[float32], n, seed, offset)),
			fmt.Sprintf("%x", filled(t, w, s, Uniform[float64], n, seed, offset)),
			fmt.Sprintf("%x", filled(t, w, s, Normal[float32], n, seed, offset)),
			fmt.Sprintf("%x", filled(t, w, s, Normal[float64], n, seed, offset)),
		}
	}
	on(t, spmdtest.Config().Device, func(w *spmd.World, s *spmd.Stream) { whole = all(w, s, n, 0) })
	other := "emulate"
	if spmdtest.Config().Device == "cuda" {
		other = "host"
	}
	on(t, other, func(w *spmd.World, s *spmd.Stream) {
		if got := all(w, s, n, 0); !slices.Equal(got, whole) {
			t.Errorf("on %s the numbers differ", other)
		}
	})
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		part := spmd.ShardOf(n, w.Rank(), w.Size())
		s := spmdtest.Stream(t, w, "random")
		mine := all(w, s, part.Len, part.Off)
		for i := range whole {
			some, every := strings.Fields(strings.Trim(mine[i], "[]")), strings.Fields(strings.Trim(whole[i], "[]"))
			if !slices.Equal(some, every[part.Off:part.Off+part.Len]) {
				t.Errorf("array %d differs on rank %d", i, w.Rank())
			}
		}
		if got := filled(t, w, s, Normal[float64], 0, 1, 1); len(got) != 0 {
			t.Errorf("%v", got)
		}
		x := spmdtest.Alloc[float64](t, w, 3)
		for _, offset := range []int{-1, -3, math.MinInt, math.MaxInt - 2} {
			for name, fill := range map[string]func(*spmd.Stream, spmd.Buffer[float64], uint64, int) error{
				"Uniform": Uniform[float64], "Normal": Normal[float64]} {
				err := fill(s, x, 1, offset)
				if want := fmt.Sprintf("random.%s: 3 elements from number %d on", name, offset); err == nil ||
					!strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
		}
	})
}

// Fills work in a graph, and allocate nothing after the first.
func TestGraph(t *testing.T) {
	on(t, spmdtest.Config().Device, func(w *spmd.World, s *spmd.Stream) {
		want := filled(t, w, s, Normal[float32], 5, 3, 2)
		x, y := spmdtest.Alloc[float32](t, w, 5), spmdtest.Alloc[float64](t, w, 5)
		fills := func() {
			spmdtest.Must(t, Uniform(s, x, 3, 2))
			spmdtest.Must(t, Uniform(s, y, 3, 2))
			spmdtest.Must(t, Normal(s, y, 3, 2))
			spmdtest.Must(t, Normal(s, x, 3, 2))
		}
		g, err := s.Capture(func() error {
			fills()
			return nil
		})
		spmdtest.Must(t, err)
		spmdtest.Must(t, x.SetAll(7))
		spmdtest.Must(t, g.Launch(s))
		spmdtest.Must(t, s.Synchronize())
		if got := make([]float32, 5); x.CopyTo(got) != nil || !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		for range 100 { // every slot of the queue has had such launches
			fills()
			spmdtest.Must(t, s.Synchronize())
		}
		hold := make(chan bool)
		spmdtest.Must(t, s.HostFunc(func() error { <-hold; return nil }))
		if n := testkit.Allocations(5, fills); n > 0 {
			t.Errorf("fills allocate %v times", n)
		}
		close(hold)
		spmdtest.Must(t, s.Synchronize())
	})
}
