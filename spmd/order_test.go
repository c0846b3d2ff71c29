package spmd_test

import (
	"errors"
	"fmt"
	"go/types"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/arrayfile"
	"lockstep/spmd/blas"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
	"lockstep/spmd/vector"
)

// ordering is what a row of a table of calls works with. What the calls leave in x, y, p and seen
// must not depend on how far s was.
type ordering struct {
	w          *spmd.World
	c          spmd.Comm
	s, other   *spmd.Stream // other is idle
	rank, size int
	x, y, p, q spmd.Buffer[float32] // each of 8 elements for each rank; p and q are pinned
	seen       []any                // results on the host
	dir        string               // of files, which has those of prepare
	after      []func() error       // what closes things, at the end
}

func (o *ordering) see(v any) { o.seen = append(o.seen, fmt.Sprint(v)) }

func (o *ordering) own(b spmd.Buffer[float32]) spmd.Buffer[float32] {
	return b.Slice(8*o.rank, 8*(o.rank+1))
}

func (o *ordering) later(fns ...func() error) { o.after = append(o.after, fns...) }

// ordered is a check of calls that touch memory of streams, or are on a stream.
type ordered struct {
	calls string // by the names of testkit.Calls
	how   way
	run   func(o *ordering) error
}

// way is how a call is made, and what it needs.
type way int

const (
	blocks   way = iota // the call comes behind the work of all streams on its buffers
	enqueues            // the call is on its stream, and returns at once
	lasts               // the call is on its stream, and waits for it, or for other ranks
	launches way = 4    // beside one of these: it launches kernels, which doubles do not run
)

// untouched are calls that do not look at the memory of their buffers.
const untouched = `spmd.Buffer.Address spmd.Buffer.Arg spmd.Buffer.Bytes spmd.Buffer.Free spmd.Buffer.Len
	spmd.Buffer.Slice spmd.Buffer.TensorMap spmd.Comm.On spmd.Structs.Bytes spmd.Structs.Len spmd.View
	blas.MatrixOf library.Reads library.Writes managed.Advise parallel.NewGatherer
	parallel.NewNorm parallel.NewReducer parallel.NewScatterer`

// TestCallsInOrder: a call that blocks orders itself behind all work of this rank's streams on its
// buffers. A call that takes a Comm and a Stream enqueues on that Stream, whatever stream the Comm
// is on. Each such call of spmd and of the packages on it is made while its stream is held up.
func TestCallsInOrder(t *testing.T) {
	everyKind(t, []int{1, 2, 3}, callsInOrder)
}

// TestCallsInOrderAll: each call that has to keep an order has a check.
func TestCallsInOrderAll(t *testing.T) {
	t.Parallel()
	checked := strings.Fields(untouched)
	for _, row := range orderedCalls {
		checked = append(checked, strings.Fields(row.calls)...)
	}
	all := testkit.Calls(t)
	for name, s := range all {
		stream, of := parameterHolds(s, "Stream"), s.Recv()
		comm := parameterHolds(s, "Comm") || of != nil && valueHolds(of.Type(), "Comm")
		memory := parameterHolds(s, "Buffer") ||
			of != nil && strings.HasPrefix(name, "spmd.") && valueHolds(of.Type(), "Buffer")
		if need := stream && comm || !stream && memory; need != slices.Contains(checked, name) {
			t.Errorf("%s: needs a row of orderedCalls, or a place among the untouched: %v", name, need)
		}
	}
	for _, name := range checked {
		if all[name] == nil {
			t.Errorf("%s is no exported call", name)
		}
	}
}

