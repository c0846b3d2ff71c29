package main

import (
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"testing"

	"lockstep/apps/internal/apptest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, main) }

func TestProgram(t *testing.T) {
	spmdtest.Ranks(t, 3)
	file := filepath.Join(t.TempDir(), "heat.png")
	for range 2 { // the second time there is a file already
		line := apptest.Measures(t, 3, "overlap size mesh edges elements steps", "--size", "60x2100", "--steps", "4",
			"--iters", "5", "--image", file, "--overwrite")
		if fmt.Sprintln(line["ranks"], line["size"], line["mesh"], line["steps"], line["bytes"]) !=
			"3 60x2100 3x1 4 4.032e+06\n" {
			t.Errorf("%v", line)
		}
		left, err := os.ReadDir(filepath.Dir(file))
		spmdtest.Must(t, err)
		f, err := os.Open(file)
		spmdtest.Must(t, err)
		m, err := png.Decode(f)
		spmdtest.Must(t, err)
		spmdtest.Must(t, f.Close())
		if m.Bounds().Max != image.Pt(1024, 29) || len(left) != 1 {
			t.Errorf("the picture has %v pixels, want 1024 x 29; beside it are %v", m.Bounds().Max, left)
		}
	}
}

func TestRanksOfAProcess(t *testing.T) {
	apptest.InProcess(t, "--steps", "2", "--iters", "1", "--warmup", "0")
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there.png")
	spmdtest.Must(t, os.WriteFile(there, []byte("of somebody"), 0o666))
	apptest.Refuses(t, "stencil", [][2]string{
		{"--size 100", "want 2 or 3 numbers"},
		{"--size 100x0", "want positive numbers"},
		{"--size 1x2x3x4", "want 2 or 3 numbers"},
		{"--size 2x200 --mesh 3x1", "--size 2x200: 2 cells along y are fewer than the mesh has ranks there, 3"},
		{"--size 20x2x20 --mesh 1x3x1", "--size 20x2x20: 2 cells along y are fewer"},
		{"--size 4000000000x4000000000", "--size 4000000000x4000000000: more bytes than can be addressed"},
		{"--size 10x1000000x10", "at most 524279 cells along y for each rank"},
		{"--mesh 2x2", "--mesh 2x2: the sizes of the axes [y 2 x 2] do not multiply to the 3 ranks"},
		{"--mesh 3x1x1", "--mesh 3x1x1: the grid has 2 dimensions"},
		{"--size 9x9x9 --mesh 3x1", "--mesh 3x1: the grid has 3 dimensions"},
		{"--edges open", "--edges open: want fixed, periodic"},
		{"--dtype float16", "--dtype float16: want float32, float64"},
		{"--steps 3", "--steps 3: must be an even number"},
		{"--steps 0", "--steps 0: must be an even number"},
		{"--iters 0", "--iters 0"},
		{"--iters 9000000000000000000", "more than 100000 steps in all"},
		{"--warmup -1", "--warmup -1"},
		{"--image " + dir + "/none/heat.png", "--image: open " + dir + "/none/"},
		{"--image " + dir, "--image: " + dir + " is a folder"},
		{"--image " + there, "--image: " + there +
			" is there already: give another name, or --overwrite to replace it"},
		{"--sizes 3", "unknown flag: --sizes"},
	}...)
}

func TestWrongResult(t *testing.T) {
	apptest.Reports(t, "the result is wrong", func(w *spmd.World, e float64) error {
		return report(w, result{Steps: 2, MaxRelErr: e, bound: 0.1})
	})
}

// Every cell belongs to one pixel, and cells counts them.
func TestPixels(t *testing.T) {
	for pixels := 1; pixels < 40; pixels++ {
		for n := pixels; n < 130; n++ {
			count := make([]int, pixels)
			for i := range n {
				count[pixel(i, n, pixels)]++
			}
			for at, k := range count {
				if k == 0 || cells(at, n, pixels) != k {
					t.Fatalf("%d cells on %d pixels: pixel %d has %d, and is said to have %d",
						n, pixels, at, k, cells(at, n, pixels))
				}
			}
		}
	}
}

// Pictures of known grids are compared with means that the test computes.
func TestPicture(t *testing.T) {
	spmdtest.Run(t, []int{1, 3, 4}, func(t *testing.T, w *spmd.World) {
		dir := t.TempDir()
		for i, size := range []extent{{20, 30}, {1500, 40}, {6, 20, 30}, {5, 7, 2300}} {
			h, err := newHeat[float64](w, config{Size: size, Edges: "fixed"})
			spmdtest.Must(t, err)
			u := random[float64](h.size)
			for k := range u {
				u[k] -= 0.5
			}
			spmdtest.Must(t, h.put(u))
			name := filepath.Join(dir, fmt.Sprintf("%d.png", i))
			spmdtest.Must(t, draw(h, config{Image: name}))
			h.close(t)
			if w.Rank() > 0 {
				continue
			}
			plane, height, width := u, h.size[0], h.size[2]
			if h.dims == 3 {
				height = h.size[1]
				plane = u[h.size[0]/2*height*width:][:height*width]
			}
			comparePicture(t, name, plane, height, width)
		}
	})
}

func comparePicture(t *testing.T, name string, u []float64, height, width int) {
	f, err := os.Open(name)
	spmdtest.Must(t, err)
	defer f.Close()
	m, err := png.Decode(f)
	spmdtest.Must(t, err)
	b := m.Bounds()
	longer := max(height, width)
	if longer <= 1024 && (b.Dx() != width || b.Dy() != height) || max(b.Dx(), b.Dy()) > 1024 {
		t.Fatalf("%d x %d cells are %d x %d pixels", height, width, b.Dy(), b.Dx())
	}
	sum, count := make([]float64, b.Dx()*b.Dy()), make([]float64, b.Dx()*b.Dy())
	for i, v := range u {
		p := (i/width)*b.Dy()/height*b.Dx() + (i%width)*b.Dx()/width
		sum[p] += v
		count[p]++
	}
	most := 0.0
	for p := range sum {
		sum[p] /= count[p]
		most = max(most, math.Abs(sum[p]))
	}
	for p, v := range sum {
		want := color.RGBA{255, uint8(math.Round(255 * (1 - math.Abs(v)/most))), 0, 255}
		want.B = want.G
		if v < 0 {
			want.R, want.B = want.G, 255
		}
		got := color.RGBAModel.Convert(m.At(p%b.Dx(), p/b.Dx())).(color.RGBA)
		if abs(got.R, want.R) > 1 || abs(got.G, want.G) > 1 || abs(got.B, want.B) > 1 || got.A != 255 {
			t.Fatalf("%s: pixel %d is %v, want %v", name, p, got, want)
		}
	}
}

func abs(a, b uint8) int { return max(int(a)-int(b), int(b)-int(a)) }
