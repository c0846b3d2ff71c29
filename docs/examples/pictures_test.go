package examples

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/launch/inspect"
)

// curve is what the picture of an example's page draws, at n points.
type curve struct{ x, y []float64 }

// at returns the y of an x, and NaN where there is none.
func (c curve) at(x float64) float64 {
	for i := range c.x {
		if math.Abs(c.x[i]-x) < 1e-9 {
			return c.y[i]
		}
	}
	return math.NaN()
}

// near says whether a number is another within a distance; NaN is near nothing.
func near(a, b, within float64) bool { return math.Abs(a-b) <= within }

// drawn says of each example with a picture what its curve has to be on so many ranks.
var drawn = map[string]func(c curve, ranks int) error{
	// Chebyshev's bound for eigenvalues from 0.1 to 4.1, which the late steps meet.
	"conjugate": func(c curve, _ int) error {
		rate := (math.Sqrt(41) - 1) / (math.Sqrt(41) + 1)
		for step := 40.0; step < 80; step++ {
			if got := c.at(step+1) / c.at(step); !near(got, rate, 1e-6) {
				return fmt.Errorf("step %.0f leaves %.9f of the residual, want %.9f", step+1, got, rate)
			}
		}
		return nil
	},
	// A cosine of a square of 48: half of its elements in each of two columns.
	"fft": func(c curve, _ int) error {
		for j := range 48 {
			want := 0.0
			if j == 5 || j == 48-5 {
				want = 48 * 48 / 2
			}
			if got := c.at(float64(j)); !near(got, want, 1e-9) {
				return fmt.Errorf("column %d has %g, want %g", j, got, want)
			}
		}
		return nil
	},
	// Chi-square of two coordinates of each point, less the centres: its mean, in four deviations.
	"kmeans": func(c curve, _ int) error {
		const freedom = 2*4001 - 2*4
		for i := 1; i < len(c.y); i++ {
			if c.y[i] > c.y[i-1] {
				return fmt.Errorf("the squares grow from %g to %g", c.y[i-1], c.y[i])
			}
		}
		if last := c.at(19); !near(last, freedom, 4*math.Sqrt(2*freedom)) {
			return fmt.Errorf("squares of %g at the end, want %d", last, freedom)
		}
		return nil
	},
	// Energy stays, but for what the length of a step costs.
	"nbody": func(c curve, _ int) error {
		for i, t := range c.x {
			if !near(c.y[i]/c.at(0), 1, 1e-3) {
				return fmt.Errorf("energy %g at time %g, %g at the start", c.y[i], t, c.at(0))
			}
		}
		if c.at(0) == c.at(1) {
			return fmt.Errorf("energy %g at both ends: nothing has moved", c.at(0))
		}
		return nil
	},
	// As many samples of a rank as there are ranks: none gets twice its share.
	"samplesort": func(c curve, ranks int) error {
		sum := 0.0
		for r := range ranks {
			n := c.at(float64(r))
			if sum += n; n*float64(ranks) > 2*9001 {
				return fmt.Errorf("rank %d of %d gets %g elements", r, ranks, n)
			}
		}
		if sum != 9001 || len(c.x) != ranks {
			return fmt.Errorf("%g elements in %d points", sum, len(c.x))
		}
		return nil
	},
	// A cycle of four, of which three are above a half; and arcsine's law.
	"sweep": func(c curve, _ int) error {
		if a, b := c.at(3.5), c.at(4); !near(a, 0.75, 0.01) || !near(b, 0.5, 0.01) || len(c.x) != 12 {
			return fmt.Errorf("%g at 3.5 and %g at 4, in %d points", a, b, len(c.x))
		}
		return nil
	},
}

// plotLine is the command of a page that draws its picture.
var plotLine = regexp.MustCompile(
	`(?m)^    bin/launch plot --x (\w+) --y (\w+)( --log y)? --out (\w+)\.svg (\w+)\.jsonl$`)

