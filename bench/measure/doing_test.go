package measure

import (
	"bytes"
	"testing"
	"time"

	"lockstep/internal/cli"
	"lockstep/internal/testkit"
)

// On a terminal there is one line, which disappears. Elsewhere there is a line every half minute.
func TestDoing(t *testing.T) {
	for _, tc := range []struct {
		columns     int
		live, plain string
	}{
		{80, "bench  3 of 3  stencil  2 rows", ""},
		{0, "", "bench: 1 of 3  allreduce\nbench: 3 of 3  stencil  2 rows\n"},
	} {
		var screen, plain bytes.Buffer
		clock := time.Unix(1e9, 0)
		d := Doing{screen: &cli.Screen{To: &screen}, columns: func() int { return tc.columns }, plain: &plain,
			now: func() time.Time { return clock }}
		last := func() string {
			lines := testkit.ScreenLines(screen.String())
			return lines[len(lines)-1]
		}
		for i, what := range []string{"allreduce", "reduce", "stencil"} {
			d.Say(what, i+1, 3, i)
			clock = clock.Add(20 * time.Second)
		}
		if tc.columns > 0 && last() != tc.live || plain.String() != tc.plain {
			t.Errorf("%d columns: %q, %q", tc.columns, &screen, &plain)
		}
		d.Done()
		if tc.columns > 0 && last() != "" || tc.columns == 0 && screen.Len() > 0 {
			t.Errorf("%d columns, at the end: %q", tc.columns, &screen)
		}
	}
}
