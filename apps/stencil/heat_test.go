package main

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// serial makes steps on the whole grid, in the kernels' order of additions.
func serial[T number](u []T, size [3]int, dims int, periodic bool, steps int) []T {
	at := func(u []T, z, y, x int) T {
		c := [3]int{z, y, x}
		for a, n := range size {
			if c[a] < 0 || c[a] >= n {
				if !periodic {
					return 0
				}
				c[a] = (c[a] + n) % n
			}
		}
		return u[(c[0]*size[1]+c[1])*size[2]+c[2]]
	}
	for range steps {
		next := make([]T, 0, len(u))
		for z := range size[0] {
			for y := range size[1] {
				for x := range size[2] {
					sum := at(u, z-1, y, x) + at(u, z+1, y, x)
					if dims == 3 {
						sum += at(u, z, y-1, x) + at(u, z, y+1, x)
					}
					sum += at(u, z, y, x-1) + at(u, z, y, x+1)
					next = append(next, T(centre(int64(dims)))*at(u, z, y, x)+beside*sum)
				}
			}
		}
		u = next
	}
	return u
}

// random returns a grid of numbers from 0 to 1.
func random[T number](size [3]int) []T {
	u := make([]T, size[0]*size[1]*size[2])
	for i := range u {
		u[i] = T(spmd.UniformBits(7, uint64(i))) / (1 << 24)
	}
	return u
}

// own calls fn with each of the rank's cells: its place in the whole grid, and in values.
func (h *heat[T]) own(z, count int, at func(k, y int) int, fn func(global, local int)) {
	for k := range count {
		for y := range h.part[rows].Len {
			row := ((h.part[0].Off+z+k)*h.size[1] + h.part[1].Off + y) * h.size[2]
			for x := range h.part[columns].Len {
				fn(row+h.part[2].Off+x, at(k, y)+x)
			}
		}
	}
}

// put sets the rank's cells to those of a whole grid.
func (h *heat[T]) put(u []T) error {
	return h.fill(func(z, count int, values []T, at func(k, y int) int) {
		h.own(z, count, at, func(global, local int) { values[local] = u[global] })
	})
}

func (h *heat[T]) close(t *testing.T) {
	for _, err := range []error{
		h.main.Close(), h.comm.Close(), h.fields[0].Free(), h.fields[1].Free(), h.sent.Free(), h.received.Free(),
	} {
		spmdtest.Must(t, err)
	}
}

// meshes returns all meshes of a number of ranks.
func meshes(ranks, dims int) (all []extent) {
	if dims == 1 {
		return []extent{{ranks}}
	}
	for d := 1; d <= ranks; d++ {
		if ranks%d == 0 {
			for _, rest := range meshes(ranks/d, dims-1) {
				all = append(all, append(extent{d}, rest...))
			}
		}
	}
	return all
}

// On every mesh the values have the bits of a serial run.
func TestSerial(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		turn := 0
		for _, size := range []extent{{5, 4}, {4, 40}, {33, 47}, {4, 4, 4}, {4, 5, 6}, {7, 9, 37}} {
			for _, mesh := range meshes(w.Size(), len(size)) {
				for _, edges := range edgesOf {
					c := config{Size: size, Mesh: mesh, Edges: edges, Graph: turn%3 != 0, Overlap: turn%4 != 0}
					if turn++; turn%2 == 0 {
						testSerial[float32](t, w, c)
					} else {
						testSerial[float64](t, w, c)
					}
				}
			}
		}
	})
}

