package inspect

import (
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/cli"
	"lockstep/internal/testkit"
)

// fall returns a run whose residual falls to a tenth in each step. Another number never changes,
// and a third is there only in each tenth step.
func fall(name string, steps int) *measured {
	r := &measured{name: name, names: []string{"step", "residual", "rows", "error"},
		units: map[string]string{"residual": "K"}}
	for i := 1; i <= steps; i++ {
		n := float64(i)
		rec := map[string]float64{"line": n, "step": n, "residual": math.Pow(10, -n), "rows": 7}
		if i%10 == 0 {
			rec["error"] = -n
		}
		r.records = append(r.records, rec)
	}
	return r
}

// These are the defaults of what is drawn, and what is refused.
func TestAxes(t *testing.T) {
	runs := []*measured{fall("a", 30), fall("b", 5)}
	for _, tc := range []struct {
		in   axes
		x, y string
		err  string
	}{
		{axes{}, "step", "residual error", ""},
		{axes{x: "line", y: []string{"rows"}}, "line", "rows", ""},
		{axes{x: "residual"}, "residual", "step error", ""},
		{axes{x: "time"}, "", "", "--x time: a run does not have it; there are: step, residual, rows, error"},
		{axes{y: []string{"loss"}}, "", "", "--y loss: no run has it; there are: step, residual, rows, error"},
	} {
		a := tc.in
		err := a.complete(runs)
		if tc.err != "" {
			if err == nil || err.Error() != tc.err || !errors.As(err, new(cli.Usage)) {
				t.Errorf("%+v: %v, want %s", tc.in, err, tc.err)
			}
			continue
		}
		if err != nil || a.x != tc.x || strings.Join(a.y, " ") != tc.y {
			t.Errorf("%+v: %v, %s over %s, want %s over %s", tc.in, err, a.y, a.x, tc.y, tc.x)
		}
	}
	still := &measured{name: "c", names: []string{"rows"}}
	still.records = []map[string]float64{{"line": 1, "rows": 7}, {"line": 2, "rows": 7}}
	err := (&axes{}).complete([]*measured{still})
	testkit.Refused(t, err, "no number of the runs changes over line")
	a := axes{x: "step", y: []string{"residual", "error"}, logY: true}
	list, left, _ := a.panels(runs)
	if len(list) != 2 || left != 3 || list[0].Y != "residual, K" || list[1].Y != "error" ||
		list[0].LinearY || !list[0].LinearX {
		t.Fatalf("%d left out: %+v", left, list)
	}
	if c := list[0].Curves; len(c) != 2 || c[0].Name != "a" || len(c[0].Points) != 30 || c[1].Points[4].Y != 1e-5 {
		t.Errorf("%+v", c)
	}
	if n := len(list[1].Curves); n != 0 {
		t.Errorf("%d curves of what is not above 0", n)
	}
	many, _, _ := (&axes{x: "step", y: []string{"step"}}).panels([]*measured{fall("long", 5000)})
	if p := many[0].Curves[0].Points; len(p) > mostPoints || p[len(p)-1].X != 5000 {
		t.Errorf("%d points, to %v", len(p), p[len(p)-1].X)
	}
}

// texts returns the texts of a picture that people read.
func texts(t *testing.T, file string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	for dec := xml.NewDecoder(strings.NewReader(string(text))); ; {
		switch tok, err := dec.Token(); {
		case errors.Is(err, io.EOF):
			return list
		case err != nil:
			t.Fatal(err)
		default:
			if s, ok := tok.(xml.CharData); ok && strings.TrimSpace(string(s)) != "" {
				list = append(list, strings.TrimSpace(string(s)))
			}
		}
	}
}

func TestPicture(t *testing.T) {
	dir := t.TempDir()
	svg, bitmap := filepath.Join(dir, "x.svg"), filepath.Join(dir, "x.png")
	runs := []*measured{fall("run-a", 12), fall("run-b", 3000)}
	for _, file := range []string{svg, bitmap} {
		a := axes{x: "step", y: []string{"residual", "error"}, logY: true}
		note, err := a.picture(file, false, runs)
		if err != nil || note != "2978 points are not above 0, and not on a logarithmic axis" { // 1e-324 is 0
			t.Fatalf("%v, %q", err, note)
		}
	}
	list := texts(t, svg)
	for _, want := range []string{"run-a", "run-b", "residual", "residual, K", "step"} {
		if !slices.Contains(list, want) {
			t.Errorf("the picture lacks %q: %q", want, list)
		}
	}
	// Which decades have names depends on math.Log10 of the least number there is,
	// which processors differ in.
	if !slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, "1e-") }) {
		t.Errorf("no decade has a name: %q", list)
	}
	f, err := os.Open(bitmap)
	testkit.Must(t, err)
	defer f.Close()
	if im, err := png.Decode(f); err != nil || im.Bounds().Dx() < 600 {
		t.Errorf("%v", err)
	}
	a := axes{x: "step", y: []string{"error"}, logY: true}
	_, err = a.picture(filepath.Join(dir, "y.svg"), false, runs)
	testkit.Refused(t, err, "nothing to draw: no line has step and one of error above 0")
	// Eight panels stand in two rows.
	wide := fall("many", 20)
	for i := range 8 {
		name := fmt.Sprint("n", i)
		wide.names = append(wide.names, name)
		for j := range wide.records {
			wide.records[j][name] = float64(i * j)
		}
	}
	b := axes{}
	if err := b.complete([]*measured{wide}); err != nil || len(b.y) != mostPanels {
		t.Fatalf("%v, %v", err, b.y)
	}
	rows := filepath.Join(dir, "rows.png")
	if _, err := b.picture(rows, false, []*measured{wide}); err != nil {
		t.Fatal(err)
	}
	g, err := os.Open(rows)
	testkit.Must(t, err)
	defer g.Close()
	if im, err := png.Decode(g); err != nil || im.Bounds().Dx() > 3*im.Bounds().Dy() {
		t.Errorf("%v, %v", err, im.Bounds())
	}
}
