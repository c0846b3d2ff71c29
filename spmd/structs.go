package spmd

import (
	"fmt"
	"reflect"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/exec"
)

// Structs is n values of a struct type without pointers, in device memory. It is a handle as a
// Buffer is. Kernels in Go take it for a slice of T. Collectives and messages that move data take
// Bytes, with lengths and counts in bytes; nothing reduces structs. T has the same layout on all
// ranks, which run one program, and on a GPU. The zero value has no elements.
type Structs[T any] struct{ bytes Buffer[uint8] }

// AllocStructs returns n structs in device memory, as Alloc returns elements. It refuses a T that
// holds pointers, such as a string or a slice: they mean nothing on another rank, nor on a GPU.
func AllocStructs[T any](w *World, n int) (Structs[T], error) {
	t := reflect.TypeFor[T]()
	size := int(t.Size())
	bytes, ok := elem.Product(n, size)
	if exec.HasPointers(t) || size == 0 || !ok {
		return Structs[T]{}, fmt.Errorf("%s: AllocStructs of %d %v: it holds pointers or nothing, "+
			"or they are more than any memory has", ccall.At(), n, t)
	}
	b, err := Alloc[uint8](w, bytes)
	return Structs[T]{b}, err
}

// Len returns the number of structs.
func (x Structs[T]) Len() int { return x.bytes.Len() / int(unsafe.Sizeof(*new(T))) }

// Bytes returns the memory as bytes, to move it, to free it, or to pass it to a kernel (Arg). Each
// struct has unsafe.Sizeof bytes.
func (x Structs[T]) Bytes() Buffer[uint8] { return x.bytes }

// CopyFrom copies src, of equal length, into x, as Buffer.CopyFrom does.
func (x Structs[T]) CopyFrom(src []T) error { return x.bytes.CopyFrom(structBytes(src)) }

// CopyTo copies x into dst, of equal length, as Buffer.CopyTo does.
func (x Structs[T]) CopyTo(dst []T) error { return x.bytes.CopyTo(structBytes(dst)) }

func structBytes[T any](v []T) []uint8 {
	return unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(T))))
}

// ArgStructs returns argument i, the Bytes of Structs, as a slice.
func ArgStructs[T any](a Args, i int) []T {
	b := ArgSlice[uint8](a, i)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}
