package spmd_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// TestFitAxes compares the sizes with all that multiply to the ranks.
func TestFitAxes(t *testing.T) {
	for ranks := 1; ranks <= 60; ranks++ {
		axes, err := parallel.FitAxes(ranks, parallel.Axis{Name: "z", Size: parallel.Fit},
			parallel.Axis{Name: "y", Size: parallel.Fit}, parallel.Axis{Name: "x", Size: parallel.Fit})
		must(t, err)
		z, y, x := axes[0].Size, axes[1].Size, axes[2].Size
		if z*y*x != ranks || z < y || y < x {
			t.Errorf("%d ranks: %v", ranks, axes)
		}
		for a := 1; a <= ranks; a++ {
			for b := 1; a*b <= ranks; b++ {
				if c := ranks / (a * b); a*b*c == ranks && a+b+c < z+y+x {
					t.Errorf("%d ranks: %v, but %d, %d, %d are more even", ranks, axes, a, b, c)
				}
			}
		}
	}
	axes, err := parallel.FitAxes(24, parallel.Axis{Name: "z", Size: parallel.Fit},
		parallel.Axis{Name: "y", Size: 2, Periodic: true}, parallel.Axis{Name: "x", Size: parallel.Fit})
	must(t, err)
	if got := fmt.Sprint(axes, axes[1].Periodic); got != "[z 4 y 2 periodic x 3] true" {
		t.Error(got)
	}
	for _, tc := range []struct {
		want string
		axes []parallel.Axis
	}{
		{"[] do not multiply to the 6 ranks", nil},
		{"[z 2 y 2] do not multiply to the 6 ranks", []parallel.Axis{{Name: "z", Size: 2}, {Name: "y", Size: 2}}},
		{"[z 4 y -1] do not multiply to the 6 ranks",
			[]parallel.Axis{{Name: "z", Size: 4}, {Name: "y", Size: parallel.Fit}}},
		{`axis "z" of 0 ranks`, []parallel.Axis{{Name: "z"}}},
		{`two axes are named "z"`, []parallel.Axis{{Name: "z", Size: parallel.Fit}, {Name: "z", Size: 1}}},
	} {
		if _, err := parallel.FitAxes(6, tc.axes...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("axes %v: %v, want %q", tc.axes, err, tc.want)
		}
	}
}

// TestShift compares neighbours with those of a grid drawn by its definition: ranks in order, the
// last axis fastest.
func TestShift(t *testing.T) {
	everyKind(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		for _, periodic := range []bool{false, true} {
			m, err := parallel.NewLayout(w, parallel.Axis{Name: "y", Size: parallel.Fit},
				parallel.Axis{Name: "x", Size: parallel.Fit, Periodic: periodic})
			must(t, err)
			axes := m.Axes()
			ny, nx := axes[0].Size, axes[1].Size
			at := func(y, x int) int {
				if periodic {
					x = ((x % nx) + nx) % nx
				}
				if y < 0 || y >= ny || x < 0 || x >= nx {
					return spmd.None
				}
				return y*nx + x
			}
			y, x := w.Rank()/nx, w.Rank()%nx
			for by := -9; by <= 9; by++ {
				if from, to := m.Shift("y", by); from != at(y-by, x) || to != at(y+by, x) {
					t.Errorf("%v, rank %d, %d along y: from %d to %d, want %d and %d", axes, w.Rank(), by,
						from, to, at(y-by, x), at(y+by, x))
				}
				if from, to := m.Shift("x", by); from != at(y, x-by) || to != at(y, x+by) {
					t.Errorf("%v, periodic %v, rank %d, %d along x: from %d to %d, want %d and %d", axes,
						periodic, w.Rank(), by, from, to, at(y, x-by), at(y, x+by))
				}
			}
			if from, to := m.Shift("y", math.MaxInt); from != spmd.None || to != spmd.None {
				t.Errorf("beyond all ends are %d and %d", from, to)
			}
			axes[0].Size = 99
			if m.Axes()[0].Size != ny {
				t.Error("Axes gives away the mesh's own")
			}
		}
	})
}

// TestNone: a receive from None leaves the buffer as it is, a send to it goes nowhere, and the
// other half of a SendRecv takes place, in every way to issue it. An edge makes the calls that the
// inside makes.
func TestNone(t *testing.T) { everyWay(t, leftOut) }

