package exec

import (
	"fmt"
	"reflect"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Arg is one argument of a kernel or a library: a buffer, a number of stated width, a struct, or a
// buffer that is a tensor. Programs make it by the functions of package spmd.
type Arg struct {
	Block *Block         // that a buffer lies in
	Ptr   unsafe.Pointer // of a buffer; of a copy of a struct
	N     int            // elements of a buffer, bytes of a struct
	Bits  elem.Bits      // value of a number
	Type  elem.Type
	Map   *TensorMap // of a tensor
	Kind  ArgKind
}

// ArgKind says what an Arg is.
type ArgKind uint8

// The kinds.
const (
	NumberArg ArgKind = iota
	BufferArg
	StructArg
	TensorArg
)

// Memory returns the memory at p as an argument, a buffer without a block.
func Memory(p unsafe.Pointer) Arg { return Arg{Ptr: p, Kind: BufferArg} }

// Number returns v as an argument.
func Number[T any](t elem.Type, v T) Arg {
	a := Arg{Type: t}
	*(*T)(unsafe.Pointer(&a.Bits)) = v
	return a
}

// maxStruct is the most bytes of parameters that CUDA takes, since compute capability 2.0.
const maxStruct = 4096

// Struct returns a copy of v as an argument. It panics if v is larger than CUDA takes, or holds
// Go's pointers.
func Struct[T any](v T) Arg {
	size := unsafe.Sizeof(v)
	if size > maxStruct {
		panic(fmt.Sprintf("spmd: Struct of %T: %d bytes, at most %d", v, size, maxStruct))
	}
	if HasPointers(reflect.TypeFor[T]()) {
		panic(fmt.Sprintf("spmd: Struct of %T: it holds pointers, which mean nothing on a GPU", v))
	}
	words := make([]uint64, (size+7)/8) // aligned as the driver's copy
	if len(words) > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size), unsafe.Slice((*byte)(unsafe.Pointer(&v)), size))
	}
	return Arg{Ptr: unsafe.Pointer(unsafe.SliceData(words)), N: int(size), Kind: StructArg}
}

// HasPointers reports whether values of a type hold anything that the collector follows.
func HasPointers(t reflect.Type) bool {
	switch k := t.Kind(); k {
	case reflect.Array:
		return t.Len() > 0 && HasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if HasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	default:
		return k > reflect.Complex128 // all that are no numbers come after it; Uintptr is one
	}
}

// Args are the arguments of one launch, as a function on the host sees them.
type Args []Arg

// I32 returns argument i, passed by I32 of package spmd.
func (a Args) I32(i int) int { return int(Value[int32](a, i, elem.Int32)) }

// I64 returns argument i, passed by I64.
func (a Args) I64(i int) int { return int(Value[int64](a, i, elem.Int64)) }

// U64 returns argument i, passed by U64.
func (a Args) U64(i int) uint64 { return Value[uint64](a, i, elem.Uint64) }

// F32 returns argument i, passed by F32.
func (a Args) F32(i int) float32 { return Value[float32](a, i, elem.Float32) }

// F64 returns argument i, passed by F64.
func (a Args) F64(i int) float64 { return Value[float64](a, i, elem.Float64) }

// Bool returns argument i, passed by Bool.
func (a Args) Bool(i int) bool { return Value[uint8](a, i, elem.Uint8) != 0 }

// Value returns argument i, a number of type t. It panics if the argument is another, as StructAt
// and SliceAt do.
func Value[T any](list []Arg, i int, t elem.Type) T {
	x := &list[i]
	if x.Kind != NumberArg || x.Type != t {
		panic(fmt.Sprintf("argument %d is %v, the kernel wants %v", i, x, t))
	}
	return *(*T)(unsafe.Pointer(&x.Bits))
}

// StructAt returns argument i, a struct.
func StructAt[T any](list []Arg, i int) (v T) {
	x := &list[i]
	if x.Kind != StructArg || x.N != int(unsafe.Sizeof(v)) {
		panic(fmt.Sprintf("argument %d is %v, the kernel wants a %T of %d bytes", i, x, v, unsafe.Sizeof(v)))
	}
	if x.N > 0 {
		v = *(*T)(x.Ptr)
	}
	return v
}

