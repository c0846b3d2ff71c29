package job

import (
	"encoding/json"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/watch"
)

// Ranks that do the same stand together, with all their processes; one command waits, several wait.
func TestReportWords(t *testing.T) {
	rank := func(r int, host string, waiting uint64, device bool) watch.RankState {
		b, err := json.Marshal(State{Phase: "running",
			Streams: []StreamState{{Name: "work", Waiting: waiting, Device: device, Command: "Barrier",
				At: "from a.go:1"}}})
		testkit.Must(t, err)
		return watch.RankState{Hello: watch.Hello{Rank: r, Host: host, PID: 10 + r}, State: b}
	}
	text := Render("a test", []watch.RankState{rank(0, "a", 1, false), rank(1, "a", 2, false),
		rank(2, "a", 2, false), rank(3, "b", 2, false),
		rank(4, "b", 1, true), rank(5, "b", 7, true)}, false)
	for _, want := range []string{
		"rank 0 (host a, pid 10): running\n    stream \"work\": 1 command waits, the first is Barrier from a.go:1\n",
		"ranks 1-3 (host a, pids 11-12; host b, pid 13): running\n    stream \"work\": 2 commands wait, the first is",
		"rank 4 (host b, pid 14): running\n    stream \"work\": 1 command waits or runs, the first " +
			"collective is Barrier",
		"rank 5 (host b, pid 15): running\n    stream \"work\": 7 commands wait or run, the first " +
			"collective is Barrier",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The report says who is behind if the ranks have made unequal numbers of calls.
func TestMissing(t *testing.T) {
	const sum, recv, send = "AllReduce of 8 int32 (sum)", "Recv of 3 int32 from rank 1", "Send of 3 int32 to rank 0"
	at := func(calls uint64, last string, waits, alone bool) *CommState {
		c := &CommState{ID: "world", Entered: 50, Left: 50, Calls: calls, Last: last, Alone: alone}
		if waits {
			c.Left--
		}
		return c
	}
	for _, tc := range []struct {
		name  string
		ranks []*CommState // nil: it does not answer
		want  []string
		no    string
	}{
		{"one is behind", []*CommState{at(7, sum, true, false), at(6, "Barrier", false, false),
			at(7, sum, true, false)},
			[]string{`call 7 on "world", ` + sum + ": ranks 0, 2 in it; NOT ARRIVED: rank 1\n",
				"  rank 1 is at call 6: Barrier\n"}, "rank 0 is"},
		{"messages do not count", []*CommState{at(7, sum, true, false),
			{ID: "world", Entered: 900, Left: 900, Calls: 6, Last: send, Alone: true}},
			[]string{"rank 0 in it; NOT ARRIVED: rank 1\n", "  rank 1 is at call 6: " + send}, "waits"},
		{"one waits for a message", []*CommState{at(6, recv, true, true), at(7, sum, true, false),
			at(6, "Barrier", false, false)},
			[]string{"rank 1 in it; NOT ARRIVED: ranks 0, 2\n", "  rank 0 waits in " + recv,
				"  rank 2 is at call 6"}, "else"},
		{"all wait for messages", []*CommState{at(6, recv, true, true), at(7, "Barrier", false, false),
			at(6, send, true, true)},
			[]string{`on "world" some ranks wait for messages`, "  rank 0 waits in " + recv,
				"  rank 2 waits in " + send}, "ARRIVED"},
		{"another call", []*CommState{at(7, sum, true, false), at(7, "Barrier", true, false)},
			[]string{"rank 0 in it\n", "  rank 1 calls something else: Barrier"}, "ARRIVED"},
		{"one does not answer", []*CommState{at(7, sum, true, false), nil},
			[]string{"rank 0 in it; NOT ARRIVED: rank 1\n"}, "is at"},
	} {
		var states []watch.RankState
		for r, c := range tc.ranks {
			s := watch.RankState{Hello: watch.Hello{Rank: r, Host: "h", PID: 10 + r}}
			if c != nil {
				b, err := json.Marshal(State{Phase: "running", Comms: []CommState{*c}})
				testkit.Must(t, err)
				s.State = b
			}
			states = append(states, s)
		}
		text := Render("a test", states, false)
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", tc.name, want, text)
			}
		}
		if strings.Contains(text, tc.no) {
			t.Errorf("%s: %q is in\n%s", tc.name, tc.no, text)
		}
		var back struct{ Ranks []watch.RankState }
		line := Render("a test", states, true)
		if err := json.Unmarshal([]byte(line), &back); err != nil || len(back.Ranks) != len(states) ||
			strings.Count(line, "\n") != 1 {
			t.Errorf("%s: as JSON %q, %v", tc.name, line, err)
		}
	}
}

// Any words of ranks can be shown.
func FuzzRender(f *testing.F) {
	f.Add([]byte(`{"phase":"running","comms":[{"id":"world","entered":3,"left":2,"calls":3,`+
		`"last":"Barrier"}],"run":{"at":"a.go:1","stack":["x"]}}`), "T (stopped)")
	f.Add([]byte(`{"comms":[{"id":"w","entered":1,"alone":true}],"streams":[{"name":"s","waiting":-1,`+
		`"command":"c","device":true}]}`), "")
	f.Add([]byte(`[]`), "\x1b")
	f.Fuzz(func(t *testing.T, state []byte, proc string) {
		states := []watch.RankState{
			{Hello: watch.Hello{Rank: 0}, State: state},
			{Hello: watch.Hello{Rank: 1}, ProcState: proc, Silent: true},
			{Hello: watch.Hello{Rank: 2}, State: state},
		}
		for _, asJSON := range []bool{false, true} {
			if text := Render("a test", states, asJSON); !strings.HasSuffix(text, "\n") {
				t.Errorf("a report of %q", text)
			}
		}
	})
}
