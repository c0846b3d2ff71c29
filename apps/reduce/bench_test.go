package main

import (
	"fmt"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/random"
	"lockstep/spmd/spmdtest"
)

// BenchmarkSum times the sum of one rank's part with kernels of several sizes, back to back. A part
// has the 30,000,000 elements of one GPU, or of each of 4.
//
//	SPMDTEST_DEVICE=cuda go test ./apps/reduce -run '^$' -bench Sum -benchtime 200x
func BenchmarkSum(b *testing.B) {
	w, err := spmd.Open(spmdtest.Config())
	spmdtest.Must(b, err)
	defer func() {
		if err := w.Close(); err != nil {
			b.Error(err)
		}
	}()
	s, err := w.NewStream("bench")
	spmdtest.Must(b, err)
	x, err := spmd.Alloc[float32](w, 30_000_000)
	spmdtest.Must(b, err)
	spmdtest.Must(b, random.Uniform(s, x, 1, 0))
	for _, t := range []sumTuning{sumTuned,
		{threads: 512, deep: 4, resident: 4},
		{threads: 1024, deep: 8, resident: 1},
		{threads: 1024, deep: 4, resident: 2},
		{threads: 256, deep: 8, resident: 4},
		{threads: 512, deep: 12, resident: 1},
	} {
		for _, n := range []int{x.Len(), x.Len() / 4} {
			a := newPlain(w, newSumKernel(t), t)
			spmdtest.Must(b, a.open(w, 1))
			part := x.Slice(0, n)
			if err := a.local(s, part); err != nil { // compiles it
				b.Fatal(err)
			}
			spmdtest.Must(b, s.Synchronize())
			b.Run(fmt.Sprintf("threads=%d/deep=%d/resident=%d/elements=%d", t.threads, t.deep, t.resident, n),
				func(b *testing.B) {
					b.SetBytes(int64(part.Bytes()))
					for range b.N { // not b.Loop, whose time ends before the last launch does
						spmdtest.Must(b, a.local(s, part))
					}
					spmdtest.Must(b, s.Synchronize())
				})
		}
	}
}
