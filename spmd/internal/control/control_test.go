package control_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
)

// onRanks runs fn on 1, 2 and 3 ranks, which are goroutines.
func onRanks(t *testing.T, fn func(t *testing.T, c control.Exchange)) {
	t.Helper()
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			must(t, transport.RunTeam(n, func(c *transport.Member) error { fn(t, c); return nil }))
		})
	}
}

var must = testkit.Must

// perRank returns f of each rank.
func perRank[T any](c control.Exchange, f func(rank int) T) (all []T) {
	for r := range c.Size() {
		all = append(all, f(r))
	}
	return all
}

// Ranks agree on what one process finds that knows each rank's input.
func TestAgreement(t *testing.T) {
	onRanks(t, func(t *testing.T, c control.Exchange) {
		for i, f := range []func(rank int) int64{
			func(int) int64 { return -7 },
			func(r int) int64 { return int64(r) * 1e12 },
			func(r int) int64 { return int64(r%2*2-1) * int64(r+1) },
			func(r int) int64 { return []int64{math.MaxInt64, math.MinInt64, 0}[r] },
		} {
			all := perRank(c, f)
			want := control.Span{Lo: slices.Min(all), Hi: slices.Max(all)}
			got, err := control.Range(c, f(c.Rank()))
			must(t, err)
			if got != want || got.One() != (slices.Min(all) == slices.Max(all)) {
				t.Errorf("case %d: %v from %v, want %v", i, got, all, want)
			}
		}

		spans := []control.Span{{Lo: int64(-c.Rank()), Hi: 5}, {Lo: 3, Hi: int64(3 + c.Rank())}, control.Of(4)}
		must(t, control.Union(c, spans))
		last := int64(c.Size() - 1)
		if want := []control.Span{{Lo: -last, Hi: 5}, {Lo: 3, Hi: 3 + last}, {Lo: 4, Hi: 4}}; !slices.Equal(spans,
			want) {
			t.Errorf("spans %v, want %v", spans, want)
		}
		must(t, control.Union(c, nil))

		text := func(r int) []byte { return []byte(strings.Repeat(string(rune('a'+r)), r*700)) } // rank 0 has none
		parts, err := control.Gather(c, text(c.Rank()))
		must(t, err)
		if want := perRank(c, text); !slices.EqualFunc(parts, want, slices.Equal) {
			t.Errorf("gathered %q, want %q", parts, want)
		}
		for root := range c.Size() {
			got, err := control.Broadcast(c, text(c.Rank()), root)
			must(t, err)
			if !slices.Equal(got, text(root)) {
				t.Errorf("from rank %d: %q, want %q", root, got, text(root))
			}
		}
	})
}

// coded is an error with a number for its kind.
type coded struct {
	error
	code int64
}

func (c coded) FailureCode() int64 { return c.code }

// Every rank learns of the same failure, the first rank's, with its code. Each rank that failed
// keeps its own.
func TestFirst(t *testing.T) {
	onRanks(t, func(t *testing.T, c control.Exchange) {
		for failing := range 1 << c.Size() { // the set of ranks that fail
			said := func(r int) string { return fmt.Sprintf("no %d%s", r, strings.Repeat(" at all", 50*r)) }
			var mine error
			if failing>>c.Rank()&1 == 1 {
				mine = fmt.Errorf("no %w", coded{errors.New(said(c.Rank())[3:]), int64(100 + c.Rank())})
			}
			f, err := control.First(c, mine)
			must(t, err)
			first := slices.Index(perRank(c, func(r int) bool { return failing>>r&1 == 1 }), true)
			switch {
			case first < 0:
				if f != nil || f.Or(nil) != nil {
					t.Errorf("nobody failed, and %v is said", f)
				}
				continue
			case f == nil || *f != control.Failure{Rank: first, Code: int64(100 + first), Text: said(first)}:
				t.Fatalf("%+v, want what rank %d said", f, first)
			}
			want := fmt.Sprintf("rank %d: %s", first, said(first))
			if mine != nil {
				want = mine.Error()
			}
			if got := f.Or(mine); got.Error() != want {
				t.Errorf("rank %d says %q, want %q", c.Rank(), got, want)
			}
		}
		f, err := control.First(c, errors.New("plain"))
		must(t, err)
		if f == nil || *f != (control.Failure{Text: "plain"}) {
			t.Errorf("%+v, want rank 0's failure without a code", f)
		}
	})
}

// A failure that passes through several ranks names the one that began.
func TestFailureNamesRank(t *testing.T) {
	for _, tc := range []struct{ said, want string }{
		{"no space left", "rank 3: no space left"},
		{"rank 12: no space left", "rank 12: no space left"},
		{"rank x: no space left", "rank 3: rank x: no space left"},
		{"a file of rank 1: gone", "rank 3: a file of rank 1: gone"},
	} {
		if got := (&control.Failure{Rank: 3, Text: tc.said}).Error(); got != tc.want {
			t.Errorf("%q becomes %q, want %q", tc.said, got, tc.want)
		}
	}
}

// guard is a test double of a Guard: it notes what passes.
type guard struct {
	passed []control.Kind
	inside bool
}

var errStrangers = errors.New("strangers")

func (g *guard) Pass(on control.Kind, fn func() error) error {
	g.passed = append(g.passed, on)
	g.inside = true
	defer func() { g.inside = false }()
	return fn()
}

func (g *guard) Strangers(on control.Kind) error {
	if !g.inside {
		return errors.New("called outside of Pass")
	}
	return fmt.Errorf("%w on %v", errStrangers, on)
}

func TestChannel(t *testing.T) {
	onRanks(t, func(t *testing.T, c control.Exchange) {
		g := &guard{}
		ch := control.NewChannel(c, g)
		last := c.Size() - 1

		s, err := ch.Range(control.Split, int64(c.Rank()))
		must(t, err)
		if s != (control.Span{Lo: 0, Hi: int64(last)}) {
			t.Errorf("range %v", s)
		}
		must(t, ch.Agree(control.CloseComm, nil))
		var mine error
		if c.Rank() == last {
			mine = errStrangers
		}
		if err := ch.Agree(control.CloseComm, mine); err == nil || (mine != nil) != (err == mine) ||
			!strings.HasSuffix(err.Error(), "strangers") {
			t.Errorf("agreed on %v", err)
		}
		b, err := ch.Broadcast(control.Start, []byte{byte(c.Rank() + 1)}, last)
		must(t, err)
		if len(b) != 1 || int(b[0]) != last+1 {
			t.Errorf("broadcast %v", b)
		}
		v := map[string]int{}
		if c.Rank() == last {
			v["x"] = 7
		}
		must(t, ch.Tell(control.Choose, &v, last))
		if v["x"] != 7 {
			t.Errorf("told %v", v)
		}
		inside := false
		must(t, ch.Exchange(control.End, func(control.Exchange) error { inside = g.inside; return nil }))
		want := []control.Kind{control.Split, control.CloseComm, control.CloseComm, control.Start, control.Choose,
			control.End}
		if !inside || !slices.Equal(g.passed, want) {
			t.Errorf("passed %v, want %v", g.passed, want)
		}

		// Ranks that come on behalf of different calls all learn it, and exchange nothing.
		on := control.Split
		if c.Rank() == last && last > 0 {
			on = control.End
		}
		called := false
		err = ch.Exchange(on, func(control.Exchange) error { called = true; return nil })
		if apart := last > 0; apart != errors.Is(err, errStrangers) || apart == called {
			t.Errorf("%v, exchanged: %v", err, called)
		}
	})
}
