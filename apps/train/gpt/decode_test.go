package gpt

import (
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// A sequence that grows, by pieces and token by token, has the logits of a whole forward pass.
func TestDecode(t *testing.T) {
	traintest.OnBoth(t, []int{1}, func(t *testing.T, w *spmd.World) { testDecode[float32](t, w, decodeCases) },
		func(t *testing.T, w *spmd.World) { testDecode[spmd.BF16](t, w, decodeCases) })
}

// A small model compares each launch on the device with the host.
func TestCompareDecode(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testDecode[float32](t, w, decodeCases[:2])
		testDecode[spmd.BF16](t, w, decodeCases[:2])
	})
}

type decodeCase struct {
	cfg   layout.Config
	first int // tokens at once; then one by one
}

var decodeCases = []decodeCase{
	{layout.Config{Layers: 1, Heads: 1, Channels: 1, SeqMax: 3, Vocab: 2}, 1},
	{traintest.Small, 5},
	{layout.Config{Layers: 3, Heads: 3, Channels: 3 * 37, SeqMax: 80, Vocab: 300}, 70},
	{layout.Config{Layers: 2, Heads: 1, Channels: 300, SeqMax: 12, Vocab: 61}, 3}, // a head wider than a block
	{layout.Config{Layers: 2, Heads: 4, Channels: 64, SeqMax: 600, Vocab: 130}, 2*decodeRows + 30},
}

func testDecode[A ops.Act](t *testing.T, w *spmd.World, cases []decodeCase) {
	bound := 1e-5
	switch {
	case ops.IsHalf[A]():
		bound = 0.02
	case !w.OnHost(): // whose sums go in other orders
		bound = 1e-4
	}
	worst := 0.0
	for _, c := range cases {
		m, s := testModel[A](t, w, c.cfg, traintest.RandomParams(c.cfg, 1), 1)
		d, err := NewDecoder(s, c.cfg, m.Weights, m.Half, c.cfg.SeqMax)
		spmdtest.Must(t, err)
		tokens := traintest.RandomTokens(min(c.cfg.SeqMax, c.first+9), c.cfg.Vocab, 3)
		var all [2][][]float32
		for round := range all { // the second time after a reset, with everything seen
			d.Reset()
			for at, n := 0, c.first; at < len(tokens); at, n = at+n, 1 {
				got, err := d.Next(tokens[at : at+n])
				spmdtest.Must(t, err)
				if d.Len() != at+n {
					t.Fatalf("%d tokens, want %d", d.Len(), at+n)
				}
				all[round] = append(all[round], slices.Clone(got))
				if round > 0 {
					continue
				}
				out, err := m.Logits(s, traintest.BufferOf(t, w, tokens[:at+n]), 0)
				spmdtest.Must(t, err)
				spmdtest.Must(t, s.Synchronize())
				want, largest := traintest.ValuesOf(t, out), 0.0
				for _, v := range want {
					largest = max(largest, math.Abs(float64(v)))
				}
				for i := range want {
					if diff := math.Abs(float64(got[i]-want[i])) / largest; !(diff < bound) {
						t.Fatalf("%+v: logit %d after %d tokens is %g, of the whole pass %g",
							c.cfg, i, at+n, got[i], want[i])
					} else {
						worst = max(worst, diff)
					}
				}
			}
		}
		if !slices.EqualFunc(all[0], all[1], slices.Equal[[]float32]) {
			t.Errorf("%+v: other logits the second time", c.cfg)
		}
		if _, err := d.Next(make([]int32, c.cfg.SeqMax-d.Len()+1)); err == nil {
			t.Error("more tokens than positions are taken")
		}
		spmdtest.Must(t, d.Close())
		spmdtest.Must(t, m.Close())
	}
	traintest.Measured(t, "largest difference of a "+nameOf[A]()+
		" logit with cached keys and values, relative to the largest logit", worst)
}
