package route

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
)

// taken has the times of a call by each way, in a graph and without, in us.
type taken [ways][2]float64

// best returns the way whose time comes nearest to the least, in a graph or without, whichever is
// farther.
func (t *taken) best() way {
	least := [2]float64{math.MaxFloat64, math.MaxFloat64}
	for _, us := range t {
		least[0], least[1] = min(least[0], us[0]), min(least[1], us[1])
	}
	best, off := plainWay, math.MaxFloat64
	for by, us := range t {
		if o := max(us[0]/least[0], us[1]/least[1]); o < off {
			best, off = way(by), o
		}
	}
	return best
}

// measurePaths times each way with each call and size. The slowest rank counts.
func (r *Router) measurePaths() error {
	dev, most := r.env.GPU.Dev, mostSize
	free, _, err := dev.MemInfo()
	if err != nil {
		return err
	}
	for most > hostSize && 2<<most > free/8 {
		most--
	}
	sizes, err := control.Range(r.host, int64(most))
	if err != nil {
		return err
	}
	most = int(sizes.Lo)
	n := 1 << most
	mem, err := r.registrar.AllocMemory(2 * n)
	switch f, e := control.First(r.host, err); {
	case e != nil:
		return e
	case f != nil && f.Rank == r.rank:
		return err
	case f != nil:
		return fmt.Errorf("rank %d of %d: %s", f.Rank, r.size, f.Text)
	}
	var us [len(pathRows)][mostSize + 1]taken
	err = r.withKnown(mem, 2*n, func() error {
		t := timer{d: dev}
		defer t.close()
		if err := t.open(); err != nil {
			return err
		}
		for row, this := range pathRows {
			for size := leastSize; size <= most; size++ {
				c := coll.Call{Kind: this.call, Type: this.typ, Op: elem.Sum, Dst: mem, Src: unsafe.Add(mem, n),
					N: r.elements(this.call, this.typ, size)}
				for by := range ways {
					at := &us[row][size][by]
					*at = [2]float64{math.MaxFloat64, math.MaxFloat64}
					if !r.has(by, row, size) {
						continue
					}
					call := func() error { return r.of(by).Do(transport.Bare{S: t.h}, c) }
					calls := max(2, 16>>max(0, size-20)) // of few small ones the launch would be measured
					var err error
					if at[0], err = t.time(call, inGraph, calls); err != nil {
						return err
					}
					if at[1] = at[0]; size > hostSize {
						continue // the host's time plays no part
					}
					if at[1], err = t.time(call, eagerly, calls); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	err = errors.Join(err, r.registrar.FreeMemory(mem))
	if err != nil {
		return err
	}
	if err := r.host.AllReduce(unsafe.Pointer(&us), unsafe.Pointer(&us), int(unsafe.Sizeof(us)/8), elem.Float64,
		elem.Max); err != nil {
		return err
	}
	for row := range us {
		for size := leastSize; size <= mostSize; size++ {
			r.sym.paths[row][size] = us[row][min(size, most)].best()
		}
		r.sym.paths.smooth(row)
	}
	return nil
}

// smooth gives a size the way of its two neighbours if both go another one: that is an accident of
// measuring.
func (p *Paths) smooth(row int) {
	for size := leastSize + 1; size < mostSize; size++ {
		if by := p[row][size-1]; by == p[row][size+1] {
			p[row][size] = by
		}
	}
}

// elements returns the n of a call whose larger buffer has 1<<size bytes, or a little less.
func (r *Router) elements(kind coll.Kind, t elem.Type, size int) int {
	n := 1 << size / t.Size()
	if kind == coll.AllReduce {
		return n
	}
	return max(1, n/r.size)
}

// has reports whether calls of a row can go a way.
func (r *Router) has(by way, row, size int) bool {
	this := &pathRows[row]
	switch by {
	case symmetricWay:
		return r.sym.windows != nil && this.typ == elem.Float32
	case peerWay:
		return r.peers != nil && r.elements(this.call, this.typ, size)*this.typ.Size() <= r.peers.Most()
	}
	return by == plainWay
}

// withKnown runs fn while the communicators know the memory.
func (r *Router) withKnown(mem unsafe.Pointer, n int, fn func() error) error {
	plain, err := r.registrar.Register(mem, n)
	if err != nil {
		return err
	}
	if w := r.sym.windows; w != nil {
		var window transport.Registration
		if window, err = w.Register(mem, n); err == nil {
			err = errors.Join(fn(), window.Close())
		}
	} else {
		err = fn()
	}
	return errors.Join(err, plain.Close())
}

// timer times calls on a stream of its own.
type timer struct {
	d *cuda.Device
	h *cuda.Stream
	e *cuda.Event
}

func (t *timer) open() (err error) {
	if t.h, err = t.d.NewStream(0); err == nil {
		t.e, err = t.d.NewEvent()
	}
	return err
}

func (t *timer) close() {
	if t.e != nil {
		_ = t.e.Close() // measuring has ended, well or not
	}
	if t.h != nil {
		_ = t.h.Close()
	}
}

// How time makes calls.
const inGraph, eagerly = false, true

// time returns the least time of a few rounds of so many calls, in us, in a graph or eagerly.
func (t *timer) time(call func() error, eager bool, calls int) (us float64, err error) {
	const rounds = 4 // beside the first
	all := func() error {
		for range calls {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	}
	if !eager {
		if err := t.h.BeginCapture(cuda.Relaxed); err != nil {
			return 0, err
		}
		if err := all(); err != nil {
			return 0, errors.Join(err, t.h.Abandon())
		}
		graph, err := t.h.EndCapture()
		if err != nil {
			return 0, err
		}
		x, err := graph.Instantiate()
		if err = errors.Join(err, graph.Close()); err != nil {
			return 0, err
		}
		defer x.Close()
		all = func() error { return x.Launch(t.h) }
	}
	for i := range 1 + rounds {
		start := time.Now()
		if err := errors.Join(all(), t.e.Record(t.h)); err != nil {
			return 0, err
		}
		for done := false; !done; {
			if done, err = t.e.Spin(100 * time.Microsecond); err != nil {
				return 0, err
			}
			if time.Since(start) > exec.Patience {
				return 0, exec.ErrImpatient
			}
		}
		if took := float64(time.Since(start).Nanoseconds()) / 1e3; i == 1 || i > 1 && took < us {
			us = took
		}
	}
	return us, nil
}
