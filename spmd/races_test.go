package spmd_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"regexp"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/spmdtest"
)

// orders puts the work of a program in order, but for one place.
type orders struct {
	t       *testing.T
	w       *spmd.World
	a, b, c *spmd.Stream
	x, y, z spmd.Buffer[float32]
	e       *spmd.Event
	omit, n int // a place, and how many there have been, from 1
}

// need calls fn, unless this is the place that is left out.
func (o *orders) need(fn func() error) {
	if o.n++; o.n != o.omit {
		must(o.t, fn())
	}
}

func (o *orders) after(s, other *spmd.Stream) { o.need(func() error { return s.After(other) }) }
func (o *orders) wait(s *spmd.Stream)         { o.need(func() error { return s.Wait(o.e) }) }

// add is dst += src on a stream.
func (o *orders) add(s *spmd.Stream, dst, src spmd.Buffer[float32]) error {
	return addTo.Launch(s, spmd.Cover1D(dst.Len(), 64), dst.Arg(), src.Arg(), spmd.F32(1), spmd.I32(dst.Len()))
}

// graph captures fn on a.
func (o *orders) graph(fn func() error) (*spmd.Graph, error) {
	g, err := o.a.Capture(fn)
	if err == nil {
		o.t.Cleanup(func() { must(o.t, g.Close()) })
	}
	return g, err
}

// all calls one function after the other until one fails.
func all(fns ...func() error) (err error) {
	for i := 0; err == nil && i < len(fns); i++ {
		err = fns[i]()
	}
	return err
}

