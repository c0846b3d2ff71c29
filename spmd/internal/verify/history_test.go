package verify

import (
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// Two histories are read when the one has some calls more than the other, as two ranks' are.
func TestHistory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tc := range []struct{ calls, other, ahead int }{ // other: the call in which b differs, 0 for none
		{1, 0, 0}, {5, 0, 3}, {1000, 0, 0}, {1000, 0, 7}, {50000, 0, 300},
		{1, 1, 0}, {5, 5, 0}, {5, 1, 2}, {17, 17, 0}, {1000, 995, 3}, {1000, 990, 0}, {1000, 3, 5},
		{50000, 20000, 40}, {50000, 2, 1000},
	} {
		var a, b history
		note := func(l *history, i, root int) {
			c := coll.Call{Kind: coll.Broadcast, Type: elem.Int32, N: i % 7, Root: int32(root)}
			l.note(Pack(&c, nil), &c, nil, 0, nil)
		}
		for i := 1; i <= tc.calls+tc.ahead; i++ {
			root := rng.IntN(3)
			note(&a, i, root)
			if i == tc.other {
				root += 3
			}
			if i <= tc.calls {
				note(&b, i, root)
			}
		}
		p, _ := a.read("c", 0)
		q, _ := b.read("c", 0)
		got := differ(&p, &q, 0, 1)
		if (got != "") != (tc.other > 0) {
			t.Errorf("%+v: %q", tc, got)
		}
		// A few of the last calls of both are there.
		if precise := tc.other > max(tc.calls+tc.ahead-recentCalls,
			0); precise != (strings.Count(got, "history_test.go") == 2 && strings.Contains(got, "(call ")) {
			t.Errorf("%+v: %q, want the call itself: %v", tc, got, precise)
		}
		if _, more := a.read("c", uint64(tc.calls+tc.ahead)); more {
			t.Errorf("%+v: read twice", tc)
		}
	}
}

// No heartbeat of a rank ends rank 0, which compares it.
func FuzzHeartbeat(f *testing.F) {
	f.Add([]byte(`{"p":[{"c":"world","l":[[1,2]],"r":[{"n":1,"s":2,"t":"at a.go:1: Barrier"}]}]}`),
		[]byte(`{"p":[{"c":"world","l":[[1,3]],"r":[{"n":1,"s":3,"t":"x"}]}]}`))
	f.Add([]byte(`{"p":[{"c":"w","l":[[1,2]]}]}`), []byte(`{"p":[{"c":"w","l":[[1,3]]}]}`))
	f.Add([]byte(`{"s":{"e":true,"c":[{"c":"w","r":1}]}}`),
		[]byte(`{"s":{"c":[{"c":"w","n":3,"i":"x","p":[{"Peer":1,"Sent":2,"Received":4000000000}]}]}}`))
	f.Add([]byte(`null`), []byte(`{"p":[{},{}],"s":{}}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var seen Analyzer
		seen.Hear(0, a)
		seen.Hear(1, b)
		seen.Hear(0, b)
		var carrier Carrier
		carrier.Hear(0, a)
		carrier.Hear(1, b)
		carrier.Pages()
	})
}