// orderedCalls are the calls of everyCall that touch memory, and all others.
var orderedCalls = append(slices.Collect(func(yield func(ordered) bool) {
	for _, call := range everyCall(8) {
		if call.kind != coll.Barrier {
			yield(ordered{"spmd." + call.kind.String(), blocks,
				func(o *ordering) error { return call.do(o.c, o.y, o.x, o.size-1) }})
		}
	}
}), []ordered{
	{"spmd.AllReduce", blocks, func(o *ordering) error { return spmd.AllReduce(o.c, o.x, o.x, spmd.Max) }},
	{"spmd.Send", blocks, func(o *ordering) (err error) {
		if o.rank > 0 {
			return spmd.Send(o.c, o.own(o.x), 0)
		}
		for r := 1; r < o.size && err == nil; r++ {
			err = spmd.Recv(o.c, o.y.Slice(8*r, 8*(r+1)), r)
		}
		return err
	}},
	{"spmd.Recv", blocks, func(o *ordering) (err error) {
		if o.rank > 0 {
			return spmd.Recv(o.c, o.own(o.y), 0)
		}
		for r := 1; r < o.size && err == nil; r++ {
			err = spmd.Send(o.c, o.x.Slice(8*r, 8*(r+1)), r)
		}
		return err
	}},
	{"", blocks, func(o *ordering) error {
		return o.c.Group(func() error { // which takes no buffers itself
			return errors.Join(spmd.Send(o.c, o.own(o.x), (o.rank+1)%o.size),
				spmd.Recv(o.c, o.own(o.y), (o.rank+o.size-1)%o.size))
		})
	}},
	{"spmd.Buffer.At", blocks, func(o *ordering) error { o.see(o.x.At(3)); return nil }},
	{"spmd.Buffer.At", blocks, func(o *ordering) error { o.see(o.x.Slice(2, 4).At(1)); return nil }},
	{"spmd.Buffer.Set", blocks, func(o *ordering) error { o.x.Set(3, 9); return nil }},
	{"spmd.Buffer.SetAll", blocks, func(o *ordering) error { return o.x.SetAll(9) }},
	{"spmd.Buffer.Host", blocks, func(o *ordering) error { o.see(o.p.Host()); return nil }},
	{"spmd.Buffer.CopyFrom", blocks, func(o *ordering) error { return o.x.CopyFrom(make([]float32, o.x.Len())) }},
	{"spmd.Buffer.CopyTo", blocks, func(o *ordering) error {
		v := make([]float32, o.x.Len())
		defer func() { o.see(v) }()
		return o.x.CopyTo(v)
	}},
	{"spmd.Structs.CopyFrom", blocks, func(o *ordering) error {
		return o.structs(func(b spmd.Structs[[2]float32]) error { return b.CopyFrom(make([][2]float32, b.Len())) })
	}},
	{"spmd.Structs.CopyTo", blocks, func(o *ordering) error {
		return o.structs(func(b spmd.Structs[[2]float32]) error {
			v := make([][2]float32, b.Len())
			defer func() { o.see(v) }()
			return b.CopyTo(v)
		})
	}},
	{"parallel.CheckSame", blocks | launches, func(o *ordering) error { return parallel.CheckSame(o.c, "y", o.y) }},
	{"parallel.CheckSame", blocks | launches, func(o *ordering) error {
		return parallel.CheckSame(o.c.On(o.other), "y", o.y)
	}},
	{"parallel.SyncStart", blocks | launches, func(o *ordering) error {
		return parallel.SyncStart(o.c.On(o.other), o.x, o.y)
	}},
	{"arrayfile.Save", blocks, func(o *ordering) error {
		return o.file(arrayfile.Save(o.c.On(o.other), o.dir+"/new", []int{8 * o.size}, o.own(o.x), 8*o.rank,
			arrayfile.Replace))
	}},
	{"arrayfile.SaveRaw", blocks, func(o *ordering) error {
		return o.file(arrayfile.SaveRaw(o.c, o.dir+"/new", 8*o.size, o.own(o.x), 8*o.rank, arrayfile.Replace))
	}},
	{"arrayfile.Load", blocks, func(o *ordering) error {
		return arrayfile.Load(o.c.On(o.other), o.dir+"/npy", o.own(o.y), 8*o.rank)
	}},
	{"arrayfile.LoadRaw", blocks, func(o *ordering) error {
		return arrayfile.LoadRaw(o.c, o.dir+"/raw", 8*o.size, o.own(o.y), 8*o.rank)
	}},
	{"checkpoint.Replicated checkpoint.Sharded checkpoint.Strided", blocks, func(o *ordering) error {
		return o.checkpoints(func(m *checkpoint.Manager, items []checkpoint.Item) error {
			if err := errors.Join(m.Save(2, nil, items...), m.Wait(), o.zero()); err != nil {
				return err
			}
			_, err := m.Load(nil, items...)
			return err
		})
	}},
	{"checkpoint.Replicated checkpoint.Sharded checkpoint.Strided", blocks, func(o *ordering) error {
		return o.checkpoints(func(m *checkpoint.Manager, items []checkpoint.Item) error {
			_, err := m.Load(nil, items...)
			return err
		})
	}},
	{"vector.SumOver vector.DotOver vector.MinOver vector.MaxOver vector.Norm2Over", enqueues | launches,
		func(o *ordering) error {
			at := func(i int) spmd.Buffer[float32] { return o.y.Slice(i, i+1) }
			return errors.Join(vector.SumOver(o.c, o.s, at(0), o.x), vector.DotOver(o.c, o.s, at(1), o.x, o.x),
				vector.MinOver(o.c, o.s, at(2), o.x), vector.MaxOver(o.c, o.s, at(3), o.x),
				vector.Norm2Over(o.c, o.s, at(4), o.x))
		}},
	{"vector.ArgMinOver vector.ArgMaxOver", enqueues | launches, func(o *ordering) error {
		return errors.Join(
			vector.ArgMinOver(o.c, o.s, o.y.Slice(0, 1), spmd.View[int64](o.y.Slice(2, 4)), o.x, o.rank*o.x.Len()),
			vector.ArgMaxOver(o.c, o.s, o.y.Slice(1, 2), spmd.View[int64](o.y.Slice(4, 6)), o.x, o.rank*o.x.Len()))
	}},
	{"vector.ScanOver vector.ExScanOver", enqueues | launches, func(o *ordering) error {
		return errors.Join(vector.ScanOver(o.c, o.s, o.y, o.x, o.p.Slice(0, 1)),
			vector.ExScanOver(o.c, o.s, o.x, o.x, o.p.Slice(1, 2)))
	}},
	{"parallel.Norm.Clip", enqueues | launches, func(o *ordering) error {
		n, err := parallel.NewNorm(o.c, o.x)
		if err != nil {
			return err
		}
		o.later(n.Close)
		return n.Clip(0.5, o.p.Slice(0, 1), o.s)
	}},
	{"parallel.Reducer.Ready parallel.Reducer.Wait", enqueues, func(o *ordering) error {
		r, err := parallel.NewReducer(o.c, []spmd.Buffer[float32]{o.x, o.y}, parallel.ReducerConfig{})
		if err != nil {
			return err
		}
		o.later(r.Close)
		return errors.Join(r.Ready(0, o.s), r.Ready(1, o.s), r.Wait(o.s), spmd.Copy(o.s, o.p, o.x))
	}},
	{"parallel.Scatterer.Use parallel.Scatterer.Ready parallel.Scatterer.Add parallel.Scatterer.Wait " +
		"parallel.Scatterer.ClipNorm parallel.Scatterer.Abandon", enqueues | launches, func(o *ordering) error {
		r, err := parallel.NewScatterer(o.c, []spmd.Buffer[float32]{o.x}, []spmd.Buffer[float32]{o.own(o.y)}, spmd.Sum)
		if err != nil {
			return err
		}
		o.later(r.Close)
		return errors.Join(r.Use(0, o.s), r.Ready(0, o.s), r.Wait(o.s), r.Use(0, o.s), spmd.Copy(o.s, o.x, o.p),
			r.Add(0, o.s), r.Abandon(o.s), r.ClipNorm(0.5, o.p.Slice(0, 1), o.s))
	}},
	{"parallel.Gatherer.Begin parallel.Gatherer.Need parallel.Gatherer.Done parallel.Gatherer.End", enqueues,
		func(o *ordering) error {
			g, err := parallel.NewGatherer(o.c, []spmd.Buffer[float32]{o.x}, parallel.GathererConfig[float32]{})
			if err != nil {
				return err
			}
			o.later(g.Close)
			pass, err := g.Pass(0)
			return errors.Join(err, g.Begin(pass, o.s), g.Need(0, o.s), spmd.Copy(o.s, o.y, o.x), g.Done(0, o.s),
				g.End(o.s))
		}},
	{"parallel.Pipeline.Run parallel.Pipeline.Forward parallel.Pipeline.ForgetTime parallel.Pipeline.Time", lasts,
		func(o *ordering) error {
			p, err := parallel.NewPipeline[float32](o.c, 8, 1)
			if err != nil {
				return err
			}
			o.later(p.Close)
			through := func(first, last spmd.Buffer[float32]) func(from, to spmd.Buffer[float32]) error {
				return func(from, to spmd.Buffer[float32]) error {
					if from.Len() == 0 {
						from = first
					}
					if to.Len() == 0 {
						to = last
					}
					return spmd.Copy(o.s, to, from)
				}
			}
			there, back := through(o.own(o.x), o.own(o.y)), through(o.own(o.p), o.own(o.x))
			err = errors.Join(p.ForgetTime(o.s), p.Run(o.s, parallel.Stage[float32]{
				Forward:  func(_, _ int, in, out spmd.Buffer[float32]) error { return there(in, out) },
				Backward: func(_, _ int, _, dout, din spmd.Buffer[float32]) error { return back(dout, din) },
			}), p.Forward(o.s, 1, func(_ int, in, out spmd.Buffer[float32]) error { return there(in, out) }))
			if err == nil {
				_, _, err = p.Time(o.s)
			}
			return err
		}},
	{"blas.Sparse.Multiply", lasts | launches, func(o *ordering) error {
		a := blas.CSR[float32]{Start: []int{0}}
		for i := range 8 { // the next rank's elements, doubled
			a.Start, a.Value = append(a.Start, i+1), append(a.Value, 2)
			a.Column = append(a.Column, (8*(o.rank+1)+i)%(8*o.size))
		}
		m, err := blas.NewSparse(o.w, o.c, a, 8)
		if err != nil {
			return err
		}
		o.later(m.Free)
		return m.Multiply(o.s, o.own(o.y), o.own(o.x))
	}},
	{"telemetry.MeasureStream", lasts, func(o *ordering) error {
		_, err := telemetry.MeasureStream(o.c, o.s, telemetry.Graph, 1, 1,
			func() error { return spmd.Copy(o.s, o.y, o.x) })
		return err
	}},
	{"telemetry.MeasureAwait", lasts, func(o *ordering) error {
		_, err := telemetry.MeasureAwait(o.c, o.s, o.q, telemetry.Calls, 0, 1,
			func() error { return spmd.Copy(o.s, o.q, o.x) })
		o.see(o.q.Host())
		return err
	}},
}...)