// racing are programs in which every place with need puts commands in order that nothing else does:
// what the examples do with streams, events and graphs, and what they do not need to put in order.
var racing = map[string]func(o *orders) error{
	"events": func(o *orders) error { // docs/examples/events
		for i := range 2 {
			part := o.x.Slice(50*i, 50*(i+1))
			err := all(func() error { return spmd.Fill(o.a, part, 1) }, func() error { return o.e.Record(o.a) },
				func() error { o.wait(o.b); return spmd.AllReduce(o.w.Comm().On(o.b), part, part, spmd.Sum) })
			if err != nil {
				return err
			}
		}
		o.after(o.a, o.b)
		return o.add(o.a, o.y, o.x)
	},
	"reducer": func(o *orders) error { // docs/examples/gradient, as parallel.Reducer does it
		for range 2 {
			if err := all(func() error { return spmd.Copy(o.a, o.x, o.y) },
				func() error { o.after(o.b, o.a); return spmd.AllReduce(o.w.Comm().On(o.b), o.x, o.x, spmd.Avg) },
				func() error { o.after(o.a, o.b); return o.add(o.a, o.y, o.x) }); err != nil {
				return err
			}
		}
		return nil
	},
	"two buffers in turn": func(o *orders) error { // docs/examples/staging
		for i := range 3 {
			half := o.x.Slice(50*(i%2), 50*(i%2)+50)
			if i > 1 {
				o.after(o.b, o.a)
			}
			if err := spmd.Copy(o.b, half, o.y.Slice(0, 50)); err != nil {
				return err
			}
			o.after(o.a, o.b)
			if err := o.add(o.a, o.z.Slice(0, 50), half); err != nil {
				return err
			}
		}
		return nil
	},
	"halo": func(o *orders) error { // apps/stencil
		edge, inside := o.x.Slice(0, 10), o.x.Slice(10, 100)
		err := spmd.Fill(o.a, o.x, 1)
		for i := 0; err == nil && i < 2; i++ {
			o.after(o.b, o.a)
			err = all(func() error {
				return spmd.SendRecv(o.w.Comm().On(o.b), o.y.Slice(0, 10), 0, edge, 0)
			}, func() error { return o.add(o.a, o.z.Slice(10, 100), inside) },
				func() error { o.after(o.a, o.b); return o.add(o.a, edge, o.y.Slice(0, 10)) })
		}
		return err
	},
	"in a graph": func(o *orders) error { // docs/examples/graph
		g, err := o.graph(func() error {
			return all(func() error { return spmd.Fill(o.a, o.x, 1) }, func() error { return o.b.After(o.a) },
				func() error { return spmd.Fill(o.a, o.y, 2) }, func() error { return o.e.Record(o.a) },
				func() error { o.wait(o.b); return o.add(o.b, o.y, o.x) },
				func() error { o.after(o.a, o.b); return spmd.Copy(o.a, o.z, o.y) },
				func() error { return o.a.After(o.b) })
		})
		return all(func() error { return err }, func() error { return g.Launch(o.a) },
			func() error { return g.Launch(o.c) })
	},
	"beside a graph": func(o *orders) error {
		g, err := o.graph(func() error { return o.add(o.a, o.x, o.y) })
		for i := 0; err == nil && i < 2; i++ {
			if i > 0 {
				o.after(o.a, o.b)
			}
			if err = g.Launch(o.a); err == nil {
				o.after(o.b, o.a)
				err = spmd.Copy(o.b, o.z, o.x)
			}
		}
		return err
	},
	"the host": func(o *orders) error {
		err := all(func() error { return spmd.Fill(o.a, o.x, 1) }, func() error { return o.e.Record(o.a) },
			func() error { o.need(o.e.Synchronize); return spmd.Copy(o.b, o.y, o.x) },
			func() error { o.need(o.b.Synchronize); return spmd.Fill(o.c, o.y, 2) })
		o.x.At(0) // waits for what uses x
		return all(func() error { return err }, func() error { return spmd.Fill(o.c, o.x, 3) })
	},
	"a function on the host": func(o *orders) error { // docs/examples/conditional
		p, err := spmd.AllocPinned[float32](o.w, 1)
		if err != nil {
			return err
		}
		err = all(func() error { return spmd.Fill(o.a, p, 1) },
			func() error { o.after(o.b, o.a); return o.b.HostFunc(func() error { p.Host()[0]++; return nil }) },
			func() error { o.after(o.a, o.b); return spmd.Fill(o.a, p, 2) }, o.b.Synchronize, o.a.Synchronize)
		return err
	},
	"a library, a group and closed streams": func(o *orders) error { // docs/examples/samplesort
		comm := o.w.Comm().On(o.b)
		turn := reverse(nil).Writes(0b1)
		err := all(func() error { return turn.Call(o.a, 400, o.x.Arg(), o.y.Arg(), spmd.I64(50)) },
			func() error { return turn.Call(o.c, 400, o.z.Arg(), o.y.Arg(), spmd.I64(50)) },
			func() error {
				o.after(o.b, o.a)
				o.after(o.b, o.c)
				return comm.Group(func() error { return spmd.AllGather(comm, o.z, o.x) })
			}, func() error { o.after(o.c, o.b); return nil })
		for i := 0; err == nil && i < 3; i++ {
			s, e := o.w.NewStream("short")
			err = all(func() error { return e }, func() error { return o.add(o.c, o.y, o.z) },
				func() error { o.after(s, o.c); return spmd.Fill(s, o.y, 1) }, s.Close)
		}
		return err
	},
	"nothing to put in order": func(o *orders) error {
		old := o.x
		unknown := library.New("unknown", func(library.Call) error { return nil }, func(spmd.Args) error { return nil })
		err := all(func() error { return o.add(o.a, o.x, o.z) }, func() error { return o.add(o.b, o.y, o.z) },
			func() error { return spmd.Copy(o.c, o.y.Slice(0, 0), o.x.Slice(0, 0)) },
			func() error { return spmd.AllReduce(o.w.Comm(), o.x, o.x, spmd.Sum) },
			func() error { return o.add(o.c, o.x, o.z) }, o.c.Synchronize,
			func() error { return unknown.Call(o.a, 0, o.x.Arg()) },
			func() error { return unknown.Call(o.b, 0, o.x.Arg()) }, old.Free,
			func() (err error) { o.x, err = spmd.Alloc[float32](o.w, 100); return err })
		for i := 0; err == nil && i < 50; i++ { // halves of two streams
			err = all(func() error { return spmd.Fill(o.a, o.x.Slice(i, i+1), 1) },
				func() error { return spmd.Fill(o.b, o.x.Slice(99-i, 100-i), 1) })
		}
		return err
	},
}

var twoPlaces = regexp.MustCompile(`races_test.go:\d+: a race: .* at spmd/races_test.go:\d+`)

