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
func (o *orders) need(fn func() error) error {
	if o.n++; o.n == o.omit {
		return nil
	}
	return fn()
}

func (o *orders) after(s, other *spmd.Stream) error {
	return o.need(func() error { return s.After(other) })
}

// add is dst += src on a stream.
func (o *orders) add(s *spmd.Stream, dst, src spmd.Buffer[float32]) error {
	return addTo.Launch(s, spmd.Cover1D(dst.Len(), 64), dst.Arg(), src.Arg(), spmd.F32(1), spmd.I32(dst.Len()))
}

// racing are programs in which every place with need puts commands in order that nothing else does:
// what the examples do with streams, events and graphs, and what they do not need to put in order.
var racing = map[string]func(o *orders) error{
	"events": func(o *orders) (err error) { // docs/examples/events
		for i := range 2 {
			part, c := o.x.Slice(50*i, 50*(i+1)), o.w.Comm().On(o.b)
			err = errors.Join(err, spmd.Fill(o.a, part, 1), o.e.Record(o.a),
				o.need(func() error { return o.b.Wait(o.e) }), spmd.AllReduce(c, part, part, spmd.Sum))
		}
		return errors.Join(err, o.after(o.a, o.b), o.add(o.a, o.y, o.x))
	},
	"reducer": func(o *orders) (err error) { // docs/examples/gradient, as parallel.Reducer does it
		for range 2 {
			err = errors.Join(err, spmd.Copy(o.a, o.x, o.y), o.after(o.b, o.a),
				spmd.AllReduce(o.w.Comm().On(o.b), o.x, o.x, spmd.Avg), o.after(o.a, o.b), o.add(o.a, o.y, o.x))
		}
		return err
	},
	"two buffers in turn": func(o *orders) (err error) { // docs/examples/staging
		for i := range 3 {
			half := o.x.Slice(50*(i%2), 50*(i%2)+50)
			if i > 1 {
				err = errors.Join(err, o.after(o.b, o.a))
			}
			err = errors.Join(err, spmd.Copy(o.b, half, o.y.Slice(0, 50)), o.after(o.a, o.b),
				o.add(o.a, o.z.Slice(0, 50), half))
		}
		return err
	},
	"halo": func(o *orders) error { // apps/stencil
		edge, inside, c := o.x.Slice(0, 10), o.x.Slice(10, 100), o.w.Comm().On(o.b)
		err := spmd.Fill(o.a, o.x, 1)
		for range 2 {
			err = errors.Join(err, o.after(o.b, o.a), spmd.SendRecv(c, o.y.Slice(0, 10), 0, edge, 0),
				o.add(o.a, o.z.Slice(10, 100), inside), o.after(o.a, o.b), o.add(o.a, edge, o.y.Slice(0, 10)))
		}
		return err
	},
	"in a graph": func(o *orders) error { // docs/examples/graph
		g, err := o.a.Capture(func() error {
			return errors.Join(spmd.Fill(o.a, o.x, 1), o.b.After(o.a), spmd.Fill(o.a, o.y, 2), o.e.Record(o.a),
				o.need(func() error { return o.b.Wait(o.e) }), o.add(o.b, o.y, o.x), o.after(o.a, o.b),
				spmd.Copy(o.a, o.z, o.y), o.a.After(o.b))
		})
		if err != nil {
			return err
		}
		return errors.Join(g.Launch(o.a), g.Launch(o.c), g.Close())
	},
	"beside a graph": func(o *orders) error {
		g, err := o.a.Capture(func() error { return o.add(o.a, o.x, o.y) })
		if err != nil {
			return err
		}
		return errors.Join(g.Launch(o.a), o.after(o.b, o.a), spmd.Copy(o.b, o.z, o.x), o.after(o.a, o.b),
			g.Launch(o.a), o.after(o.b, o.a), spmd.Copy(o.b, o.z, o.x), g.Close())
	},
	"the host": func(o *orders) error {
		err := errors.Join(spmd.Fill(o.a, o.x, 1), o.e.Record(o.a), o.need(o.e.Synchronize), spmd.Copy(o.b, o.y, o.x),
			o.need(o.b.Synchronize), spmd.Fill(o.c, o.y, 2))
		o.x.At(0) // waits for what uses x
		return errors.Join(err, spmd.Fill(o.c, o.x, 3))
	},
	"a function on the host": func(o *orders) error { // docs/examples/conditional
		p, err := spmd.AllocPinned[float32](o.w, 1)
		must(o.t, err)
		return errors.Join(spmd.Fill(o.a, p, 1), o.after(o.b, o.a),
			o.b.HostFunc(func() error { p.Host()[0]++; return nil }), o.after(o.a, o.b), spmd.Fill(o.a, p, 2),
			o.b.Synchronize(), o.a.Synchronize())
	},
	"a library, a group and closed streams": func(o *orders) error { // docs/examples/samplesort
		c, turn := o.w.Comm().On(o.b), reverse(nil).Writes(0b1)
		err := errors.Join(turn.Call(o.a, 400, o.x.Arg(), o.y.Arg(), spmd.I64(50)),
			turn.Call(o.c, 400, o.z.Arg(), o.y.Arg(), spmd.I64(50)), o.after(o.b, o.a), o.after(o.b, o.c),
			c.Group(func() error { return spmd.AllGather(c, o.z, o.x) }), o.after(o.c, o.b))
		for range 3 {
			s := stream(o.t, o.w, "short")
			err = errors.Join(err, o.add(o.c, o.y, o.z), o.after(s, o.c), spmd.Fill(s, o.y, 1), s.Close())
		}
		return err
	},
	"an index in memory": func(o *orders) error { // apps/train's Muon
		at, one := alloc[int64](o.t, o.w, 1), spmd.Cover1D(1, 1)
		return errors.Join(at.SetAll(70), spmd.Fill(o.a, o.x.Slice(0, 50), 1),
			pick.Launch(o.b, one, o.y.Arg(), o.x.Arg(), at.Arg()), spmd.Fill(o.a, o.y.Slice(1, 50), 1),
			o.after(o.a, o.b), spmd.Fill(o.a, o.x, 1), o.after(o.b, o.a),
			pick.Launch(o.b, one, o.z.Arg(), o.x.Arg(), at.Arg()), o.after(o.c, o.b), spmd.Fill(o.c, at, 3))
	},
	"nothing to put in order": func(o *orders) error {
		unknown := library.New("unknown", func(library.Call) error { return nil }, func(spmd.Args) error { return nil })
		err := errors.Join(o.add(o.a, o.x, o.z), o.add(o.b, o.y, o.z),
			spmd.Copy(o.c, o.y.Slice(0, 0), o.x.Slice(0, 0)), spmd.AllReduce(o.w.Comm(), o.x, o.x, spmd.Sum),
			o.add(o.c, o.x, o.z), o.c.Synchronize(), unknown.Call(o.a, 0, o.x.Arg()), unknown.Call(o.b, 0, o.x.Arg()),
			o.x.Free())
		o.x = alloc[float32](o.t, o.w, 100)
		for i := range 50 { // halves of two streams
			err = errors.Join(err, spmd.Fill(o.a, o.x.Slice(i, i+1), 1), spmd.Fill(o.b, o.x.Slice(99-i, 100-i), 1))
		}
		return err
	},
}

// pick adds one element of x, which an index in memory says.
var pick = spmd.NewKernel("pick",
	`extern "C" __global__ void pick(float *y, const float *x, const long long *at) { *y += x[*at]; }`,
	func(a spmd.Args) error {
		spmd.ArgSlice[float32](a, 0)[0] += spmd.ArgSlice[float32](a, 1)[spmd.ArgSlice[int64](a, 2)[0]]
		return nil
	})

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
