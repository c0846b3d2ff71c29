package spmd

import (
	"encoding/json"
	"strings"
	"testing"

	"lockstep/internal/watch"
)

// TestMissing: who is behind, where the ranks have made unequal numbers of calls.
func TestMissing(t *testing.T) {
	const sum, recv, send = "AllReduce of 8 int32 (sum)", "Recv of 3 int32 from rank 1", "Send of 3 int32 to rank 0"
	at := func(calls uint64, last string, waits, alone bool) *commReport {
		c := &commReport{ID: "world", Entered: 50, Left: 50, Calls: calls, Last: last, Alone: alone}
		if waits {
			c.Left--
		}
		return c
	}
	for _, tc := range []struct {
		name  string
		ranks []*commReport // nil: it does not answer
		want  []string
		no    string
	}{
		{"one is behind", []*commReport{at(7, sum, true, false), at(6, "Barrier", false, false), at(7, sum, true, false)},
			[]string{`call 7 on "world", ` + sum + ": ranks 0, 2 in it; NOT ARRIVED: rank 1\n", "  rank 1 is at call 6: Barrier\n"}, "rank 0 is"},
		{"messages do not count", []*commReport{at(7, sum, true, false), {ID: "world", Entered: 900, Left: 900, Calls: 6, Last: send, Alone: true}},
			[]string{"rank 0 in it; NOT ARRIVED: rank 1\n", "  rank 1 is at call 6: " + send}, "waits"},
		{"one waits for a message", []*commReport{at(6, recv, true, true), at(7, sum, true, false), at(6, "Barrier", false, false)},
			[]string{"rank 1 in it; NOT ARRIVED: ranks 0, 2\n", "  rank 0 waits in " + recv, "  rank 2 is at call 6"}, "else"},
		{"all wait for messages", []*commReport{at(6, recv, true, true), at(7, "Barrier", false, false), at(6, send, true, true)},
			[]string{`on "world" some ranks wait for messages`, "  rank 0 waits in " + recv, "  rank 2 waits in " + send}, "ARRIVED"},
		{"another call", []*commReport{at(7, sum, true, false), at(7, "Barrier", true, false)},
			[]string{"rank 0 in it\n", "  rank 1 calls something else: Barrier"}, "ARRIVED"},
		{"one does not answer", []*commReport{at(7, sum, true, false), nil},
			[]string{"rank 0 in it; NOT ARRIVED: rank 1\n"}, "is at"},
	} {
		var states []watch.RankState
		for r, c := range tc.ranks {
			s := watch.RankState{Hello: watch.Hello{Rank: r, Host: "h", PID: 10 + r}}
			if c != nil {
				b, err := json.Marshal(rankState{Phase: "running", Comms: []commReport{*c}})
				if err != nil {
					t.Fatal(err)
				}
				s.State = b
			}
			states = append(states, s)
		}
		text := renderReport("a test", states, false)
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", tc.name, want, text)
			}
		}
		if strings.Contains(text, tc.no) {
			t.Errorf("%s: %q is in\n%s", tc.name, tc.no, text)
		}
		var back struct{ Ranks []watch.RankState }
		line := renderReport("a test", states, true)
		if err := json.Unmarshal([]byte(line), &back); err != nil || len(back.Ranks) != len(states) || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: as JSON %q, %v", tc.name, line, err)
		}
	}
}