func testSerial[T number](t *testing.T, w *spmd.World, c config) {
	t.Helper()
	const steps = 4
	h, err := newHeat[T](w, c)
	spmdtest.Must(t, err)
	defer h.close(t)
	u := random[T](h.size)
	spmdtest.Must(t, h.put(u))
	spmdtest.Must(t, h.begin())
	if c.Graph && w.Comm().Capturable() == nil {
		g, err := h.main.Capture(func() error { return h.advance(steps / 2) })
		spmdtest.Must(t, err)
		spmdtest.Must(t, g.Launch(h.main))
		spmdtest.Must(t, g.Launch(h.main))
		spmdtest.Must(t, h.main.Synchronize())
		spmdtest.Must(t, g.Close())
	} else {
		spmdtest.Must(t, h.advance(steps))
		spmdtest.Must(t, h.main.Synchronize())
	}
	want := serial(u, h.size, h.dims, c.Edges == "periodic", steps)
	wrong := 0
	spmdtest.Must(t, h.visit(func(z, count int, values []T, at func(k, y int) int) error {
		h.own(z, count, at, func(global, local int) {
			if values[local] != want[global] {
				if wrong++; wrong == 1 {
					t.Errorf("%T %+v: cell %d is %v, want %v", *new(T), c, global, values[local], want[global])
				}
			}
		})
		return nil
	}))
}

// The closed form is compared with a serial run in float64.
func TestForm(t *testing.T) {
	for _, size := range []extent{{1, 1}, {1, 9}, {30, 41}, {3, 4, 5}, {12, 17, 14}} {
		for _, periodic := range []bool{false, true} {
			for _, steps := range []int{2, 40} {
				dims, whole := len(size), [3]int{1, 1, 1}
				var part [3]spmd.Shard
				for i, axis := range axesOf(dims) {
					whole[axis] = size[i]
				}
				for axis, n := range whole {
					part[axis].Len = n
				}
				f := newForm(whole, dims, periodic, steps)
				u := make([]float64, whole[0]*whole[1]*whole[2])
				start(f, part, 0, whole[0], u, func(k, y int) int { return (k*whole[1] + y) * whole[2] })
				u = serial(u, whole, dims, periodic, steps)
				for z := range whole[0] {
					for y := range whole[1] {
						f.row(atEnd, part, z, y, func(x int, want float64) {
							if got := u[(z*whole[1]+y)*whole[2]+x]; math.Abs(got-want) > 1e-13 {
								t.Errorf("%v, periodic %v, %d steps: cell %d %d %d is %v, want %v",
									size, periodic, steps, z, y, x, got, want)
							}
						})
					}
				}
			}
		}
	}
}

// Every run passes its own check, with errors that rounding explains.
func TestWholeRuns(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		for _, size := range []extent{{64, 200}, {300, 5}, {9, 20, 40}} {
			for _, edges := range edgesOf {
				for _, dtype := range dtypes {
					c := config{Size: size, Edges: edges, Dtype: dtype, Steps: 6, Iters: 4, Warmup: 1,
						Graph: w.Comm().Capturable() == nil, Overlap: true}
					r, err := runAs(w, c)
					spmdtest.Must(t, err)
					unit := map[string]float64{"float32": math.Ldexp(1, -24), "float64": math.Ldexp(1, -53)}[dtype]
					if !r.OK || r.MaxRelErr == 0 || r.MaxRelErr > 40*unit {
						t.Errorf("%+v on %d ranks: relative error %g", c, w.Size(), r.MaxRelErr)
					}
					bytes := 2 * 6 * cellsOf(size) * map[string]int{"float32": 4, "float64": 8}[dtype]
					if r.Bytes != bytes || r.Elements != cellsOf(size) {
						t.Errorf("%+v: %d bytes of %d cells, want %d", c, r.Bytes, r.Elements, bytes)
					}
				}
			}
		}
	})
}

func cellsOf(size extent) int {
	n := 1
	for _, k := range size {
		n *= k
	}
	return n
}

