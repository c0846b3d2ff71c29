package layout

import (
	"errors"

	"lockstep/spmd"
)

// Space allocates device memory, or only counts it without a world.
type Space struct {
	W     *spmd.World
	Bytes int // taken or counted
	Frees []func() error
	Err   error // the first failure, after which nothing is taken
}

// Take makes each of bufs n elements long, all 0. The gaps between tensors are never written, and
// must not hold a NaN that would reach a norm.
//
// There is another reason for zeros: initcheck of compute-sanitizer does not see what cuBLAS writes
// by the copy engine.
func Take[T spmd.Stored](sp *Space, n int, bufs ...*spmd.Buffer[T]) {
	for _, b := range bufs {
		if sp.Err != nil {
			return
		}
		sp.Bytes += spmd.AllocSize[T](n)
		if sp.W == nil {
			continue
		}
		if *b, sp.Err = spmd.Alloc[T](sp.W, n); sp.Err == nil {
			sp.Frees = append(sp.Frees, b.Free)
			sp.Err = b.SetAll(*new(T))
		}
	}
}

// Free frees the memory of Take.
func (sp *Space) Free() error {
	var errs []error
	for _, f := range sp.Frees {
		errs = append(errs, f())
	}
	sp.Frees = nil
	return errors.Join(errs...)
}
