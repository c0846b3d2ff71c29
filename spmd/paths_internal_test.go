package spmd

import "testing"

// One size among others that all go another way was measured badly.
func TestSmoothPaths(t *testing.T) {
	var p paths
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
