package elem

// Kernels in Go call these functions of package spmd on elements. So they run on the host.

import (
	"math"
	"sync/atomic"
	"unsafe"
)

// AtomicAdd adds v to *p.
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

// AtomicMax raises *p to at least v. A NaN changes nothing.
func AtomicMax[T int32 | uint32 | float32](p *T, v T) {
	for at := (*uint32)(unsafe.Pointer(p)); ; {
		old := atomic.LoadUint32(at)
		if !(v > *(*T)(unsafe.Pointer(&old))) || atomic.CompareAndSwapUint32(at, old, *(*uint32)(unsafe.Pointer(&v))) {
			return
		}
	}
}

// Real is float32 and the floats for storage that hold parts of one.
type Real interface {
	float32 | BF16 | F16 | F8E4M3 | F8E5M2
}

// Widen returns the value of x.
func Widen[T Real](x T) float32 {
	switch x := any(x).(type) {
	case BF16:
		return x.Float32()
	case F16:
		return x.Float32()
	case F8E4M3:
		return x.Float32()
	case F8E5M2:
		return x.Float32()
	}
	return any(x).(float32)
}

// Narrow returns v, rounded to the type T.
func Narrow[T Real](v float32) (x T) {
	switch x := any(&x).(type) {
	case *float32:
		*x = v
	case *BF16:
		*x = ToBF16(v)
	case *F16:
		*x = ToF16(v)
	case *F8E4M3:
		*x = ToF8E4M3(v)
	case *F8E5M2:
		*x = ToF8E5M2(v)
	}
	return x
}
