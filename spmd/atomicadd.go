package spmd

import (
	"math"
	"sync/atomic"
	"unsafe"
)

// AtomicAdd adds v to *p, to which other indices of the same kernel may be adding: for kernels in Go. Sums of integers are
// the same in any order, those of floats are not.
func AtomicAdd[T int32 | uint32 | int64 | uint64 | float32 | float64](p *T, v T) {
	switch x := any(v).(type) {
	case int32:
		atomic.AddInt32((*int32)(unsafe.Pointer(p)), x)
	case uint32:
		atomic.AddUint32((*uint32)(unsafe.Pointer(p)), x)
	case int64:
		atomic.AddInt64((*int64)(unsafe.Pointer(p)), x)
	case uint64:
		atomic.AddUint64((*uint64)(unsafe.Pointer(p)), x)
	case float32:
		for at := (*uint32)(unsafe.Pointer(p)); ; {
			old := atomic.LoadUint32(at)
			if atomic.CompareAndSwapUint32(at, old, math.Float32bits(math.Float32frombits(old)+x)) {
				return
			}
		}
	case float64:
		for at := (*uint64)(unsafe.Pointer(p)); ; {
			old := atomic.LoadUint64(at)
			if atomic.CompareAndSwapUint64(at, old, math.Float64bits(math.Float64frombits(old)+x)) {
				return
			}
		}
	}
}
