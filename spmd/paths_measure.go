package spmd

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/nccl"
)

// measurePaths times each way with each call and size. A size goes the way whose slowest
// rank is the fastest.
func (st *commState) measurePaths() error {
	g, most := st.w.gpu, mostSize
	free, _, err := g.dev.MemInfo()
	if err != nil {
		return err
	}
	for most > peerSize && 2<<most > free/8 {
		most--
	}
	low := int64(most)
	if err := st.mpi.AllReduce(unsafe.Pointer(&low), unsafe.Pointer(&low), 1, elem.Int64, Min); err != nil {
		return err
	}
	most = int(low)
	n := 1 << most
	mem, err := nccl.MemAlloc(g.dev, 2*n)
	switch why, rank, e := agreeOn(st.mpi, err); {
	case e != nil:
		return e
	case rank == st.rank:
		return err
	case rank >= 0:
		return fmt.Errorf("rank %d of %d: %s", rank, st.size, why.text)
	}
	var us [len(pathRows)][mostSize + 1][ways]float64
	err = st.withKnown(mem, 2*n, func() error {
		t := timer{g: g}
		defer t.close()
		if err := t.open(); err != nil {
			return err
		}
		for row, r := range pathRows {
			for size := leastSize; size <= most; size++ {
				c := nccl.Call{Kind: r.call, Type: r.typ, Op: Sum, Dst: mem, Src: unsafe.Add(mem, n), N: 1 << size / r.typ.Size()}
				if c.Kind != nccl.AllReduce {
					c.N = max(1, c.N/st.size)
				}
				for by := range ways {
					at := &us[row][size][by]
					*at = math.MaxFloat64
					if r.eager && size > peerSize {
						*at = us[row-1][size][by] // the host's time plays no part
					} else if call := st.by(by, t.h, c, size, r.typ); call != nil {
						var err error
						if *at, err = t.time(call, r.eager, max(2, 16>>max(0, size-20))); err != nil { // of few small ones the launch would be measured
							return err
						}
					}
				}
			}
		}
		return nil
	})
	err = errors.Join(err, nccl.MemFree(g.dev, mem))
	if err != nil {
		return err
	}
	if err := st.mpi.AllReduce(unsafe.Pointer(&us), unsafe.Pointer(&us), int(unsafe.Sizeof(us)/8), elem.Float64, Max); err != nil {
		return err
	}
	for row := range us {
		for size := leastSize; size <= mostSize; size++ {
			best := plainWay
			for by, t := range us[row][min(size, most)] {
				if t < us[row][min(size, most)][best] {
					best = way(by)
				}
			}
			st.sym.paths[row][size] = best
		}
	}
	return nil
}

// has says whether calls can go a way: of the peers that is small all-reduces only.
func (t *symComm) has(by way, call nccl.Kind, size int) bool {
	switch by {
	case symmetricWay:
		return t.comm != nil
	case peerWay:
		return t.peers != nil && call == nccl.AllReduce && size <= peerSize
	}
	return by == plainWay
}

// by returns what makes a call in a way; nil where that is not to be had.
func (st *commState) by(by way, h *cuda.Stream, c nccl.Call, size int, t elem.Type) func() error {
	nc := st.nccl
	switch {
	case !st.sym.has(by, c.Kind, size), by == symmetricWay && t != elem.Float32:
		return nil
	case by == peerWay:
		return func() error { return st.sym.peers.AllReduce(h, c.Dst, c.Src, c.N, c.Type, c.Op) }
	case by == symmetricWay:
		nc = st.sym.comm
	}
	calls := []nccl.Call{c}
	return func() error { return nc.Group(h, calls) }
}

// withKnown runs fn while the communicators know the memory.
func (st *commState) withKnown(mem unsafe.Pointer, n int, fn func() error) error {
	reg, err := st.nccl.Register(mem, n)
	if err != nil {
		return err
	}
	if c := st.sym.comm; c != nil {
		var window *nccl.Window
		if window, err = c.RegisterWindow(mem, n); err == nil {
			err = errors.Join(fn(), window.Close())
		}
	} else {
		err = fn()
	}
	return errors.Join(err, reg.Close())
}

// timer times calls on a stream of its own.
type timer struct {
	g *gpu
	h *cuda.Stream
	e *cuda.Event
}

func (t *timer) open() (err error) {
	if t.h, err = t.g.dev.NewStream(0); err == nil {
		t.e, err = t.g.dev.NewEvent(false)
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

// time returns the least time of a few rounds of so many calls, eager or in a graph, in us.
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
			if done, err = t.e.Spin(spinSlice); err != nil {
				return 0, err
			}
			if time.Since(start) > patience {
				return 0, errImpatient
			}
		}
		if took := float64(time.Since(start).Nanoseconds()) / 1e3; i == 1 || i > 1 && took < us {
			us = took
		}
	}
	return us, nil
}
