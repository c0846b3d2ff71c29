package exec

import (
	"slices"
	"strings"
	"testing"
)

// Times that cannot be, or that are not like those without events, do not count.
func TestJudge(t *testing.T) {
	// Two lanes: the second begins behind the first command, and the last command waits for both.
	graph := []graphPart{{end: 1}, {from: []int32{1}, end: 2}, {from: []int32{1}, end: 3, lane: 1},
		{from: []int32{1}, lane: 1}, {from: []int32{2, 3}, end: 4}}
	for _, tc := range []struct {
		name  string
		plain float64
		at    []int64
		want  [][2]int64
		why   string
		off   bool
	}{
		{"as without events", 100_000, []int64{10, 20_000, 50_000, 90_000, 100_000},
			[][2]int64{{10, 20_000}, {20_000, 50_000}, {20_000, 90_000}, {20_000, 20_000}, {90_000, 100_000}},
			"", false},
		{"events take 400 ns each", 98_800, []int64{0, 20_000, 50_000, 90_000, 100_000},
			[][2]int64{{0, 19_600}, {20_000, 49_600}, {20_000, 89_600}, {20_000, 20_000}, {90_000, 99_600}},
			"", false},
		{"events take 8 us each", 76_000, []int64{0, 20_000, 50_000, 90_000, 100_000},
			[][2]int64{{0, 12_000}, {20_000, 42_000}, {20_000, 82_000}, {20_000, 20_000}, {90_000, 92_000}},
			"", false},
		{"the events' resolution", 100_000, []int64{0, 20_000, 19_500, 90_000, 100_000},
			[][2]int64{{0, 20_000}, {20_000, 20_000}, {20_000, 90_000}, {20_000, 20_000}, {90_000, 100_000}},
			"", false},
		{"late", 100_000, []int64{0, 60_000, 50_000, 90_000, 100_000}, nil,
			"the event behind command 1 came 10000 ns before", true},
		{"late on a branch", 100_000, []int64{0, 20_000, 50_000, 99_000, 95_000}, nil,
			"the event behind command 4 came 4000 ns before", true},
		{"of an earlier replay", 100_000, []int64{0, -20_000, 50_000, 90_000, 100_000}, nil,
			"event 1 came -20000 ns after", true},
		{"of a later replay", 100_000, []int64{0, 20_000, 50_000, 90_000, 300_000}, nil,
			"event 4 came 300000 ns after", true},
		{"slow", 60_000, []int64{0, 20_000, 50_000, 90_000, 100_000}, nil, "each event took 13333 ns", false},
		{"more than without events", 70_000, []int64{0, 5_000, 95_000, 96_000, 100_000}, nil,
			"the parts of a lane took ", false},
	} {
		p := &GraphParts{list: graph, plain: 2 * tc.plain, plains: 2}
		list, err := p.judge(tc.at, 0, 100_000)
		var got [][2]int64
		for _, s := range list {
			got = append(got, [2]int64{s.Start, s.End})
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		if (err != nil) != (tc.why != "") || err != nil && !strings.HasPrefix(err.Error(), tc.why) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.why)
		}
		if off := p.faults >= mostFaults; off != tc.off {
			t.Errorf("%s: no other is timed: %v", tc.name, off)
		}
	}
}
