package text

import (
	"math"
	"slices"
	"testing"

	"lockstep/internal/testkit"
)

func TestKeepTop(t *testing.T) {
	none := float32(math.Inf(-1))
	for k, want := range map[int][]float32{
		0: {1, 3, 2, 3}, 1: {none, 3, none, none}, 2: {none, 3, none, 3}, 3: {none, 3, 2, 3}, 4: {1, 3, 2, 3},
		9: {1, 3, 2, 3},
	} {
		got := []float32{1, 3, 2, 3}
		if keepTop(got, k); !slices.Equal(got, want) {
			t.Errorf("the %d largest: %v, want %v", k, got, want)
		}
	}
}

func TestDraw(t *testing.T) {
	logits := []float32{1, 3, float32(math.Inf(-1)), 2}
	if i := draw(logits, 0, 0.99); i != 1 {
		t.Errorf("temperature 0 draws %d, want 1", i)
	}
	// The weights at temperature 2 are e^0.5, e^1.5, 0 and e^1.
	sum := math.Exp(0.5) + math.Exp(1.5) + math.Exp(1)
	for _, c := range []struct {
		u    float64
		want int
	}{
		{0, 0}, {math.Exp(0.5)/sum - 1e-9, 0}, {math.Exp(0.5)/sum + 1e-9, 1}, {1 - math.Exp(1)/sum + 1e-9, 3},
		{math.Nextafter(1, 0), 3},
	} {
		if i := draw(logits, 2, c.u); i != c.want {
			t.Errorf("u %g draws %d, want %d", c.u, i, c.want)
		}
	}
}

// seen is a double of a decoder. It keeps its input, and the likeliest token is always 7.
type seen struct{ ids []int32 }

func (s *seen) Len() int { return len(s.ids) }
func (s *seen) Reset()   { s.ids = s.ids[:0] }
func (s *seen) Next(ids []int32) ([]float32, error) {
	s.ids = append(s.ids, ids...)
	l := make([]float32, 256)
	l[7] = 1
	return l, nil
}

// The end of a text stands before the prompt, unless the prompt comes from the middle
// of a document.
func TestBeforeThePrompt(t *testing.T) {
	for within, want := range map[bool][]int32{false: {0, 'a', 'b', 7, 7}, true: {'a', 'b', 7, 7}} {
		d := &seen{}
		w := NewWriter(d, Bytes{}, 10, 0, 0, 1)
		w.Within, w.Ends = within, true
		testkit.Must(t, w.Write(t.Context(), "ab", 3, func([]byte) error { return nil }))
		if !slices.Equal(d.ids, want) || !slices.Equal(w.IDs, append(slices.Clone(want), 7)) {
			t.Errorf("within %v: the decoder has seen %v, want %v; the text is %v", within, d.ids, want, w.IDs)
		}
	}
}
