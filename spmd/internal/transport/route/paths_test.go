package route

import (
	"math"
	"testing"
)

// One size among others that all go another way was measured badly.
func TestSmoothPaths(t *testing.T) {
	var p Paths
	const row, text, want = 2, "22221222220211111111100100", "22222222222211111111100000"
	if len(text) != mostSize+1-leastSize {
		t.Fatalf("%d sizes, want %d", len(text), mostSize+1-leastSize)
	}
	for i := range text {
		p[row][leastSize+i] = way(text[i] - '0')
	}
	p.smooth(row)
	for i := range want {
		if got := p[row][leastSize+i]; got != way(want[i]-'0') {
			t.Errorf("%s goes way %d, want %c", byteSize(leastSize+i), got, want[i])
		}
	}
}

// TestBestWay: one way for graphs and calls, which is not far from the fastest in either.
func TestBestWay(t *testing.T) {
	never := [2]float64{math.MaxFloat64, math.MaxFloat64}
	for _, tc := range []struct {
		name string
		us   taken
		want way
	}{
		{"only one", taken{{9, 10}, never, never}, plainWay},
		{"the fastest in both", taken{{9, 10}, {4, 9}, {3, 5}}, peerWay},
		{"a little slower in graphs, much faster without", taken{{9, 10}, {4, 9}, {4.2, 5}}, peerWay},
		{"much slower in graphs, a little faster without", taken{{9, 10}, {4, 9}, {8, 8.5}}, symmetricWay},
		{"the same", taken{{9, 9}, {9, 9}, never}, plainWay},
	} {
		if got := tc.us.best(); got != tc.want {
			t.Errorf("%s: way %d, want %d", tc.name, got, tc.want)
		}
	}
}
