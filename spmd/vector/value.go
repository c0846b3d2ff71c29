package vector

import (
	"sync"

	"lockstep/spmd"
	"lockstep/spmd/library"
)

// results are buffers of one element that Value has used before.
type results struct {
	mu   sync.Mutex
	free [6][]any // of spmd.Buffer[T], in the order of Number
}

var kept = library.PerWorld[results]{Open: func(*spmd.World) *results { return &results{} }}

// Value returns the number that enqueue computes. enqueue puts the work on s, into a buffer of one
// element. Value blocks until s is done:
//
//	sum, err := vector.Value(s, func(dst spmd.Buffer[float64]) error {
//		return vector.SumOver(c, s, dst, x)
//	})
func Value[T Number](s *spmd.Stream, enqueue func(dst spmd.Buffer[T]) error) (v T, err error) {
	r, t := kept.Of(s.World()), typeOf[T]()
	var dst *spmd.Buffer[T]
	r.mu.Lock()
	if last := len(r.free[t]) - 1; last >= 0 {
		dst = r.free[t][last].(*spmd.Buffer[T])
		r.free[t] = r.free[t][:last]
	}
	r.mu.Unlock()
	if dst == nil {
		b, err := spmd.Alloc[T](s.World(), 1)
		if err != nil {
			return v, err
		}
		dst = &b
	}
	if err = enqueue(*dst); err == nil {
		err = s.Synchronize()
	}
	if err != nil {
		return v, err // what was enqueued may still write to dst
	}
	v = dst.At(0)
	r.mu.Lock()
	r.free[t] = append(r.free[t], dst)
	r.mu.Unlock()
	return v, nil
}