// structs calls fn with structs that s sets to what x has.
func (o *ordering) structs(fn func(b spmd.Structs[[2]float32]) error) error {
	b, err := spmd.AllocStructs[[2]float32](o.w, o.x.Len()/2)
	if err != nil {
		return err
	}
	o.later(b.Bytes().Free)
	if err := errors.Join(spmd.Copy(o.s, b.Bytes(), spmd.View[uint8](o.x)), fn(b)); err != nil {
		return err
	}
	return spmd.Copy(o.s, spmd.View[uint8](o.y), b.Bytes())
}

// file shows what was saved.
func (o *ordering) file(err error) error {
	if err != nil {
		return err
	}
	text, err := os.ReadFile(o.dir + "/new")
	o.see(text)
	return errors.Join(err, spmd.Barrier(o.c)) // before it is replaced
}

// checkpoints calls fn with the checkpoints of a folder, and all state.
func (o *ordering) checkpoints(fn func(m *checkpoint.Manager, items []checkpoint.Item) error) error {
	m, err := checkpoint.Open(o.w, o.dir, checkpoint.Config{})
	if err != nil {
		return err
	}
	n := 8 * o.size
	err = fn(m, []checkpoint.Item{checkpoint.Replicated("p", o.p), checkpoint.Sharded("x", o.own(o.x), 8*o.rank, n),
		checkpoint.Strided("y", o.own(o.y), 0, checkpoint.Cut{First: o.rank, Run: 1, Stride: o.size}, n)})
	return errors.Join(err, m.Close())
}

