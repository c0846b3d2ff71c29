package inspect

import (
	"fmt"
	"slices"
	"strings"
)

// mostPoints is how many points of a curve are drawn. If there are more, every other one is left
// out, and so on.
const mostPoints = 2000

// mostPanels is how many numbers are drawn by default.
const mostPanels = 8

// axes says what is drawn over what.
type axes struct {
	x          string   // "" is the step, or the line
	y          []string // none are those that vary
	logX, logY bool
}

// complete chooses the defaults, and refuses what no run has.
func (a *axes) complete(runs []*measured) error {
	var names []string // that there are
	for _, r := range runs {
		for _, n := range r.names {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	all := func(name string) bool {
		return !slices.ContainsFunc(runs, func(r *measured) bool { return !r.has(name) })
	}
	if a.x == "" {
		if a.x = lineField; all(stepField) {
			a.x = stepField
		}
	} else if !all(a.x) {
		return usage("--x %s: a run does not have it; there are: %s", a.x, strings.Join(names, ", "))
	}
	for _, y := range a.y {
		if !slices.Contains(names, y) {
			return usage("--y %s: no run has it; there are: %s", y, strings.Join(names, ", "))
		}
	}
	if len(a.y) > 0 {
		return nil
	}
	for _, n := range names {
		if n != a.x && slices.ContainsFunc(runs, func(r *measured) bool { return r.varies(n) }) &&
			len(a.y) < mostPanels {
			a.y = append(a.y, n)
		}
	}
	if len(a.y) == 0 {
		return usage("no number of the runs changes over %s; --y says which to draw all the same: %s", a.x,
			strings.Join(names, ", "))
	}
	return nil
}

// panels returns the pictures of the runs, one for each number. It also returns how many points a
// logarithmic axis has left out, and the numbers that stand in no line with x.
func (a *axes) panels(runs []*measured) (list []Panel, left int, apart []string) {
	for _, y := range a.y {
		p := Panel{Title: y, X: a.label(a.x, runs), Y: a.label(y, runs), LinearX: !a.logX, LinearY: !a.logY,
			Tight: true}
		together := false
		for _, r := range runs {
			var points []map[string]float64
			for _, rec := range r.records {
				x, hasX := rec[a.x]
				v, hasY := rec[y]
				together = together || hasX && hasY
				switch {
				case !hasX || !hasY:
				case a.logX && x <= 0 || a.logY && v <= 0:
					left++
				default:
					points = append(points, rec)
				}
			}
			every := (len(points) + mostPoints - 1) / mostPoints
			p.NoMarks = p.NoMarks || len(points) > 50
			for i, rec := range points {
				if i%every == 0 || i == len(points)-1 {
					p.Add(r.name, rec[a.x], rec[y])
				}
			}
		}
		list = append(list, p)
		if !together {
			apart = append(apart, y)
		}
	}
	return list, left, apart
}

// label returns the name of a number with its unit, from the first run that has one.
func (a *axes) label(name string, runs []*measured) string {
	for _, r := range runs {
		if unit := r.units[name]; unit != "" {
			return name + ", " + unit
		}
	}
	return name
}

// picture draws the runs into a file: a PNG if its name ends in .png, else an SVG. replace says
// whether it may replace an existing file. note is a remark on the picture, or "".
func (a *axes) picture(file string, replace bool, runs []*measured) (note string, err error) {
	panels, left, apart := a.panels(runs)
	if !slices.ContainsFunc(panels, func(p Panel) bool {
		return slices.ContainsFunc(p.Curves, func(c Curve) bool { return len(c.Points) > 0 })
	}) {
		return "", usage("nothing to draw: no line has %s and one of %s%s", a.x, strings.Join(a.y, ", "),
			map[bool]string{true: " above 0, as a logarithmic axis wants it"}[left > 0])
	}
	var notes []string
	if len(apart) > 0 {
		notes = append(notes, fmt.Sprintf("not drawn: %s, which no line has together with %s (--x %s draws all)",
			strings.Join(apart, ", "), a.x, lineField))
	}
	if left > 0 {
		notes = append(notes, fmt.Sprintf("%d points are not above 0, and not on a logarithmic axis", left))
	}
	return strings.Join(notes, "\n"), WriteFigure(file, replace, panels...)
}
