package spmd

import (
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// Two ledgers are read when the one has some calls more than the other, as two ranks' are.
func TestLedger(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tc := range []struct{ calls, other, ahead int }{ // other: the call in which b differs, 0 for none
		{1, 0, 0}, {5, 0, 3}, {1000, 0, 0}, {1000, 0, 7}, {50000, 0, 300},
		{1, 1, 0}, {5, 5, 0}, {5, 1, 2}, {17, 17, 0}, {1000, 995, 3}, {1000, 990, 0}, {1000, 3, 5}, {50000, 20000, 40}, {50000, 2, 1000},
	} {
		var a, b ledger
		note := func(l *ledger, i, root int) {
			var a activity
			a.enter(&call{Call: coll.Call{Kind: coll.Broadcast, Type: elem.Int32, N: i % 7, Root: int32(root)}}, nil)
			l.note(&call{Call: coll.Call{Kind: coll.Broadcast, N: i % 7}}, a.what.Load(), nil)
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
		// Of both a few of the last calls are there.
		if precise := tc.other > max(tc.calls+tc.ahead-recentCalls, 0); precise != (strings.Count(got, "ledger_internal_test.go") == 2 && strings.Contains(got, "(call ")) {
			t.Errorf("%+v: %q, want the call itself: %v", tc, got, precise)
		}
		if _, more := a.read("c", uint64(tc.calls+tc.ahead)); more {
			t.Errorf("%+v: read twice", tc)
		}
	}
}
