package main

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"

	"lockstep/internal/runfiles"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// checkImage checks on rank 0 that a picture can be written to a file, before there is one. If not,
// it is bad input on every rank. It is collective if there is a name.
func checkImage(w *spmd.World, c config) error {
	if c.Image == "" {
		return nil
	}
	why := ""
	if w.Rank() == 0 {
		if err := runfiles.Check(c.Image, c.overwrite); err != nil {
			why = runfiles.About("--image", err, "--overwrite").Error()
		}
	}
	why, err := hostdata.Broadcast(w.Comm(), why, 0)
	if err == nil && why != "" {
		err = spmd.Usage(errors.New(why))
	}
	return err
}

// writeImage writes a picture to a file.
func writeImage(c config, m image.Image) error {
	f, err := runfiles.Create(c.Image, c.overwrite)
	if err != nil {
		return err
	}
	if err := png.Encode(f, m); err != nil {
		return errors.Join(err, f.Drop())
	}
	return f.Commit()
}

// mostPixels is the longest side of a picture. Each pixel of a larger grid is the mean
// of some cells.
const mostPixels = 1024

// picture is the means of cells, by pixel.
type picture struct {
	width, height int
	grid          [2]int // rows and columns of the plane that is drawn
	sum           []float64
}

func newPicture(rows, columns int) *picture {
	p := &picture{grid: [2]int{rows, columns}, height: rows, width: columns}
	if longer := max(rows, columns); longer > mostPixels {
		p.height, p.width = max(1, rows*mostPixels/longer), max(1, columns*mostPixels/longer)
	}
	p.sum = make([]float64, p.width*p.height)
	return p
}

// pixel returns the pixel of cell i of n.
func pixel(i, n, pixels int) int { return i * pixels / n }

// cells returns how many of n cells belong to a pixel.
func cells(at, n, pixels int) int { return ((at+1)*n+pixels-1)/pixels - (at*n+pixels-1)/pixels }

// add adds a row of cells, from column x on.
func add[T number](p *picture, y, x int, values []T) {
	line := p.sum[pixel(y, p.grid[0], p.height)*p.width:]
	for i, v := range values {
		line[pixel(x+i, p.grid[1], p.width)] += float64(v)
	}
}

// image returns the picture: 0 is white, the largest size of a mean is red, or blue below 0.
func (p *picture) image() image.Image {
	most := tiny
	for i := range p.sum {
		p.sum[i] /= float64(cells(i/p.width, p.grid[0], p.height) * cells(i%p.width, p.grid[1], p.width))
		most = math.Max(most, math.Abs(p.sum[i]))
	}
	m := image.NewRGBA(image.Rect(0, 0, p.width, p.height))
	for i, v := range p.sum {
		m.SetRGBA(i%p.width, i/p.width, shade(v/most))
	}
	return m
}

// shade returns the colour of a number from -1 to 1.
func shade(v float64) color.RGBA {
	if math.IsNaN(v) {
		return color.RGBA{A: 255}
	}
	rest := uint8(math.Round(255 * (1 - math.Abs(v))))
	if v < 0 {
		return color.RGBA{rest, rest, 255, 255}
	}
	return color.RGBA{255, rest, rest, 255}
}

// draw writes the picture of the first field: all of it in two dimensions, the plane in the middle
// in three. Without a name it does nothing. Collective.
func draw[T number](h *heat[T], c config) error {
	if c.Image == "" {
		return nil
	}
	across := rows
	if h.dims == 2 {
		across = planes
	}
	p := newPicture(h.size[across], h.size[columns])
	err := h.visit(func(z, count int, values []T, at func(k, y int) int) error {
		for k := range count {
			plane := h.part[planes].Off + z + k
			for y := range h.part[rows].Len {
				row := values[at(k, y):][:h.part[columns].Len]
				switch {
				case h.dims == 2:
					add(p, plane, h.part[columns].Off, row)
				case plane == h.size[planes]/2:
					add(p, h.part[rows].Off+y, h.part[columns].Off, row)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := hostdata.ReduceSlice(h.w.Comm(), p.sum, p.sum, spmd.Sum, 0); err != nil {
		return err
	}
	failed := ""
	if h.w.Rank() == 0 {
		if err := writeImage(c, p.image()); err != nil {
			failed = fmt.Sprintf("--image: %v", err)
		}
	}
	if failed, err = hostdata.Broadcast(h.w.Comm(), failed, 0); err == nil && failed != "" {
		err = errors.New(failed)
	}
	return err
}