// zero sets all state to 0.
func (o *ordering) zero() error { return errors.Join(o.x.SetAll(0), o.y.SetAll(0), o.p.SetAll(0)) }

func callsInOrder(t *testing.T, w *spmd.World) {
	n := 8 * w.Size()
	pinned := func() spmd.Buffer[float32] {
		b, err := spmd.AllocPinned[float32](w, n)
		must(t, err)
		return b
	}
	o := &ordering{w: w, s: stream(t, w, "s"), other: stream(t, w, "other"), rank: w.Rank(), size: w.Size(),
		x: alloc[float32](t, w, n), y: alloc[float32](t, w, n), p: pinned(), q: pinned(), dir: spmdtest.TempDir(t, w)}
	old, differs, alike := alloc[float32](t, w, 3*n), alloc[float32](t, w, n), alloc[float32](t, w, n)
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i + 1)
	}
	must(t, alike.CopyFrom(values))
	for i := range values {
		values[i] += float32(100 * (w.Rank() + 1))
	}
	must(t, differs.CopyFrom(values))
	o.c = w.Comm()
	must(t, errors.Join(arrayfile.Save(o.c, o.dir+"/npy", []int{n}, o.own(differs), 8*o.rank, arrayfile.Refuse),
		arrayfile.SaveRaw(o.c, o.dir+"/raw", n, o.own(differs), 8*o.rank, arrayfile.Refuse), o.zero(),
		o.checkpoints(func(m *checkpoint.Manager, items []checkpoint.Item) error { return m.Save(1, nil, items...) })))
	on := o.c.On(o.s)
	copies := func() error {
		return errors.Join(spmd.Copy(o.s, old.Slice(0, n), o.x), spmd.Copy(o.s, old.Slice(n, 2*n), o.y),
			spmd.Copy(o.s, old.Slice(2*n, 3*n), o.p), spmd.Copy(o.s, o.x, differs), spmd.Copy(o.s, o.y, alike),
			spmd.Copy(o.s, o.p, differs))
	}
	sums := func() error {
		return errors.Join(spmd.AllReduce(on, o.x, o.x, spmd.Sum), spmd.AllReduce(on, o.y, o.y, spmd.Sum))
	}
	more := []func() error{ // what s has to do with the buffers
		func() error { return errors.Join(copies(), sums()) },
		func() error { return errors.Join(copies(), on.Group(sums)) },
	}
	if on.Capturable() == nil {
		g, err := o.s.Capture(copies)
		must(t, err)
		defer g.Close()
		more = append(more, func() error { return g.Launch(o.s) })
	}
	blocking := w.Collectives() == "mpi-aware" // collectives on a stream wait for it
	if blocking {
		more = []func() error{copies}
	}
	for i, row := range orderedCalls {
		if row.how&launches != 0 && os.Getenv(doublesEnv) != "" {
			continue
		}
		how := row.how &^ launches
		// try makes the call while s is held up, or, for the right result, when it is through.
		try := func(c spmd.Comm, todo func() error, hold bool) string {
			o.c, o.seen = c, nil
			must(t, errors.Join(o.x.SetAll(float32(-1-o.rank)), o.y.SetAll(float32(-7-o.rank)),
				o.p.SetAll(float32(-20-o.rank)), spmd.Barrier(w.Comm())))
			release := func() {}
			if hold {
				release = held(t, o.s)
			}
			must(t, todo())
			if !hold {
				must(t, o.s.Synchronize())
			}
			done := make(chan error, 1)
			if how == enqueues && !blocking {
				done <- row.run(o) // it waits for ever if it blocks
			} else {
				go func() { done <- row.run(o) }()
				for range 200 { // for a call that does not wait
					runtime.Gosched()
				}
			}
			release()
			err := <-done
			must(t, o.s.Synchronize())
			for _, fn := range slices.Backward(o.after) {
				err = errors.Join(err, fn())
			}
			o.after = nil
			all := make([]float32, 3*n)
			must(t, old.CopyTo(all))
			o.see(all)
			for _, b := range []spmd.Buffer[float32]{o.x, o.y, o.p} {
				must(t, b.CopyTo(values))
				o.see(values)
			}
			return fmt.Sprint(err, o.seen)
		}
		comms := []spmd.Comm{w.Comm()}
		if how != blocks {
			comms = append(comms, on, w.Comm().On(o.other))
		}
		for k, todo := range []func() error{copies, more[i%len(more)]} {
			want := try(comms[len(comms)/2], todo, false)
			if !strings.HasPrefix(want, "<nil>") {
				t.Fatalf("rank %d: %s: %s", o.rank, row.calls, want)
			}
			for j, c := range comms {
				for _, hold := range []bool{true, o.rank == o.size-1} {
					if got := try(c, todo, hold); got != want {
						t.Fatalf("rank %d: %s of Comm %d, while work %d of its stream is held up: %v:\n%s\nwant\n%s",
							o.rank, row.calls, j, k*(1+i%len(more)), hold, got, want)
					}
				}
			}
		}
	}
}

// valueHolds reports whether a value of a type is, or holds, one of a type of package spmd, such as
// Buffer. A function that the value holds does not count.
func valueHolds(t types.Type, name string) bool { return holdsNew(t, name, map[types.Type]bool{}) }

func holdsNew(t types.Type, name string, seen map[types.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t := t.(type) {
	case *types.Named:
		if o := t.Obj(); o.Pkg() != nil && o.Pkg().Path() == "lockstep/spmd" && o.Name() == name {
			return true
		}
		return holdsNew(t.Underlying(), name, seen)
	case *types.Alias:
		return holdsNew(types.Unalias(t), name, seen)
	case interface{ Elem() types.Type }: // pointers, slices, arrays, maps
		return holdsNew(t.Elem(), name, seen)
	case *types.Struct:
		for f := range t.Fields() {
			if holdsNew(f.Type(), name, seen) {
				return true
			}
		}
	}
	return false
}

// parameterHolds reports whether a parameter of a function holds a value of a type of package spmd.
func parameterHolds(s *types.Signature, name string) bool {
	for p := range s.Params().Variables() {
		if valueHolds(p.Type(), name) {
			return true
		}
	}
	return false
}
