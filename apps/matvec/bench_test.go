package main

import (
	"fmt"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// variants returns kernels of several sizes, and how they differ.
func variants() (list []struct {
	name string
	tuning
}) {
	add := func(change func(*tuning), name string) {
		t := tuned
		change(&t)
		list = append(list, struct {
			name string
			tuning
		}{name, t})
	}
	add(func(*tuning) {}, "tuned")
	add(func(t *tuning) { t.loadHint = 0 }, "hint=0")
	add(func(t *tuning) { t.loadHint = 2 }, "hint=2")
	add(func(t *tuning) { t.loadHint = 3 }, "hint=3")
	add(func(t *tuning) { t.rowTile, t.rowUnroll, t.colUnroll = 8, 1, 4 }, "tile=8,unroll=1,col=4")
	add(func(t *tuning) { t.rowUnroll, t.rowBlocks, t.colWide = 1, 5, 128 }, "unroll=1,resident=5,wide=128")
	add(func(t *tuning) { t.rowTile, t.rowUnroll, t.colWide = 2, 4, 256 }, "tile=2,unroll=4,wide=256")
	add(func(t *tuning) { t.rowSegment, t.colUnits = 2048, 2048 }, "segment=2048,units=2048")
	add(func(t *tuning) { t.rowSegment, t.colUnits = 16384, 8192 }, "segment=16384,units=8192")
	add(func(t *tuning) { t.rowThreads, t.rowBlocks, t.rowUnroll, t.colThreads, t.colBlocks = 512, 2, 1, 512, 2 },
		"threads=512,unroll=1")
	return list
}

// BenchmarkMultiply times the product of one rank, back to back, with kernels of several sizes and
// with cuBLAS. It has 10,000 rows of 300,000 columns, or of the 75,000 that each of 4 ranks has.
//
//	SPMDTEST_DEVICE=cuda go test ./apps/matvec -run '^$' -bench Multiply -benchtime 20x
func BenchmarkMultiply(b *testing.B) {
	w, err := spmd.Open(spmdtest.Config())
	spmdtest.Must(b, err)
	defer func() {
		if err := w.Close(); err != nil {
			b.Error(err)
		}
	}()
	rows, cols := gpuRows, gpuCols
	if w.OnHost() {
		rows, cols = hostRows, hostCols
	}
	for _, n := range []int{cols, cols / 4} {
		for _, byColumns := range []bool{false, true} {
			benchmarkMultiply[float32](b, w, "f32", rows, n, byColumns)
			benchmarkMultiply[spmd.BF16](b, w, "bf16", rows, n, byColumns)
		}
	}
}

func benchmarkMultiply[T number](b *testing.B, w *spmd.World, suffix string, rows, cols int, byColumns bool) {
	p, err := newProduct[T](w, whole(rows, cols), byColumns)
	spmdtest.Must(b, err)
	defer drop(b, p)
	spmdtest.Must(b, p.m.fill(p.s, 1, 0, cols))
	spmdtest.Must(b, fill(p.s, p.x, filling{lines: 1, length: cols, stride: cols, seed: 2, elementStep: 1}))
	run := func(name string, multiply func() error) {
		if err := multiply(); err != nil { // compiles it
			b.Fatal(err)
		}
		spmdtest.Must(b, p.s.Synchronize())
		layout := "row"
		if byColumns {
			layout = "column"
		}
		b.Run(fmt.Sprintf("%dx%d/%s/%s/%s", rows, cols, suffix, layout, name), func(b *testing.B) {
			b.SetBytes(int64(16 / vecOf[T]() * rows * cols))
			for range b.N { // not b.Loop, whose time ends before the last product does
				spmdtest.Must(b, multiply())
			}
			spmdtest.Must(b, p.s.Synchronize())
		})
	}
	for _, v := range variants() {
		o, err := newOwn(w, newKernels[T](v.tuning, suffix), p.m)
		spmdtest.Must(b, err)
		run(v.name, func() error { return o.multiply(p.s, p.y, p.m, p.x, 0, rows) })
	}
	if !w.OnHost() { // there it is the same for float32, and copies W for bfloat16
		run("cublas", func() error { return library(p.s, p.y, p.m, p.x, 0, rows) })
	}
}
