package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestPermute(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 7, 64, 1000, 4097} {
		seen := make([]bool, n)
		for i := range n {
			p := permute(elem.MixBits(n), i, n)
			if p >= n || seen[p] {
				t.Fatalf("n %d: %d goes to %d, out of range or a second time", n, i, p)
			}
			seen[p] = true
		}
	}
	same := 0
	for i := range uint64(1000) {
		if permute(1, i, 1000) == permute(2, i, 1000) {
			same++
		}
	}
	if same > 20 { // 1 is expected
		t.Errorf("two keys agree on %d of 1000", same)
	}
}

// flatFile returns a token file in memory whose token i is i.
func flatFile(n int) *text.File { return text.InMemory(2, traintest.FlatTokens(n)) }

func TestSampleOrder(t *testing.T) {
	const seq, global, n = 8, 6, 2000
	d, err := NewDataset(flatFile(n), seq, global, 7)
	spmdtest.Must(t, err)
	if want := n / 20; d.Val.Len != want || d.Train.Len != n-want {
		t.Errorf("parts of %d and %d tokens, want %d and %d", d.Train.Len, d.Val.Len, n-want, want)
	}
	// Each epoch sees each window once, at one offset below seq.
	windows := d.windows()
	offsets := map[int]bool{}
	for epoch := range 5 {
		seen := map[int]bool{}
		for i := range windows {
			number := epoch*windows + i
			at := d.Start(number/global, number%global)
			if at < 0 || at+seq+1 > d.Train.Len {
				t.Fatalf("sequence at %d of %d tokens", at, d.Train.Len)
			}
			if len(seen) == 0 {
				offsets[at%seq] = true
			}
			if seen[at] || !offsets[at%seq] {
				t.Fatalf("epoch %d: position %d again, or at another offset", epoch, at)
			}
			seen[at] = true
		}
	}
	if len(offsets) < 2 {
		t.Errorf("all epochs have the same offset")
	}
	in, target := make([]int32, seq), make([]int32, seq)
	d.fill(in, target, d.Start(3, 2))
	for i := range seq {
		if target[i] != in[i]+1 {
			t.Fatalf("in %v, target %v: not the next token each", in, target)
		}
	}
	other, err := NewDataset(flatFile(n), seq, global, 8)
	spmdtest.Must(t, err)
	same := 0
	for j := range global * 10 {
		if d.Start(j/global, j%global) == other.Start(j/global, j%global) {
			same++
		}
	}
	if same > 6 {
		t.Errorf("seeds 7 and 8 agree on %d of %d sequences", same, global*10)
	}
	for i := range 5 {
		if at := d.ValStart(i, 5); at < d.Val.At || at+seq+1 > d.Val.At+d.Val.Len {
			t.Errorf("validation sequence %d at %d, outside of [%d, %d)", i, at, d.Val.At, d.Val.At+d.Val.Len)
		}
	}
}

// The smallest sufficient data is accepted, and one token less is refused.
func TestDataTooSmall(t *testing.T) {
	const seq, global = 8, 3
	need := 2 * (seq*global + 1)
	d, err := NewDataset(flatFile(need), seq, global, 1)
	spmdtest.Must(t, err)
	for j := range global {
		if at := d.Start(0, j); at < 0 || at+seq+1 > d.Train.Len {
			t.Errorf("sequence %d at %d of %d tokens", j, at, d.Train.Len)
		}
	}
	if n := d.windows(); n != global {
		t.Errorf("%d sequences to learn from, want %d", n, global)
	}
	if n := d.ValWindows(); n != global {
		t.Errorf("%d validation sequences, want %d", n, global)
	}
	_, err = NewDataset(flatFile(need-1), seq, global, 1)
	if !errors.As(err, new(text.InputError)) || !strings.Contains(err.Error(), fmt.Sprint(need-1)) ||
		!strings.Contains(err.Error(), fmt.Sprint(need)) {
		t.Errorf("error %v, want bad input that names %d and %d", err, need-1, need)
	}
}

// A token outside the vocabulary does not leave the loader.
func TestLoaderRefusesTokens(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("test")
		spmdtest.Must(t, err)
		data := &Dataset{File: flatFile(1000), Train: Span{0, 1000}, Seq: 4}
		l, err := NewLoader(w, data, 1, 500)
		spmdtest.Must(t, err)
		for at, bad := range map[int]bool{495: false, 496: true, 600: true} { // the last target is at+4
			f := l.Feed(slices.Values([][]int{{at}}))
			_, err := f.Next(s)
			if bad != (err != nil) || bad && !strings.Contains(err.Error(), "outside the vocabulary of 500") {
				t.Errorf("tokens from %d on, of 500: error %v", at, err)
			}
			f.Stop()
		}
		spmdtest.Must(t, errors.Join(s.Synchronize(), l.Close()))
	})
}

// A feed gives the micro-batches in their order, can be left early, and says when
// there are no more.
func TestLoader(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		const seq = 4
		data := &Dataset{File: flatFile(1000), Train: Span{0, 1000}, Seq: seq}
		l, err := NewLoader(w, data, 3, 1000)
		spmdtest.Must(t, err)
		s, err := w.NewStream("test")
		spmdtest.Must(t, err)
		batches := slices.Values([][]int{{0, 40, 80}, {7}, {100, 200}, {300}, {400, 500, 600}})
		for _, take := range []int{2, 0, 5} {
			f := l.Feed(batches)
			i := 0
			for starts := range batches {
				if i++; i > take {
					break
				}
				b, err := f.Next(s)
				spmdtest.Must(t, err)
				spmdtest.Must(t, s.Synchronize())
				if n := len(starts) * seq; b.B != len(starts) || b.T != seq || b.In.Len() != n || b.Targets.Len() != n {
					t.Fatalf("micro-batch %d: %d sequences in %d tokens, want %d", i, b.B, b.In.Len(), len(starts))
				}
				for j, at := range starts {
					for k := range seq {
						if got := b.In.At(j*seq + k); got != int32(at+k) {
							t.Fatalf("micro-batch %d: token %d, want %d", i, got, at+k)
						}
						if got := b.Targets.At(j*seq + k); got != int32(at+k+1) {
							t.Fatalf("micro-batch %d: target %d, want %d", i, got, at+k+1)
						}
					}
				}
			}
			if take == 5 {
				if _, err := f.Next(s); err == nil {
					t.Errorf("a sixth micro-batch of five")
				}
			}
			f.Stop()
		}
		spmdtest.Must(t, l.Close())
	})
}

// A loader leaves nothing behind, even if its feed is stopped early.
func TestLoaderLeavesNothing(t *testing.T) {
	rounds := testkit.Few(t, "loaders", 1000, 10_000)
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		data := &Dataset{File: flatFile(1000), Train: Span{0, 1000}, Seq: 4}
		s := spmdtest.Stream(t, w, "test")
		spmdtest.NothingIsLeft(t, w, rounds, func() error {
			l, err := NewLoader(w, data, 1, 1000)
			if err != nil {
				return err
			}
			f := l.Feed(slices.Values([][]int{{0}, {1}, {2}, {3}}))
			_, err = f.Next(s)
			f.Stop()
			return errors.Join(err, s.Synchronize(), l.Close())
		})
	})
}
