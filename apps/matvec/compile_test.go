package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/campaign"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// TestEmulated runs the kernels in a test double of the device, with the sizes in use
// and with such that small shapes have all sorts of tiles, segments and rests.
func TestEmulated(t *testing.T) {
	spmdtest.HostOnly(t, "it needs a compiler")
	small := tuned
	small.rowThreads, small.rowTile, small.rowUnroll, small.rowSegment = 64, 3, 3, 100
	small.colThreads, small.colWide, small.colUnroll, small.colStage, small.colUnits = 128, 32, 3, 29, 20
	wide := tuned
	wide.rowTile, wide.rowUnroll, wide.colWide = 8, 1, 256
	for name, tc := range map[string]struct {
		tuning
		shapes [][2]int
	}{
		"tuned": {tuned, [][2]int{{1, 1}, {9, 1}, {6, 17000}, {3, 66000}, {150, 70}, {530, 33}}},
		"small": {small, [][2]int{{1, 1}, {1, 7}, {7, 1}, {8, 8}, {5, 411}, {4, 1613}, {129, 100}, {513, 61}, {260, 513}}},
		"wide":  {wide, [][2]int{{2, 3}, {19, 1500}, {2100, 17}}},
	} {
		if name != "small" && !campaign.All() {
			campaign.More(t, 1, "sizes of a product's kernels that are emulated")
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sizes, program := filepath.Join(dir, "sizes.h"), filepath.Join(dir, "emulate")
			if err := os.WriteFile(sizes, []byte(tc.defines()), 0o666); err != nil {
				t.Fatal(err)
			}
			build := exec.Command("c++", "-std=c++14", "-O1", "-w", "-U_FORTIFY_SOURCE", "-include", sizes, "-I../../spmd", "-o", program, "testdata/emulate.cc")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var in bytes.Buffer
			for _, shape := range tc.shapes {
				for _, byColumns := range []bool{false, true} {
					describe[float32](&in, tc.tuning, shape[0], shape[1], byColumns)
					describe[spmd.BF16](&in, tc.tuning, shape[0], shape[1], byColumns)
				}
			}
			run := exec.Command(program)
			run.Stdin = &in
			out, err := run.CombinedOutput()
			if want := fmt.Sprintf("%d products\n", 4*len(tc.shapes)); err != nil || string(out) != want {
				t.Errorf("%v, want %s%s", err, want, out)
			}
		})
	}
}

// describe writes a line for testdata/emulate.cc.
func describe[T number](in *bytes.Buffer, sizes tuning, rows, cols int, byColumns bool) {
	m := matrix[T]{rows: rows, cols: cols, byColumns: byColumns}
	m.setStride()
	d, columns := divide(&kernels{tuning: sizes}, m), 0
	if byColumns {
		columns = 1
	}
	fmt.Fprintln(in, strings.Trim(fmt.Sprint([]int{16 / vecOf[T](), columns, rows, cols, m.stride, d.pitch, d.segment, d.segments, d.tiles, d.threads}), "[]"))
}