// SliceAt returns the elements of argument i, a buffer or tensor of type t.
func SliceAt[T any](list []Arg, i int, t elem.Type) []T {
	x := &list[i]
	if x.Kind != BufferArg && x.Kind != TensorArg || x.Type != t {
		panic(fmt.Sprintf("argument %d is %v, the kernel wants a buffer of %v", i, x, t))
	}
	return unsafe.Slice((*T)(x.Ptr), x.N)
}

// Bytes returns the size of the parameter for an argument.
func (a *Arg) Bytes() int {
	switch a.Kind {
	case BufferArg:
		return int(unsafe.Sizeof(a.Ptr))
	case StructArg:
		return a.N
	case TensorArg:
		return tensorMapBytes
	}
	return a.Type.Size()
}

// Slots returns the size of the parameter for an argument, in words.
func (a *Arg) Slots() int { return (a.Bytes() + 7) / 8 }

// Len returns how many elements a has, which is made of a buffer; -1 if it is not.
func (a *Arg) Len() int {
	if a.Kind != BufferArg {
		return -1
	}
	return a.N
}

// Int returns the number that I64 of package spmd passes; 0 if the argument is another.
func (a *Arg) Int() int {
	if a.Kind != NumberArg {
		return 0
	}
	return int(a.Bits[0])
}

// Overlaps reports whether a and b are made of buffers that share memory.
func (a *Arg) Overlaps(b *Arg) bool {
	return a.Len() > 0 && b.Len() > 0 && Overlap(a.Ptr, a.N*a.Type.Size(), b.Ptr, b.N*b.Type.Size())
}

// Overlap reports whether [a, a+n) and [b, b+m) share a byte.
func Overlap(a unsafe.Pointer, n int, b unsafe.Pointer, m int) bool {
	x, y := uintptr(a), uintptr(b)
	return n > 0 && m > 0 && x < y+uintptr(m) && y < x+uintptr(n)
}

// mostHalo returns how many elements a buffer may have beyond the elements of the indices, as a
// halo around them.
func mostHalo(indices int) int { return max(2, indices/4) }

// EachOnce returns how many bytes a kernel moves. The kernel is called for all indices below its
// first dims arguments, and touches the element of each index once in every buffer. Single
// elements, and the halo of a buffer that is a little longer, do not count. It returns 0 if buffers
// have other lengths, or dims is 0.
func (a Args) EachOnce(dims int) (bytes int) {
	if dims == 0 {
		return 0
	}
	total := 1
	for i := range dims {
		total *= int(a[i].Bits[0])
	}
	for i := range a {
		x := &a[i]
		switch {
		case x.Kind == StructArg || x.Kind == TensorArg,
			x.Kind == BufferArg && x.N > 1 && (x.N < total || x.N > total+mostHalo(total)):
			return 0
		case x.Kind == BufferArg && x.N >= total:
			bytes += total * x.Type.Size()
		}
	}
	return bytes
}

// Words returns the copy of a struct argument.
func (a *Arg) Words() []uint64 { return unsafe.Slice((*uint64)(a.Ptr), (a.N+7)/8) }

// String says what an argument is, for messages.
func (a *Arg) String() string {
	switch a.Kind {
	case BufferArg:
		return fmt.Sprintf("a buffer of %d %v", a.N, a.Type)
	case StructArg:
		return fmt.Sprintf("a struct of %d bytes", a.N)
	case TensorArg:
		return fmt.Sprintf("a tensor map of a buffer of %d %v", a.N, a.Type)
	}
	return a.Type.String()
}

// Grid is the shape of a launch.
type Grid = cuda.Shape

// CheckGrid refuses shapes that no launch of a kernel can have.
func CheckGrid(kernel string, g *Grid) error {
	for _, n := range [...]int{g.Blocks[0], g.Blocks[1], g.Blocks[2], g.Threads[0], g.Threads[1], g.Threads[2]} {
		if n < 1 {
			return fmt.Errorf("%s: Launch of %s: grid of %v blocks of %v threads",
				ccall.At(), kernel, g.Blocks, g.Threads)
		}
	}
	if g.Cluster != [3]int{} {
		for i, n := range g.Cluster {
			if n < 1 || g.Blocks[i]%n != 0 {
				return fmt.Errorf("%s: Launch of %s: grid of %v blocks in clusters of %v",
					ccall.At(), kernel, g.Blocks, g.Cluster)
			}
		}
	}
	return nil
}