// checkPicture holds what an example has emitted on rank 0 against closed forms, and draws it on 3
// ranks as its page says.
func checkPicture(t *testing.T, name string, ranks int, lines []byte) {
	t.Helper()
	if drawn[name] == nil {
		return
	}
	page, err := os.ReadFile(filepath.Join(name, "README.md"))
	if err != nil {
		t.Error(err)
		return
	}
	m := plotLine.FindSubmatch(page)
	if m == nil || string(m[4]) != name || string(m[5]) != name {
		t.Errorf("%s/README.md does not say how its picture is drawn", name)
		return
	}
	x, y := string(m[1]), string(m[2])
	var c curve
	for line := range bytes.Lines(lines) {
		var rec map[string]*float64
		if err := json.Unmarshal(line, &rec); err != nil || rec[x] == nil || rec[y] == nil {
			t.Errorf("%s emits %q, want %s and %s: %v", name, line, x, y, err)
			return
		}
		c.x, c.y = append(c.x, *rec[x]), append(c.y, *rec[y])
	}
	if err := drawn[name](c, ranks); err != nil {
		t.Errorf("%s on %d ranks: %v", name, ranks, err)
	}
	if ranks != 3 {
		return
	}
	log, out := filepath.Join(t.TempDir(), name+".jsonl"), filepath.Join(t.TempDir(), name+".svg")
	if err := os.WriteFile(log, lines, 0o644); err != nil {
		t.Error(err)
		return
	}
	cmd := inspect.PlotCommand()
	cmd.SetOut(io.Discard)
	cmd.SetArgs(append(strings.Fields("--x "+x+" --y "+y+string(m[3])), "--out", out, log))
	if err := cmd.Execute(); err != nil {
		t.Errorf("%s: %v", m[0], err)
		return
	}
	for _, file := range []string{out, filepath.Join(name, name+".svg")} {
		picture, err := os.ReadFile(file)
		if err != nil || len(picture) > 20_000 {
			t.Errorf("%s has %d bytes: %v", file, len(picture), err)
		}
		for _, label := range []string{x, y, name + ".jsonl"} {
			if !bytes.Contains(picture, []byte(">"+label+"</text>")) {
				t.Errorf("%s has no label %s", file, label)
			}
		}
	}
}

// The loop that docs/runs.md shows is that of an example.
func TestLoop(t *testing.T) {
	page, err := os.ReadFile("../runs.md")
	source, err2 := os.ReadFile("kmeans/main.go")
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	begin := []byte("for round := 0;")
	_, shown, ok := bytes.Cut(page, begin)
	_, real, ok2 := bytes.Cut(source, begin)
	shown, _, ok3 := bytes.Cut(shown, []byte("\n    }\n"))
	real, _, ok4 := bytes.Cut(real, []byte("\n\t}\n"))
	if !ok || !ok2 || !ok3 || !ok4 || !slices.Equal(strings.Fields(string(shown)), strings.Fields(string(real))) {
		t.Errorf("docs/runs.md shows\n%s\nand kmeans has\n%s", shown, real)
	}
}

// A page is short, shows its picture and is linked; each picture has what is true of it.
func TestPages(t *testing.T) {
	table, err := os.ReadFile("README.md")
	testkit.Must(t, err)
	pages, err := filepath.Glob("*/README.md")
	if err != nil || len(pages) != len(drawn) {
		t.Errorf("%d pages of %d examples with pictures: %v", len(pages), len(drawn), err)
	}
	for _, file := range pages {
		name := filepath.Dir(file)
		page, err := os.ReadFile(file)
		if n := bytes.Count(page, []byte("\n")); err != nil || n > 25 {
			t.Errorf("%s has %d lines: %v", file, n, err)
		}
		if drawn[name] == nil || !bytes.Contains(page, []byte("]("+name+".svg)")) {
			t.Errorf("%s has no picture", file)
		}
		if !bytes.Contains(table, []byte("]("+file+")")) {
			t.Errorf("README.md does not link %s", file)
		}
	}
}
