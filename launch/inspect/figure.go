package inspect

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"lockstep/internal/runfiles"
)

// hues tell curves apart for people with any kind of colour vision, and stand out from white three
// to one. Source: Okabe and Ito, Color Universal Design (2008), without those that are too light;
// black and a purple in their place.
var hues = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 255}, color.RGBA{0xd5, 0x5e, 0x00, 255}, color.RGBA{0x00, 0x9e, 0x73, 255},
	color.RGBA{0x00, 0x00, 0x00, 255}, color.RGBA{0xc0, 0x68, 0x96, 255}, color.RGBA{0x7f, 0x3c, 0x8d, 255},
}

// hue returns the colour of the i-th name of a figure.
func hue(i int) color.Color { return hues[i%len(hues)] }

// Panel is one pair of axes of a figure, with its lines.
type Panel struct {
	Title, X, Y string
	XTicks      plot.Ticker
	LinearX     bool // else logarithmic
	LinearY     bool
	Tight       bool // a linear axis of Y begins near its least value, instead of at 0
	NoMarks     bool
	Curves      []Curve
	Reference   []Curve // drawn dashed, in grey: what would be ideal
}

// Curve is one line of a panel; those with the same name have the same colour
// in every panel of a figure.
type Curve struct {
	Name   string
	Points plotter.XYs
}

// Add puts a point at the end of the curve of a name.
func (p *Panel) Add(name string, x, y float64) {
	i := slices.IndexFunc(p.Curves, func(c Curve) bool { return c.Name == name })
	if i < 0 {
		i = len(p.Curves)
		p.Curves = append(p.Curves, Curve{Name: name})
	}
	if (x > 0 || p.LinearX) && (y > 0 || p.LinearY) { // a logarithmic axis has no zero
		p.Curves[i].Points = append(p.Curves[i].Points, plotter.XY{X: x, Y: y})
	}
}

// draw makes the plot; colours are places in the figure's list of names.
func (p *Panel) draw(names []string) (*plot.Plot, error) {
	g := plot.New()
	g.Title.Text, g.X.Label.Text, g.Y.Label.Text = p.Title, p.X, p.Y
	g.BackgroundColor, g.Title.TextStyle.Font.Size = color.White, 10
	g.Add(plotter.NewGrid())
	lo, hi := plotter.XY{X: math.Inf(1), Y: math.Inf(1)}, plotter.XY{X: math.Inf(-1), Y: math.Inf(-1)}
	for _, c := range slices.Concat(p.Reference, p.Curves) {
		if len(c.Points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(c.Points)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", p.Title, c.Name, err)
		}
		line.Color, line.Dashes = color.Gray{Y: 160}, []vg.Length{vg.Points(4), vg.Points(3)}
		if i := slices.Index(names, c.Name); i >= 0 {
			line.Color, line.Dashes, line.Width = hue(i), nil, vg.Points(1.5)
			marks.Color, marks.Shape, marks.Radius = hue(i), plotutil.Shape(i), vg.Points(2)
			if !p.NoMarks {
				g.Add(marks)
			}
		}
		g.Add(line)
		for _, xy := range c.Points {
			lo = plotter.XY{X: min(lo.X, xy.X), Y: min(lo.Y, xy.Y)}
			hi = plotter.XY{X: max(hi.X, xy.X), Y: max(hi.Y, xy.Y)}
		}
	}
	axis(&g.X, lo.X, hi.X, p.LinearX)
	axis(&g.Y, lo.Y, hi.Y, p.LinearY)
	if p.Tight && p.LinearY {
		room := max((hi.Y-lo.Y)/20, math.Abs(hi.Y)/1000)
		g.Y.Min, g.Y.Max = lo.Y-room, hi.Y+room
	}
	if p.Tight && p.LinearX && lo.X > hi.X/2 { // far from 0, as times of day are
		g.X.Min = lo.X - (hi.X-lo.X)/20
	}
	if p.XTicks != nil {
		g.X.Tick.Marker = p.XTicks
	}
	return g, nil
}

// axis sets a range. A linear axis begins at 0, or below that.
func axis(a *plot.Axis, lo, hi float64, linear bool) {
	if linear {
		a.Min, a.Max, a.Tick.Marker = min(0, lo*1.05), max(0, hi*1.05), plot.TickerFunc(plainTicks)
		return
	}
	a.Scale, a.Tick.Marker = plot.LogScale{}, plot.TickerFunc(LogTicks)
	a.Min, a.Max = lo/1.2, hi*1.2
}

