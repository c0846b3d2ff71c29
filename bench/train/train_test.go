package train

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/bench/harness"
)

// The file is one that llm.c's data loader would take: its size follows from the
// header, and its tokens are of the vocabulary.
func TestRandomTokens(t *testing.T) {
	const n = 5000
	name, err := randomTokens(t.TempDir(), n)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != 1024+2*n || binary.LittleEndian.Uint32(b) != 20240520 || binary.LittleEndian.Uint32(b[4:]) != 1 || binary.LittleEndian.Uint32(b[8:]) != n {
		t.Fatalf("%d bytes, header % x", len(b), b[:16])
	}
	different := map[uint16]bool{}
	for i := range n {
		v := binary.LittleEndian.Uint16(b[1024+2*i:])
		if v >= 50257 {
			t.Fatalf("token %d is %d", i, v)
		}
		different[v] = true
	}
	if len(different) < 4000 { // 4,760 are expected
		t.Errorf("%d different tokens among %d", len(different), n)
	}
}

// Which rows two measurements give, and by which goals they are met.
func TestTrainRows(t *testing.T) {
	b := trainBench{seq: 1024}
	b.Set, b.Group, b.GPUs = harness.GPUSet, trainGroup, []string{"a GPU"}
	gpt2 := trainCase{"gpt2", 64}
	for _, m := range []trained{
		{trainCase: gpt2, ranks: 1, tokS: []float64{900, 1000, 1100}, p99: []float64{1.02}, memory: 25, theirs: []float64{790}},
		{trainCase: gpt2, ranks: 2, tokS: []float64{1980}, p99: []float64{1.04}, memory: 23},
	} {
		b.measured = append(b.measured, m)
		b.rowsOf(m)
	}
	want := []struct {
		ranks     int
		unit      string
		ours      float64
		goal, met float64
	}{
		{1, "tok/s", 1000, 0.8, 1}, {1, "medians", 1.02, 1.03, 1}, {1, "GB", 25, 24, 0},
		{2, "medians", 1.04, 1.03, 0}, {2, "GB", 23, 24, 1}, {2, "times", 2000. / 1980, 1 / 0.985, 1},
	}
	if len(b.Rows) != len(want) {
		t.Fatalf("%d rows, want %d: %+v", len(b.Rows), len(want), b.Rows)
	}
	for i, w := range want {
		r := b.Rows[i]
		if r.Ranks != w.ranks || r.Unit != w.unit || r.Ours != w.ours || math.Abs(r.Goal-w.goal) > 1e-9 || r.Met != (w.met == 1) {
			t.Errorf("row %d is %+v, want %+v", i, r, w)
		}
	}
	// With 8-bit floats it is to be faster, but not where only the head has them.
	for flag, goal := range map[string]float64{"--fp8=all": 1 / 1.45, "--fp8=head": 0.8} {
		eight := trainBench{seq: 1024, more: []string{flag}}
		eight.Set, eight.Group, eight.GPUs = b.Set, b.Group, b.GPUs
		eight.rowsOf(trained{trainCase: gpt2, ranks: 1, tokS: []float64{1000}, p99: []float64{1}, theirs: []float64{790}})
		if r := eight.Rows[0]; math.Abs(r.Goal-goal) > 1e-9 || r.Met != (goal == 0.8) || !strings.Contains(r.What, flag) {
			t.Errorf("%s: %+v, want a goal of %v", flag, r, goal)
		}
	}
	// Written twice, and beside another case's rows, each stands once.
	b.Out = t.TempDir()
	other := b
	other.Rows = []harness.Row{{What: "another", Ranks: 1}}
	if err := errors.Join(other.keep(), b.keep(), b.keep()); err != nil {
		t.Fatal(err)
	}
	kept, err := harness.ReadRows(filepath.Join(b.Out, "gpu.jsonl"))
	if err != nil || len(kept) != len(want)+1 || kept[0].What != "another" {
		t.Errorf("%d rows kept, error %v: %+v", len(kept), err, kept)
	}
	if r := b.Rows[0]; r.Ratio == nil || math.Abs(*r.Ratio-0.79) > 1e-9 {
		t.Errorf("ratio of %+v, want 0.79", r)
	}
}
