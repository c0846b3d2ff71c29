// Package elem names the element types and reduction operations that every binding of
// Lockstep shares.
//
// An Elem has one layout in Go, CUDA C++, NCCL and MPI. The set is closed (no ~T terms), so that
// the datatype table of each binding is complete and a type without a datatype does not compile.
package elem

import (
	"strconv"
	"unsafe"
)

// Elem is the set of types that messages and collectives carry.
type Elem interface {
	int8 | uint8 | int32 | uint32 | int64 | uint64 | F16 | BF16 | float32 | float64 | complex64 | complex128
}

// Stored is the set of types that a buffer may hold. MPI and NCCL know only Elem.
type Stored interface{ Elem | F8E4M3 | F8E5M2 }

// Type is an element type at run time: an index into the datatype tables of the bindings.
type Type uint8

// These are the element types of Elem, in the order of every datatype table, then those for
// storage only.
const (
	Int8 Type = iota
	Uint8
	Int32
	Uint32
	Int64
	Uint64
	Float16
	BFloat16
	Float32
	Float64
	Complex64
	Complex128
	Float8E4M3
	Float8E5M2

	Types       = 12 // number of types of Elem
	StoredTypes = 14 // number of types of Stored
)

var typeInfo = [StoredTypes]struct {
	name string
	size int
}{
	Int8:       {"int8", 1},
	Uint8:      {"uint8", 1},
	Int32:      {"int32", 4},
	Uint32:     {"uint32", 4},
	Int64:      {"int64", 8},
	Uint64:     {"uint64", 8},
	Float16:    {"float16", 2},
	BFloat16:   {"bfloat16", 2},
	Float32:    {"float32", 4},
	Float64:    {"float64", 8},
	Complex64:  {"complex64", 8},
	Complex128: {"complex128", 16},
	Float8E4M3: {"float8_e4m3", 1},
	Float8E5M2: {"float8_e5m2", 1},
}

// Size returns the bytes of one element. It panics if t is none of the constants.
func (t Type) Size() int { return typeInfo[t].size }

// Half reports whether t is one of the two 16-bit floats, which are stored in 16 bits and
// reduced in float32.
func (t Type) Half() bool { return t == Float16 || t == BFloat16 }

// Complex reports whether t is one of the two complex types.
func (t Type) Complex() bool { return t == Complex64 || t == Complex128 }

// Real returns the type of the real and imaginary part of a complex t, and t itself otherwise.
func (t Type) Real() Type {
	if t.Complex() {
		return t - Complex64 + Float32
	}
	return t
}

// Bits are the bits of an element of any type, the lowest first.
type Bits [2]uint64

// BitsOf returns the bits of v.
func BitsOf[T Stored](v T) (b Bits) {
	*(*T)(unsafe.Pointer(&b)) = v
	return b
}

// Eight reports whether t is one of the two 8-bit floats, which are only operands of products.
func (t Type) Eight() bool { return t == Float8E4M3 || t == Float8E5M2 }

// String returns the name as Go writes it ("int8", "float32"), with "float16", "bfloat16",
// "float8_e4m3" and "float8_e5m2" for those that Go lacks.
func (t Type) String() string {
	if int(t) < len(typeInfo) {
		return typeInfo[t].name
	}
	return "elem.Type(" + strconv.Itoa(int(t)) + ")"
}

// At returns the address of n elements of memory at p, from element i on. It is nil for no
// elements: their address could lie behind the end of the memory, where the collector allows no
// pointer. It is nil for nil.
func At(p unsafe.Pointer, i, n int, t Type) unsafe.Pointer {
	if p == nil || n == 0 {
		return nil
	}
	return unsafe.Add(p, i*t.Size())
}

// IsAt reports whether part is where element i of memory at p lies, or would lie.
func IsAt(part, p unsafe.Pointer, i int, t Type) bool {
	return uintptr(part)-uintptr(p) == uintptr(i*t.Size())
}

// Of returns the Type that has the layout of T. It does not allocate. For most types it is a
// constant to the compiler, which knows T's size and arithmetic. A switch over types would jump at
// run time.
func Of[T Number]() Type {
	var z T
	t := Type(unsafe.Sizeof(z) / 2) // Int8, Int32 or Int64
	switch {
	case (z+1)/2 != 0:
		digits := (z + 125) * 125 * 125 * 125 // more than 24 bits hold
		if t > Int64 || t == Int64 && digits+1-digits != 1 {
			return Complex64 + t/8
		}
		t = Float32 + t/4
	case (z-1)/2 == 0: // towards zero
	case unsafe.Sizeof(z) < 4:
		return alike(z)
	default:
		t++ // unsigned
	}
	return t
}

// alike is Of for types that share size and arithmetic.
func alike[T Number](z T) Type {
	switch any(z).(type) {
	case BF16:
		return BFloat16
	case F16:
		return Float16
	case F8E4M3:
		return Float8E4M3
	case F8E5M2:
		return Float8E5M2
	}
	return Uint8
}

// Number is the set of types that are reduced in the memory of the host. Ordered is the set of its
// types with an order.
type (
	Number interface {
		Ordered | ~complex64 | ~complex128
	}
	Ordered interface {
		~int8 | ~uint8 | ~int32 | ~uint32 | ~int64 | ~uint64 | F16 | BF16 | ~float32 | ~float64 | ~int | ~uint
	}
)

// Op is a reduction over the ranks of a communicator, element by element.
//
// Integers wrap as in Go. Float16 and BFloat16 are reduced in float32 and rounded once, at the end.
// In Min and Max a NaN wins, and -0 is less than 0. Complex numbers have neither.
type Op uint8

// These are the reductions. Avg is the sum divided by the number of ranks; for integers the
// division truncates towards zero. And, Or and Xor work on the bits of integers in the
// memory of the host.
const (
	Sum Op = iota
	Prod
	Min
	Max
	Avg
	And
	Or
	Xor

	Ops     = 5 // number of operations of any type and memory
	HostOps = 8 // and of those of the host alone
)

var opNames = [HostOps]string{Sum: "sum", Prod: "prod", Min: "min", Max: "max", Avg: "avg", And: "and", Or: "or",
	Xor: "xor"}

// On reports whether there is such an operation on elements of type t.
func (o Op) On(t Type) bool { return o < Ops && !(t.Complex() && (o == Min || o == Max)) }

// Has reports whether there is o for elements of type t in the memory of the host.
func (o Op) Has(t Type) bool { return t < Types && (o.On(t) || o >= Ops && o < HostOps && t < Float16) }

// String returns "sum", "prod", "min", "max", "avg", "and", "or" or "xor".
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "elem.Op(" + strconv.Itoa(int(o)) + ")"
}
