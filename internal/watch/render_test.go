package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestRender(t *testing.T) {
	at := func(rank int) Hello { return Hello{Rank: rank, Node: rank / 4, PID: 100 + rank, Host: "h"} }
	states := []RankState{
		{Hello: at(0), State: []byte(`{"at":"main.go:7","op":{"kind":"AllReduce","n":1e3},"stack":"a\nb\n"}`)},
		{Hello: at(1), State: []byte(`{"stack":"a\nb\n","at":"main.go:7","op":{"n":1e3,"kind":"AllReduce"}}`)},
		{Hello: at(2), Silent: true, ProcState: "T (stopped)", Note: "nothing heard for 3.1 s"},
		{Hello: at(3), Died: true},
		{Hello: at(4), State: []byte(`{"at":"main.go:7","op":{"kind":"AllReduce","n":1e3},"stack":"a\nb\n"}`)},
		{Hello: at(5), State: []byte(`["\u001b[31m",{"b":1,"a":[]}]`)},
		{Hello: at(6), Left: true},
		{Hello: Hello{Rank: 7}, Note: "has not joined the control channel"},
	}
	const want = `8 ranks: 1 died, 1 silent, 1 without answer, 1 left, 4 answered
rank 3 (node 0, host h, pid 103): died
rank 2 (node 0, host h, pid 102): silent
    process: T (stopped)
    note: nothing heard for 3.1 s
rank 7: without answer
    note: has not joined the control channel
rank 6 (node 1, host h, pid 106): left
ranks 0-1, 4 (nodes 0-1): answered
    at: main.go:7
    op:
      kind: AllReduce
      n: 1e3
    stack:
      a
      b
rank 5 (node 1, host h, pid 105): answered
    - ` + "\uFFFD" + `[31m
    - a:
      b: 1
`
	if got := Render(states); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	deep := RankState{State: []byte(strings.Repeat("[", 9000) + strings.Repeat("]", 9000))}
	if got := Render([]RankState{deep}); len(got) > 1000 || !strings.Contains(got, "[[[") {
		t.Errorf("%d bytes: %.300s", len(got), got)
	}
	if got := Render(nil); got != "0 ranks:\n" {
		t.Errorf("%q", got)
	}
}

// However many ranks there are and whatever they say, the report fits on two screens, and counts them all.
func TestRenderFits(t *testing.T) {
	for _, ranks := range []int{1, 2, 64, 98, 99, 100, 1000} {
		for _, long := range []int{0, 1, 3, 500} {
			var states []RankState
			for i := range ranks {
				s := RankState{Hello: Hello{Rank: i, PID: 1}, Silent: i == ranks-1}
				s.State = fmt.Appendf(nil, `{"seq":%d,"stack":%q}`, i, strings.Repeat("line\n", long))
				states = append(states, s)
			}
			got := Render(states)
			if n := strings.Count(got, "\n"); n > shownLines {
				t.Errorf("%d ranks with %d lines: %d lines", ranks, long, n)
			}
			if !strings.Contains(got, fmt.Sprintf("rank %d (", ranks-1)) {
				t.Errorf("%d ranks with %d lines: the silent one is missing", ranks, long)
			}
			shown := strings.Count(got, "\nrank ")
			var more int
			if i := strings.LastIndex(got, "\nand "); i >= 0 {
				fmt.Sscanf(got[i:], "\nand %d more", &more)
			}
			if shown+more != ranks {
				t.Errorf("%d ranks with %d lines: %d shown and %d more", ranks, long, shown, more)
			}
		}
	}
}

func TestHostsOf(t *testing.T) {
	on := func(host string, ranks ...int) (who []Hello) {
		for _, r := range ranks {
			who = append(who, Hello{Rank: r, Host: host})
		}
		return who
	}
	for _, tc := range []struct {
		who  []Hello
		want string
	}{
		{on("a", 3), "rank 3 on a"},
		{append(on("b", 4, 5), on("a", 0, 2)...), "ranks 4-5 on b, ranks 0, 2 on a"},
		{slices.Concat(on("a", 0), on("b", 1), on("c", 2), on("d", 3), on("e", 4, 5), on("f", 6)), "rank 0 on a, rank 1 on b, rank 2 on c, rank 3 on d, those on 2 more hosts"},
		{on("\x1b[31m", 1), "rank 1 on \uFFFD[31m"},
	} {
		if got := hostsOf(tc.who); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