// The check finds a wrong cell, halos of the step before, and missing halos.
func TestCheckFindsWhatIsWrong(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		const steps = 200
		for _, tc := range []struct {
			what  string
			fails bool
			run   func(h *heat[float32]) error
		}{
			{"nothing", false, func(h *heat[float32]) error { return h.advance(steps) }},
			{"a cell", true, func(h *heat[float32]) error {
				err := h.advance(steps)
				if w.Rank() == 1 && err == nil {
					if err = h.main.Synchronize(); err == nil {
						i := int(h.box.Origin + 3*h.box.Plane + 5)
						h.fields[0].Set(i, h.fields[0].At(i)*1.02)
					}
				}
				return err
			}},
			{"NaN", true, func(h *heat[float32]) error {
				err := h.advance(steps)
				if w.Rank() == 1 && err == nil {
					if err = h.main.Synchronize(); err == nil {
						h.fields[0].Set(int(h.box.Origin), float32(math.NaN()))
					}
				}
				return err
			}},
			{"halos of two steps before", true, func(h *heat[float32]) error {
				in, out := h.fields[0], h.fields[1]
				for i := range steps {
					if err := h.frame(h.main, out, in, h.sent, h.received); err != nil {
						return err
					}
					if i%2 == 1 { // the other field keeps what came for it two steps ago
						if err := h.exchange(h.main, out); err != nil {
							return err
						}
					}
					if err := h.step(h.main, out, in); err != nil {
						return err
					}
					in, out = out, in
				}
				return nil
			}},
		} {
			for _, mesh := range []extent{{2, 1}, {1, 2}} {
				for _, edges := range edgesOf {
					h, err := newHeat[float32](w, config{Size: extent{100, 90}, Mesh: mesh, Edges: edges,
						Overlap: true})
					spmdtest.Must(t, err)
					f := newForm(h.size, h.dims, edges == "periodic", steps)
					spmdtest.Must(t, h.fill(func(z, count int, values []float32, at func(k, y int) int) {
						start(f, h.part, z, count, values, at)
					}))
					spmdtest.Must(t, h.begin())
					spmdtest.Must(t, tc.run(h))
					spmdtest.Must(t, h.main.Synchronize())
					got, err := maxRelErr(h, f)
					spmdtest.Must(t, err)
					if fails := !(got <= bound[float32](steps)); fails != tc.fails {
						t.Errorf("%s, mesh %v, %s: relative error %g, allowed are %g",
							tc.what, &mesh, edges, got, bound[float32](steps))
					}
					h.close(t)
				}
			}
		}
	})
}

// Fields, borders and faces are apart from each other, and rows begin at whole lines.
func TestNewBox(t *testing.T) {
	for _, size := range []int{4, 8} {
		for behind := range 64 {
			var sides [6]bool
			for i := range sides {
				sides[i] = behind>>i&1 != 0
			}
			for _, n := range [][3]int{{1, 1, 1}, {3, 4, 31}, {2, 5, 32}, {4, 3, 33}} {
				b := newBox(3, n, size, sides)
				what := fmt.Sprintf("%v of %d bytes, neighbours %06b", n, size, behind)
				if int(b.Origin)*size%line != 0 || int(b.Pitch)*size%line != 0 || int(b.Plane)%int(b.Pitch) != 0 {
					t.Errorf("%s: rows begin at %d, then every %d elements, and %d", what, b.Origin, b.Pitch, b.Plane)
				}
				seen := map[int64]bool{} // every cell, also of the border, has an element of its own
				for z := int64(-1); z <= b.N[0]; z++ {
					for y := int64(-1); y <= b.N[1]; y++ {
						for x := int64(-1); x <= b.N[2]; x++ {
							at := b.Origin + z*b.Plane + y*b.Pitch + x
							if at < 0 || at >= int64(b.elements()) || seen[at] {
								t.Fatalf("%s: cell %d %d %d is element %d of %d, another's or outside",
									what, z, y, x, at, b.elements())
							}
							seen[at] = true
						}
					}
				}
				var used []int // of the packed faces
				total := 0
				for side := range sides {
					cells := n[0] * n[1] * n[2] / n[side/2]
					if !sides[side] {
						cells = 0
					}
					total += cells
					if b.cells(side) != cells || (b.Face[side] >= 0) != sides[side] {
						t.Errorf("%s: side %d has %d cells at %d, want %d",
							what, side, b.cells(side), b.Face[side], cells)
					}
					for i := 0; i < cells && side >= 2; i++ {
						used = append(used, int(b.Face[side])+i)
					}
				}
				slices.Sort(used)
				if len(slices.Compact(used)) != len(used) || len(used) > 0 && used[len(used)-1] >= b.packed(size) ||
					int(b.First[6]) != total {
					t.Errorf("%s: faces %v of %d elements overlap or are outside", what, b.Face, b.packed(size))
				}
			}
		}
	}
}
