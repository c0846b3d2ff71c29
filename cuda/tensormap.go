package cuda

import "unsafe"

// TensorMap tells the device's copy engine how to copy boxes of a tensor. A kernel takes it as a
// parameter of type CUtensorMap, const __grid_constant__, of TensorMapWords words.
type TensorMap [TensorMapWords]uint64

// TensorMapWords is the size of a TensorMap.
const TensorMapWords = 16

// TensorType is the type of a tensor's elements.
type TensorType int

// Source: cuda.h, CUtensorMapDataType.
const (
	TensorUint8 TensorType = iota
	TensorUint16
	TensorUint32
	TensorInt32
	TensorUint64
	TensorInt64
	TensorFloat16
	TensorFloat32
	TensorFloat64
	TensorBFloat16
)

// Tensor is a tensor in device memory, of Rank dimensions; the first is contiguous.
type Tensor struct {
	At      unsafe.Pointer // a multiple of 16
	Type    TensorType
	Rank    int       // 1 to 5
	Sizes   [5]uint64 // in elements
	Strides [4]uint64 // bytes from one to the next, of the dimensions after the first: multiples of 16
	Box     [5]uint32 // elements of a box, up to 256 in each dimension: multiples of 16 bytes in the first
	Swizzle int       // bytes, 32, 64 or 128, in which chunks of 16 bytes are exchanged; 0 for none
}

// TensorMap returns the map of t. The part of a box outside of t is 0 in shared memory. The memory
// need not be there yet. It is ErrInvalidValue if the driver cannot map t, and ErrNotSupported with
// a driver from before CUDA 12. Source: cuda.h, cuTensorMapEncodeTiled.
func (d *Device) TensorMap(t *Tensor) (m TensorMap, err error) {
	const op = "cuTensorMapEncodeTiled"
	swizzle := 0
	for b := t.Swizzle; b >= 32; b /= 2 {
		swizzle++
	}
	switch {
	case !sysHasTensorMap():
		return m, failed(op, int(ErrNotSupported), "the driver is from before CUDA 12")
	case t.Rank < 1 || t.Rank > len(t.Sizes), swizzle > 3, swizzle == 0 && t.Swizzle != 0,
		swizzle > 0 && t.Swizzle != 16<<swizzle:
		return m, refused(op, "%d dimensions, swizzled in %d bytes", t.Rank, t.Swizzle)
	}
	if status := sysTensorMap(d, t, swizzle, &m); status != 0 {
		return m, failed(op, status, "")
	}
	return m, nil
}