// plainTicks are gonum's own, without its zeros behind the point where few are named (25000.00).
func plainTicks(lo, hi float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(lo, hi)
	for i, t := range ticks {
		if !t.IsMinor() {
			ticks[i].Label = strconv.FormatFloat(t.Value, 'g', 6, 64)
		}
	}
	return ticks
}

// fewNames is how many names a logarithmic axis has at least.
const fewNames = 4

// LogTicks names every 1 of the decades, or 1, 2 and 5, or every multiple, or round numbers in
// between, until that is enough. Over more than eight decades it names every other 1, and so on.
// The multiples without a name have a small tick.
func LogTicks(lo, hi float64) []plot.Tick {
	for _, named := range []string{"1", "125", "123456789"} {
		if ticks, names := multiples(lo, hi, named); names >= fewNames {
			return ticks
		}
	}
	return plainTicks(lo, hi)
}

// multiples returns a tick for each multiple of the powers of ten, those of named digits with a
// name, and how many have one.
func multiples(lo, hi float64, named string) (ticks []plot.Tick, names int) {
	first, last := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	every := max(1, math.Ceil((math.Log10(hi)-math.Log10(lo))/8))
	for e := first; e <= last; e++ {
		for m := 1; m <= 9 && (m == 1 || every == 1); m++ {
			v := float64(m) * math.Pow(10, e)
			if v < lo || v > hi {
				continue
			}
			t := plot.Tick{Value: v}
			if math.Mod(e, every) == 0 && strings.Contains(named, strconv.Itoa(m)) {
				t.Label = strconv.FormatFloat(v, 'g', 6, 64)
				names++
			}
			ticks = append(ticks, t)
		}
	}
	return ticks, names
}

// The size of a panel, and of a line of the legend, which stands below the panels.
const (
	panelWidth  = 12 * vg.Centimeter
	panelHeight = 9 * vg.Centimeter
	legendLine  = 0.45 * vg.Centimeter
)

// inRow is the number of panels side by side.
const inRow = 4

// WriteFigure writes the panels that have points, in rows, into a file, as package runfiles does.
// It is a PNG if its name ends in .png, else an SVG. Without points there is no file.
func WriteFigure(file string, replace bool, panels ...Panel) error {
	var names []string
	panels = slices.DeleteFunc(panels, func(p Panel) bool {
		return !slices.ContainsFunc(p.Curves, func(c Curve) bool { return len(c.Points) > 0 })
	})
	if len(panels) == 0 {
		return nil
	}
	for _, p := range panels {
		for _, c := range p.Curves {
			if !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	below := vg.Length(len(names)+1) * legendLine
	cols, rows := min(len(panels), inRow), (len(panels)+inRow-1)/inRow
	wide := panelWidth * max(1.4, vg.Length(cols)) // a legend needs more than one panel's width
	height := panelHeight * vg.Length(rows)
	high := height + below
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	} = vgsvg.New(wide, high)
	if strings.EqualFold(filepath.Ext(file), ".png") {
		canvas = vgimg.PngCanvas{Canvas: vgimg.New(wide, high)}
	}
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	plots := make([]*plot.Plot, len(panels))
	for i, p := range panels {
		var err error
		if plots[i], err = p.draw(names); err != nil {
			return err
		}
	}
	const pad = 3 * vg.Millimeter
	tiles := draw.Tiles{Rows: rows, Cols: cols, PadX: 2 * pad, PadY: 2 * pad, PadTop: pad, PadBottom: pad,
		PadLeft: pad, PadRight: pad}
	for i, p := range plots {
		p.Draw(tiles.At(draw.Crop(c, 0, 0, below, 0), i%cols, i/cols))
	}
	legend := plot.NewLegend()
	legend.Left, legend.Top, legend.TextStyle.Font.Size, legend.Padding = true, true, 9, vg.Points(2.5)
	for i, n := range names {
		line, marks, err := plotter.NewLinePoints(plotter.XYs{{X: 0, Y: 0}})
		if err != nil {
			return err
		}
		line.Color, line.Width = hue(i), vg.Points(1.5)
		marks.Color, marks.Shape, marks.Radius = hue(i), plotutil.Shape(i), vg.Points(2)
		if panels[0].NoMarks {
			legend.Add(n, line)
		} else {
			legend.Add(n, line, marks)
		}
	}
	legend.Draw(draw.Crop(c, 2*pad, 0, 0, -height))
	f, err := runfiles.Create(file, replace)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		return errors.Join(err, f.Drop())
	}
	return f.Commit()
}