// Without a race no program is refused. With each of its places left out it is, by a message with
// both places.
func TestRaces(t *testing.T) {
	found := 0
	cfg := spmdtest.Config()
	cfg.Check = "on"
	for name, program := range racing {
		places := 0
		for omit := 0; omit <= places; omit++ {
			var race error // with which the rank does not fail: memory of failed ranks on GPUs stays taken
			err := spmd.Local(t.Context(), cfg, 1, func(_ context.Context, w *spmd.World) error {
				o := orders{t: t, w: w, omit: omit, a: stream(t, w, "a"), b: stream(t, w, "b"), c: stream(t, w, "c"),
					x: fill(t, w, 100, 1), y: fill(t, w, 100, 2), z: fill(t, w, 100, 3)}
				var err error
				o.e, err = w.NewEvent()
				must(t, err)
				race = program(&o)
				places = max(places, o.n)
				return nil
			})
			err = errors.Join(race, err)
			switch {
			case omit == 0 && err != nil:
				t.Errorf("%s: %v", name, err)
			case omit > 0 && (err == nil || !twoPlaces.MatchString(err.Error())):
				t.Errorf("%s without place %d: %v", name, omit, err)
			case omit > 0:
				found++
			}
		}
	}
	if found < 20 {
		t.Errorf("%d places", found)
	}
}

// Random programs on three streams race where a model says so that keeps for each command all that
// come before it.
func TestRacesOfRandomPrograms(t *testing.T) {
	cfg := spmdtest.Config()
	cfg.Check = "on"
	races := 0
	for seed := range uint64(300) {
		err := spmd.Local(t.Context(), cfg, 1, func(_ context.Context, w *spmd.World) error {
			r := rand.New(rand.NewPCG(seed, 0))
			type command struct {
				lo, hi int
				writes bool
				before map[int]bool // and itself
			}
			var commands []command
			x := alloc[uint8](t, w, 40)
			var streams [3]*spmd.Stream
			var sinks [3]spmd.Buffer[uint8]
			var events [2]*spmd.Event
			var known [3]map[int]bool
			var recorded [2]map[int]bool
			host := map[int]bool{}
			for i := range streams {
				streams[i], sinks[i], known[i] = stream(t, w, "s"), alloc[uint8](t, w, 40), map[int]bool{}
			}
			for i := range events {
				var err error
				events[i], err = w.NewEvent()
				must(t, err)
			}
			for range 80 {
				i, j, e := r.IntN(3), r.IntN(3), r.IntN(2)
				lo := r.IntN(40)
				hi := lo + 1 + r.IntN(min(8, 40-lo))
				c := command{lo: lo, hi: hi, before: known[i]}
				var err error
				switch r.IntN(16) {
				case 0, 1, 2, 3:
					must(t, streams[i].After(streams[j]))
					known[i] = joined(known[i], known[j])
					continue
				case 4, 5:
					must(t, events[e].Record(streams[i]))
					recorded[e] = known[i]
					continue
				case 6, 7, 8:
					must(t, streams[i].Wait(events[e]))
					known[i] = joined(known[i], recorded[e])
					continue
				case 9:
					must(t, streams[i].Synchronize())
					host = joined(host, known[i])
					continue
				case 10:
					x.At(lo)
					for _, o := range commands {
						host = joined(host, o.before)
					}
					continue
				case 11, 12, 13:
					err = spmd.Copy(streams[i], sinks[i].Slice(lo, hi), x.Slice(lo, hi))
				default:
					c.writes = true
					err = spmd.Fill(streams[i], x.Slice(lo, hi), 1)
				}
				known[i] = joined(known[i], host)
				want := false
				for k, o := range commands {
					want = want || o.lo < hi && lo < o.hi && (o.writes || c.writes) && !known[i][k]
				}
				if (err != nil) != want {
					t.Errorf("seed %d, command %d: %v, and a race: %v", seed, len(commands), err, want)
				}
				if want || err != nil {
					races++
					return nil
				}
				known[i] = joined(known[i], map[int]bool{len(commands): true})
				c.before = known[i]
				commands = append(commands, c)
			}
			return nil
		})
		must(t, err)
	}
	if races < 100 || races == 300 {
		t.Errorf("%d of 300 programs race", races)
	}
}

func joined(a, b map[int]bool) map[int]bool {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
