package main

import (
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// panel is one pair of axes with its lines.
type panel struct {
	title, x, y string
	xTicks      plot.Ticker
	linearX     bool
	linearY     bool
	noMarks     bool
	curves      []curve
	reference   []curve // drawn dashed, in grey: what would be ideal
}

// curve is one line of a panel; those with the same name have the same colour in every panel of a figure.
type curve struct {
	name   string
	points plotter.XYs
}

// add puts a point at the end of the curve of a name.
func (p *panel) add(name string, x, y float64) {
	i := slices.IndexFunc(p.curves, func(c curve) bool { return c.name == name })
	if i < 0 {
		i = len(p.curves)
		p.curves = append(p.curves, curve{name: name})
	}
	if (x > 0 || p.linearX) && (y > 0 || p.linearY) { // a logarithmic axis has no zero
		p.curves[i].points = append(p.curves[i].points, plotter.XY{X: x, Y: y})
	}
}

// draw makes the plot; colours are places in the figure's list of names.
func (p *panel) draw(names []string) (*plot.Plot, error) {
	g := plot.New()
	g.Title.Text, g.X.Label.Text, g.Y.Label.Text = p.title, p.x, p.y
	g.BackgroundColor, g.Title.TextStyle.Font.Size = color.White, 10
	g.Add(plotter.NewGrid())
	lo, hi := plotter.XY{X: math.Inf(1), Y: math.Inf(1)}, plotter.XY{X: math.Inf(-1), Y: math.Inf(-1)}
	for _, c := range slices.Concat(p.reference, p.curves) {
		if len(c.points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(c.points)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", p.title, c.name, err)
		}
		line.Color, line.Dashes = color.Gray{Y: 160}, []vg.Length{vg.Points(4), vg.Points(3)}
		if i := slices.Index(names, c.name); i >= 0 {
			line.Color, line.Dashes, line.Width = plotutil.Color(i), nil, vg.Points(1.5)
			marks.Color, marks.Shape, marks.Radius = plotutil.Color(i), plotutil.Shape(i), vg.Points(2)
			if !p.noMarks {
				g.Add(marks)
			}
		}
		g.Add(line)
		for _, xy := range c.points {
			lo, hi = plotter.XY{X: min(lo.X, xy.X), Y: min(lo.Y, xy.Y)}, plotter.XY{X: max(hi.X, xy.X), Y: max(hi.Y, xy.Y)}
		}
	}
	axis(&g.X, lo.X, hi.X, p.linearX)
	axis(&g.Y, lo.Y, hi.Y, p.linearY)
	if p.xTicks != nil {
		g.X.Tick.Marker = p.xTicks
	}
	return g, nil
}

// axis sets a range that is never empty: on a linear axis it begins at 0.
func axis(a *plot.Axis, lo, hi float64, linear bool) {
	if linear {
		a.Min, a.Max = 0, hi*1.05
		return
	}
	a.Scale, a.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	a.Min, a.Max = lo/1.2, hi*1.2
}

// logTicks marks 1, 2 and 5 of each decade, and over many decades only names every 1.
func logTicks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	decades := math.Log10(hi / lo)
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			if v < lo || v > hi {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 || decades < 2.5 {
				t.Label = strconv.FormatFloat(v, 'g', 6, 64)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// sizeTicks marks powers of two, with about eight of them named.
func sizeTicks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	first, last := int(math.Ceil(math.Log2(lo))), int(math.Floor(math.Log2(hi)))
	every := (last-first)/8 + 1
	for e := first; e <= last; e++ {
		t := plot.Tick{Value: math.Exp2(float64(e))}
		if (e-first)%every == 0 && e >= 0 {
			t.Label = sizeText(1 << e)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// onRanks says how many there are.
func onRanks(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}

// rankTicks marks the numbers of ranks that there are.
func rankTicks(lines []measured) plot.Ticker {
	at := map[int]bool{}
	for _, m := range lines {
		at[m.Ranks] = true
	}
	var ticks plot.ConstantTicks
	for _, n := range slices.Sorted(maps.Keys(at)) {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: strconv.Itoa(n)})
	}
	return ticks
}

// The size of a panel, and of a line of the legend, which stands below the panels.
const (
	panelWidth  = 12 * vg.Centimeter
	panelHeight = 9 * vg.Centimeter
	legendLine  = 0.45 * vg.Centimeter
)

// figure writes the panels that have points, side by side, into an SVG file.
func figure(file string, panels ...panel) error {
	var names []string
	panels = slices.DeleteFunc(panels, func(p panel) bool {
		return !slices.ContainsFunc(p.curves, func(c curve) bool { return len(c.points) > 0 })
	})
	if len(panels) == 0 {
		return nil
	}
	for _, p := range panels {
		for _, c := range p.curves {
			if !slices.Contains(names, c.name) {
				names = append(names, c.name)
			}
		}
	}
	below := vg.Length(len(names)+1) * legendLine
	canvas := vgsvg.New(panelWidth*max(1.4, vg.Length(len(panels))), panelHeight+below) // a legend needs more than one panel's width
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	row := make([]*plot.Plot, len(panels))
	for i, p := range panels {
		var err error
		if row[i], err = p.draw(names); err != nil {
			return err
		}
	}
	const pad = 3 * vg.Millimeter
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: 2 * pad, PadTop: pad, PadBottom: pad, PadLeft: pad, PadRight: pad}
	for i, p := range row {
		p.Draw(tiles.At(draw.Crop(c, 0, 0, below, 0), i, 0))
	}
	legend := plot.NewLegend()
	legend.Left, legend.Top, legend.TextStyle.Font.Size, legend.Padding = true, true, 9, vg.Points(2.5)
	for i, n := range names {
		line, marks, err := plotter.NewLinePoints(plotter.XYs{{X: 0, Y: 0}})
		if err != nil {
			return err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(1.5)
		marks.Color, marks.Shape, marks.Radius = plotutil.Color(i), plotutil.Shape(i), vg.Points(2)
		if panels[0].noMarks {
			legend.Add(n, line)
		} else {
			legend.Add(n, line, marks)
		}
	}
	legend.Draw(draw.Crop(c, 2*pad, 0, 0, -panelHeight))
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// label names a line in a legend.
func (m measured) label() string {
	name := m.Side
	for _, f := range []struct {
		on   bool
		name string
	}{{m.Symmetric && m.Side == ours, "symmetric"}, {m.InPlace && m.Op != "broadcast", "in place"}, {m.Stream && !m.Graph && m.Side == ours, "on a stream"}, {m.Graph, "in a graph"}} {
		if f.on {
			name += ", " + f.name
		}
	}
	return name
}

// plot draws what has been measured so far.
func (s *sweep) plot() error {
	at := func(name string) string { return filepath.Join(s.out, s.set+"-"+name+".svg") }
	_, machine := s.hardware()
	apps := map[string][]measured{}
	for _, m := range s.all {
		apps[m.App] = append(apps[m.App], m)
	}
	for _, op := range s.ops {
		for _, t := range s.types {
			for _, n := range s.ranks {
				lines := slices.DeleteFunc(slices.Clone(apps["sweep"]), func(m measured) bool { return m.Op != op.name || m.Dtype != t.name || m.Ranks != n })
				if err := figure(at(fmt.Sprintf("%s-%s-%d", op.name, t.name, n)), bySize(lines, fmt.Sprintf("%s, %s, %s", op.name, t.name, onRanks(n)), machine)...); err != nil {
					return err
				}
			}
		}
	}
	for _, app := range appNames {
		if err := figure(at("scaling-"+app), byRanks(app, apps[app])...); err != nil {
			return err
		}
	}
	if err := figure(at("reduce-times"), distribution(apps["reduce"], machine)); err != nil {
		return err
	}
	return figure(at("cost"), costs(apps["cost"])...)
}

// bySize are the latency and the bus bandwidth of one collective.
func bySize(lines []measured, title, machine string) []panel {
	us := panel{title: title, x: "bytes", y: "time of a call, us", xTicks: plot.TickerFunc(sizeTicks)}
	bus := panel{title: machine, x: "bytes", y: "bus bandwidth, GB/s", xTicks: plot.TickerFunc(sizeTicks)}
	slices.SortStableFunc(lines, func(a, b measured) int { return a.Bytes - b.Bytes })
	for _, m := range lines {
		us.add(m.label(), float64(m.Bytes), m.MedianUS)
		bus.add(m.label(), float64(m.Bytes), m.BusGBps)
	}
	return []panel{us, bus}
}

// byRanks are the speed-up at the same work, and the efficiency at work that grows.
func byRanks(app string, lines []measured) []panel {
	up := panel{title: app + ", strong scaling", x: "ranks", y: "speed-up", xTicks: rankTicks(lines)}
	efficiency := panel{title: app + ", weak scaling", x: "ranks", y: "efficiency", xTicks: rankTicks(lines), linearY: true}
	slices.SortStableFunc(lines, func(a, b measured) int { return a.Ranks - b.Ranks })
	var ideal, one curve
	for _, m := range lines {
		n, least := float64(m.Ranks), float64(lines[0].Ranks)
		if m.Scaling == strong {
			up.add(m.label(), n, m.SpeedUp)
		} else {
			efficiency.add(m.label(), n, m.Efficiency)
		}
		ideal.points = append(ideal.points, plotter.XY{X: n, Y: n / least})
		one.points = append(one.points, plotter.XY{X: n, Y: 1})
	}
	up.reference, efficiency.reference = []curve{ideal}, []curve{one}
	return []panel{up, efficiency}
}

// apart is how much longer a time is that is drawn apart from another: of 10,000 most fall on the same place.
const apart = 1.002

// distribution is the part of reduce's times that is no longer than each time: of every time where a side gives
// them, else by the least, the median, the 99th percentile and the greatest.
func distribution(lines []measured, machine string) panel {
	p := panel{title: "times of reduce; " + machine, x: "us", y: "cumulative part of the times", linearY: true, noMarks: true}
	for _, m := range lines {
		if m.Scaling != strong {
			continue
		}
		name := fmt.Sprintf("%s, %s: p50 %.1f us, p99 %.1f us, max %.1f us", m.label(), onRanks(m.Ranks), m.MedianUS, m.P99US, m.MaxUS)
		if len(m.SamplesUS) == 0 {
			for _, q := range []plotter.XY{{X: m.MinUS, Y: 0}, {X: m.MedianUS, Y: 0.5}, {X: m.P99US, Y: 0.99}, {X: m.MaxUS, Y: 1}} {
				p.add(name, q.X, q.Y)
			}
			continue
		}
		sorted := slices.Sorted(slices.Values(m.SamplesUS))
		drawn, n := 0.0, float64(len(sorted))
		for i, us := range sorted {
			if us < drawn*apart && i+1 < len(sorted) {
				continue
			}
			if i > 0 { // the last of those that fell on the place before
				p.add(name, sorted[i-1], float64(i)/n)
			}
			p.add(name, us, float64(i)/n)
			p.add(name, us, float64(i+1)/n)
			drawn = us
		}
	}
	return p
}

// costs are the time of the smallest all-reduce, of the start, and the memory of a rank.
func costs(lines []measured) []panel {
	ticks := rankTicks(lines)
	us := panel{title: "all-reduce of 8 bytes", x: "ranks", y: "us", xTicks: ticks}
	start := panel{title: "start to the end of the first collective", x: "ranks", y: "ms", xTicks: ticks}
	memory := panel{title: "peak memory of a rank", x: "ranks", y: "MiB", xTicks: ticks, linearY: true}
	for _, m := range lines {
		us.add(m.label(), float64(m.Ranks), m.MedianUS)
		if m.Side == ours && !m.Graph {
			start.add(m.label(), float64(m.Ranks), m.StartupMS)
			memory.add(m.label(), float64(m.Ranks), m.PeakMiB)
		}
	}
	return []panel{us, start, memory}
}
