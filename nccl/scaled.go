package nccl

import (
	"math"
	"unsafe"

	"lockstep/internal/elem"
)

// PreMulSum is a reduction for collectives of one communicator and one type: each rank multiplies its input with a
// factor of its own, then all are summed.
type PreMulSum struct {
	c    *Comm
	t    elem.Type
	op   int32
	over bool
}

// NewPreMulSum returns the sum over ranks of factor times src, in Call.Scaled or its methods. factor is converted to t, and
// may differ between ranks. Close it before c.
// Source: nccl.h, ncclRedOpCreatePreMulSum with ncclScalarHostImmediate.
func (c *Comm) NewPreMulSum(t elem.Type, factor float64) (*PreMulSum, error) {
	return c.newScaled(t, nil, scalar(t, factor))
}

// NewPreMulSumAt is NewPreMulSum with the factor in device memory, one element of t, which is read when the collective
// runs on the GPU.
// Source: nccl.h, ncclRedOpCreatePreMulSum with ncclScalarDevice.
func (c *Comm) NewPreMulSumAt(t elem.Type, factor unsafe.Pointer) (*PreMulSum, error) {
	if factor == nil {
		return nil, c.refused("ncclRedOpCreatePreMulSum", "no address of a factor")
	}
	return c.newScaled(t, factor, 0)
}

func (c *Comm) newScaled(t elem.Type, where unsafe.Pointer, bits uint64) (*PreMulSum, error) {
	op, status := sysMakeOp(&c.link, t, where, bits)
	if status != statusOK {
		return nil, c.failed("ncclRedOpCreatePreMulSum", status, "")
	}
	return &PreMulSum{c: c, t: t, op: op}, nil
}

// scalar returns the bits of one element of t in its low bytes; the machines that CUDA runs on are little-endian.
func scalar(t elem.Type, v float64) uint64 {
	switch t {
	case elem.Float16:
		return uint64(elem.ToF16(float32(v)))
	case elem.BFloat16:
		return uint64(elem.ToBF16(float32(v)))
	case elem.Float32:
		return uint64(math.Float32bits(float32(v)))
	case elem.Float64:
		return math.Float64bits(v)
	case elem.Uint64:
		return uint64(v)
	default:
		return uint64(int64(v))
	}
}

// Close frees the operation; collectives that were issued with it are not affected. A second Close, and one after the end
// of the communicator, does nothing.
// Source: nccl.h, ncclRedOpDestroy.
func (o *PreMulSum) Close() error {
	if o.over {
		return nil
	}
	o.over = true
	if status := sysFreeOp(&o.c.link, o.op); status != statusOK && status != statusClosed {
		return o.c.failed("ncclRedOpDestroy", status, "")
	}
	return nil
}