func leftOut(t *testing.T, w *spmd.World) {
	m, err := parallel.NewMesh(w, parallel.Axis{Name: "line", Size: parallel.Fit})
	must(t, err)
	me := w.Rank()
	from, to := m.Shift("line", 1)
	x, halo, none := alloc[int32](t, w, 3), alloc[int32](t, w, 3), alloc[int32](t, w, 3)
	must(t, x.SetAll(int32(100+me)))
	for _, mode := range modesOf(w) {
		must(t, halo.SetAll(-1))
		must(t, none.SetAll(-2))
		mode.run(t, w, func(c spmd.Comm) error {
			return errors.Join(
				spmd.Recv(c, none, spmd.None),
				spmd.SendRecv(c, none, spmd.None, x, spmd.None),
				spmd.SendRecv(c, halo, from, x, to),
				spmd.Send(c, x, spmd.None))
		})
		want := int32(99 + me)
		if me == 0 {
			want = -1
		}
		if halo.At(0) != want || halo.At(2) != want || none.At(0) != -2 {
			t.Errorf("%s, rank %d: received %d, want %d; from None %d", mode.name, me, halo.At(0), want, none.At(0))
		}
		if mode.name == "group" {
			continue
		}
		mode.run(t, w, func(c spmd.Comm) error { // the ends meet by Send and Recv alone
			return errors.Join(spmd.Send(c, x, to), spmd.Recv(c, halo, from))
		})
		if halo.At(1) != want {
			t.Errorf("%s, rank %d: received %d, want %d", mode.name, me, halo.At(1), want)
		}
	}
	s := stream(t, w, "captured")
	must(t, halo.Free())
	c := w.Comm()
	for what, err := range map[string]error{
		"freed":                spmd.Recv(c, halo, spmd.None),
		"was freed":            spmd.SendRecv(c, halo, spmd.None, x, spmd.None),
		"overlap":              spmd.SendRecv(c, x, spmd.None, x, spmd.None),
		"the zero Comm":        spmd.Send(spmd.Comm{}, x, spmd.None),
		"from -1 is not in":    spmd.SendRecv(c, none, -1, x, spmd.None),
		"another stream than":  c.Group(func() error { return spmd.Send(c.On(s), x, spmd.None) }),
		"rank -2147483647 is":  spmd.Send(c, x, spmd.None+1),
		"-2147483648 is not":   spmd.Broadcast(c, x, spmd.None),
		"in the middle of a c": blocksInCapture(s, func() error { return spmd.Send(c, x, spmd.None) }),
	} {
		if err == nil || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), "mesh_test.go:") && what != "in the middle of a c" {
			t.Errorf("%v, want %q", err, what)
		}
	}
}

// shiftLine moves a number to the next rank of a line, and then to the one before, in a group of a
// stream and in a graph.
func shiftLine(w *spmd.World) error {
	me, last := w.Rank(), w.Size()-1
	before, after := me-1, me+1
	if me == 0 {
		before = spmd.None
	}
	if me == last {
		after = spmd.None
	}
	s, err := w.NewStream("line")
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[int32](w, 3) // from before, its own, from after
	if err != nil {
		return err
	}
	c, own := w.Comm().On(s), x.Slice(1, 2)
	shift := func() error {
		return c.Group(func() error {
			return errors.Join(spmd.SendRecv(c, x.Slice(0, 1), before, own, after),
				spmd.SendRecv(c, x.Slice(2, 3), after, own, before))
		})
	}
	check := func(what string) error {
		want := [3]int32{int32(99 + me), int32(100 + me), int32(101 + me)}
		if me == 0 {
			want[0] = -1
		}
		if me == last {
			want[2] = -1
		}
		got := [3]int32{x.At(0), x.At(1), x.At(2)}
		if got != want {
			return fmt.Errorf("%s: rank %d has %v, want %v", what, me, got, want)
		}
		return x.SetAll(-1)
	}
	g, err := s.Capture(func() error { return errors.Join(shift(), spmd.Send(c, own, spmd.None)) })
	if err != nil {
		return err
	}
	replay := func() error { return g.Launch(s) }
	for i, f := range []func() error{shift, replay, replay, shift} {
		if err := errors.Join(x.SetAll(-1), own.SetAll(int32(100+me)), f(), s.Synchronize(),
			check(fmt.Sprintf("time %d", i))); err != nil {
			return err
		}
	}
	return errors.Join(g.Close(), s.Close(), x.Free())
}

// TestNoneIsChecked: --check compares the messages there are.
func TestNoneIsChecked(t *testing.T) {
	spmdtest.HostOnly(t, "what is compared is the same on a GPU")
	t.Parallel()
	if status, out := run(t, 3, "line", nil, "--check=on"); status != 0 {
		t.Errorf("status %d\n%s", status, out)
	}
}

// blocksInCapture makes fn fail a capture.
func blocksInCapture(s *spmd.Stream, fn func() error) error {
	_, err := s.Capture(fn)
	return err
}
