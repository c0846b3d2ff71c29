package main

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/apps/internal/apptest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// One element of a right product is spoiled, and the check finds it.
func TestCheckFindsAWrongProduct(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		c := config{Rows: 2, Cols: 3, Split: "columns"}
		sp, err := newSplit(w, c)
		spmdtest.Must(t, err)
		y, err := spmd.AllocPinned[float32](w, c.Rows)
		spmdtest.Must(t, err)
		number := func(seed uint64, i int) float64 { return float64(spmd.UniformBits(seed, uint64(i))) / (1 << 24) }
		for i := range c.Rows {
			p := 0.0
			for j := range c.Cols {
				p += number(w.Seed(), i*c.Cols+j) * number(w.Seed()+1, j)
			}
			y.Set(i, float32(p))
		}
		for _, tc := range []struct {
			factor float32
			wrong  bool
		}{{1, false}, {1.001, true}, {float32(math.NaN()), true}} {
			y.Set(1, y.At(1)*tc.factor)
			err, failure := maxRelErr[float32](w, c, sp, y)
			if failure != nil {
				t.Fatal(failure)
			}
			if wrong := !(err <= bound(c.Cols)); wrong != tc.wrong {
				t.Errorf("y[1] times %v: relative error %g", tc.factor, err)
			}
		}
	})
}

func TestWrongProduct(t *testing.T) {
	apptest.Reports(t, "the product is wrong", func(w *spmd.World, e float64) error {
		return report(w, result{Rows: 2, Cols: 3, MaxRelErr: e})
	})
}

func TestProgram(t *testing.T) {
	spmdtest.Ranks(t, 2)
	line := apptest.Measures(t, 2, "rows cols split mesh layout kernel overlap", "--rows", "50", "--cols", "300",
		"--iters", "5")
	if fmt.Sprint(line["ranks"], line["rows"]) != "2 50" {
		t.Errorf("%v", line)
	}
}

// TestSymmetric: a product is there before NCCL's symmetric kernels add it up. The own kernel lets
// the next one start early, and so do some of cuBLAS.
func TestSymmetric(t *testing.T) {
	spmdtest.Ranks(t, 2)
	for _, args := range []string{
		"--kernel own", "--kernel own --graph", "--kernel cublas --graph --rows 64 --cols 300000",
	} {
		t.Run(args, func(t *testing.T) {
			p := spmdtest.Program(t, 2, nil,
				strings.Fields("--rows 1 --cols 4 --overlap 1 --iters 20 --symmetric always "+args)...)
			if p.Status != 0 {
				t.Errorf("status %d\n%s", p.Status, p.Stderr)
			}
		})
	}
}

func TestRanksOfAProcess(t *testing.T) {
	apptest.InProcess(t, "--rows", "50", "--cols", "300", "--iters", "5")
}

func TestBadInput(t *testing.T) {
	apptest.Refuses(t, "matvec", [][2]string{
		{"--rows 0", "--rows 0: must be at least 1"},
		{"--cols -1", "--cols -1: must be at least 1"},
		{"--cols 2", "--cols 2: fewer than the 3 ranks"},
		{"--rows 4000000000 --cols 4000000000", "4000000000 x 4000000000 float32 are more bytes than"},
		{"--rows 9223372036854775807", "9223372036854775807 x 300000 float32 are more"},
		{"--iters 0", "--iters 0"},
		{"--warmup -1", "--warmup -1"},
		{"--rows 9000000000000000000 --cols 3 --dtype bfloat16", "9000000000000000000 x 3 bfloat16 are more"},
		{"--split blocks", "--split blocks: want columns, rows, grid"},
		{"--rows 2 --split rows", "--rows 2: fewer than the 3 ranks that share them out"},
		{"--layout diagonal", "--layout diagonal: want row, column"},
		{"--dtype float64", "--dtype float64: want float32, bfloat16"},
		{"--kernel best", "--kernel best: want auto, own, cublas"},
		{"--overlap -1", "--overlap -1: must not be negative"},
		{"--row 3", "unknown flag: --row"},
	}...)
}
