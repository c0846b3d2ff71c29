package hostexec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
)

// For tests each launch may run both ways, on copies of the buffers: as the host function, and from
// the CUDA source. The buffers receive what the host function has changed, since other streams may
// write elsewhere meanwhile. A copy for the source ends where its page does, so that an access
// behind it fails. What lies between it and the page's other end is looked at afterwards.

// beside runs CUDA sources for that.
var beside = NewEmulator()

// notEmulated are the kernels that only NVIDIA's compiler understands.
var notEmulated sync.Map

// emulates reports whether a kernel with these arguments can run from its source: addresses in it
// must point to buffers.
func emulates(k *exec.Kernel, args []exec.Arg) bool {
	if _, no := notEmulated.Load(k); no || k.Source().Text == "" {
		return false
	}
	list, known := params(k)
	if _, err := beside.program(k); err != nil || !known {
		notEmulated.Store(k, true)
		return false
	}
	for i := range args {
		number := args[i].Kind == exec.NumberArg && args[i].Bits != (elem.Bits{})
		if args[i].Kind == exec.TensorArg || number && i < len(list) && list[i].Pointer {
			return false
		}
	}
	return true
}

// compareKernel runs a kernel both ways. It fails if they differ.
func compareKernel(k *exec.Kernel, grid exec.Grid, args []exec.Arg) error {
	host := func(args []exec.Arg) error { return exec.GuardKernel(k.Name(), func() error { return k.Host()(args) }) }
	if !emulates(k, args) {
		return host(args)
	}
	device := func(args []exec.Arg) error { return beside.Launch(k, grid, args) }
	return compare(k.Name(), args, k.Source().Tolerance, k.Source().Scratch, host, device)
}

// compareLibrary does so with a library that only launches kernels.
func compareLibrary(l *exec.Library, args []exec.Arg, workspace int) error {
	host := func(args []exec.Arg) error { return exec.Guard(func() error { return l.Host(args) }) }
	tolerance := 0.0
	for _, k := range l.Kernels {
		if tolerance = max(tolerance, k.Source().Tolerance); !emulates(k, nil) {
			return host(args)
		}
	}
	device := func(args []exec.Arg) error { return beside.call(l, args, workspace) }
	return compare(l.Name, args, tolerance, 0, host, device)
}

func compare(name string, args []exec.Arg, tolerance float64, scratch uint64,
	host, device func([]exec.Arg) error) (err error) {
	before, err := copyOf(args)
	defer func() { err = errors.Join(err, before.free()) }()
	if err != nil {
		return err
	}
	h, err := copyOf(before.args)
	defer func() { err = errors.Join(err, h.free()) }()
	if err != nil {
		return err
	}
	c, err := fencedCopyOf(before.args)
	defer func() { err = errors.Join(err, c.free()) }()
	if err != nil {
		return err
	}
	failed := device(c.args)
	err = host(h.args)
	for i := range h.args {
		changed(&args[i], &before.args[i], &h.args[i])
	}
	if err != nil {
		return err
	}
	var f *kernels.Fault
	if errors.As(failed, &f) {
		if what := c.describe(f.Address); what != "" {
			return errors.New(f.Describe(what))
		}
	}
	if failed != nil {
		return failed
	}
	if i := c.overrun(); i >= 0 {
		return fmt.Errorf("kernel %s: its CUDA source writes beside argument %d, %v", name, i, &args[i])
	}
	for i := range args {
		if args[i].Kind == exec.BufferArg && scratch>>i&1 == 0 {
			if what := difference(&h.args[i], c.args[i].Ptr, tolerance); what != "" {
				return fmt.Errorf("kernel %s: the host function and the CUDA source differ in argument %d, %v: %s",
					name, i, &args[i], what)
			}
		}
	}
	return nil
}

// copies are buffers of arguments, those that overlap together.
type copies struct {
	args    []exec.Arg
	regions []region
}

type region struct {
	lo, hi uintptr // where the buffers are
	memory []byte  // with a page before and behind that cannot be accessed
	at     int     // where the copy of lo is in it
	first  int     // the argument
}

const unwritten = 0xa5

// copyOf makes copies.
func copyOf(args []exec.Arg) (*copies, error) { return copiesOf(args, bare) }

// fencedCopyOf makes copies, around whose pages nothing can be accessed.
func fencedCopyOf(args []exec.Arg) (*copies, error) { return copiesOf(args, fenced) }

// The fence of copies.
const bare, fenced = false, true

func copiesOf(args []exec.Arg, fence bool) (*copies, error) {
	c := &copies{args: slices.Clone(args)}
	var order []int
	for i := range args {
		if args[i].Kind == exec.BufferArg && args[i].N > 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return int(int64(uintptr(args[a].Ptr)) - int64(uintptr(args[b].Ptr))) })
	for _, i := range order {
		lo := uintptr(args[i].Ptr)
		hi := lo + uintptr(args[i].N*args[i].Type.Size())
		if n := len(c.regions); n > 0 && lo < c.regions[n-1].hi {
			c.regions[n-1].hi = max(c.regions[n-1].hi, hi)
		} else {
			c.regions = append(c.regions, region{lo: lo, hi: hi, first: i})
		}
	}
	for r := range c.regions {
		if err := c.regions[r].copy(args[c.regions[r].first].Ptr, fence); err != nil {
			return c, err
		}
	}
	for _, i := range order {
		a := &c.args[i]
		for _, r := range c.regions {
			if p := uintptr(a.Ptr); r.lo <= p && p < r.hi {
				a.Ptr = unsafe.Pointer(&r.memory[r.at+int(p-r.lo)])
				break
			}
		}
	}
	return c, nil
}

// copy makes the copy, aligned as the original to 16 bytes.
func (r *region) copy(from unsafe.Pointer, fence bool) (err error) {
	page, size := syscall.Getpagesize(), int(r.hi-r.lo)
	end := page + (size+16+page-1)/page*page
	const access, kind = syscall.PROT_READ | syscall.PROT_WRITE, syscall.MAP_ANON | syscall.MAP_PRIVATE
	if r.memory, err = syscall.Mmap(-1, 0, end+page, access, kind); err != nil {
		return err
	}
	r.at = end - size
	r.at -= (r.at - int(r.lo%16)) & 15
	for i := page; i < end; i++ {
		r.memory[i] = unwritten
	}
	copy(r.memory[r.at:], unsafe.Slice((*byte)(from), size))
	if !fence {
		return nil
	}
	return errors.Join(syscall.Mprotect(r.memory[:page], syscall.PROT_NONE),
		syscall.Mprotect(r.memory[end:], syscall.PROT_NONE))
}

// changed gives a buffer what differs between two copies of it.
func changed(to, before, after *exec.Arg) {
	if to.Kind != exec.BufferArg {
		return
	}
	bytesOf := func(a *exec.Arg) []byte { return unsafe.Slice((*byte)(a.Ptr), a.N*a.Type.Size()) }
	x, old := bytesOf(to), bytesOf(before)
	for i, v := range bytesOf(after) {
		if v != old[i] {
			x[i] = v
		}
	}
}

func (c *copies) free() (err error) {
	for _, r := range c.regions {
		if r.memory != nil {
			err = errors.Join(err, syscall.Munmap(r.memory))
		}
	}
	return err
}

// overrun returns the argument beside which something was written; -1 is none.
func (c *copies) overrun() int {
	page := syscall.Getpagesize()
	other := func(b byte) bool { return b != unwritten }
	for _, r := range c.regions {
		if slices.ContainsFunc(r.memory[page:r.at], other) ||
			slices.ContainsFunc(r.memory[r.at+int(r.hi-r.lo):len(r.memory)-page], other) {
			return r.first
		}
	}
	return -1
}

// describe names the argument and the element of an address; "" if the address is near no argument.
func (c *copies) describe(address uintptr) string {
	for _, r := range c.regions {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(r.memory)))
		if address < begin || address >= begin+uintptr(len(r.memory)) {
			continue
		}
		best, least := "", math.MaxInt
		for i := range c.args {
			a := &c.args[i]
			if p := uintptr(a.Ptr); a.Kind == exec.BufferArg && a.N > 0 && p-begin < uintptr(len(r.memory)) {
				element := int(int64(address)-int64(p)) / a.Type.Size()
				if far := max(-element, element-a.N); far < least {
					best, least = fmt.Sprintf("element %d of argument %d, %v", element, i, a), far
				}
			}
		}
		return best
	}
	return ""
}

// difference says where the memory of a buffer and a copy of it differ; "" is nowhere. With a
// tolerance elements may differ by that part of the larger of the two, or of the root of the mean
// of the squares, and by how their type rounds.
func difference(a *exec.Arg, other unsafe.Pointer, tolerance float64) string {
	t := a.Type.Real() // complex numbers are compared part by part
	parts, size := a.Type.Size()/t.Size(), t.Size()
	n := a.N * parts
	x, y := unsafe.Slice((*byte)(a.Ptr), n*size), unsafe.Slice((*byte)(other), n*size)
	if bytes.Equal(x, y) {
		return ""
	}
	wrong, first, usual := 0, "", 0.0
	if tolerance > 0 {
		for i := range n {
			if v, ok := number(t, elem.At(a.Ptr, i, n, t)); ok && !math.IsInf(v, 0) && !math.IsNaN(v) {
				usual += v * v
			}
		}
		usual = math.Sqrt(usual / float64(n))
	}
	for i := range n {
		if bytes.Equal(x[i*size:(i+1)*size], y[i*size:(i+1)*size]) {
			continue
		}
		v, isFloat := number(t, elem.At(a.Ptr, i, n, t))
		w, _ := number(t, elem.At(other, i, n, t))
		most := tolerance*usual + (tolerance+rounding[t])*max(math.Abs(v), math.Abs(w)) + least[t]
		if isFloat && (v != v && w != w || tolerance > 0 && math.Abs(v-w) <= most) {
			continue
		}
		if wrong++; first == "" {
			first = fmt.Sprintf("element %d is %v and %v", i/parts, v, w)
			if !isFloat {
				first = fmt.Sprintf("element %d is %x and %x, byte by byte",
					i/parts, x[i*size:(i+1)*size], y[i*size:(i+1)*size])
			}
		}
	}
	if wrong > 1 {
		first += fmt.Sprintf(", and %d others differ", wrong-1)
	}
	return first
}

// rounding is the distance of neighbours, as a part of them.
var rounding = [elem.StoredTypes]float64{
	elem.Float16: 1.0 / 1024, elem.BFloat16: 1.0 / 128, elem.Float8E4M3: 1.0 / 8, elem.Float8E5M2: 1.0 / 4}

// least is the distance of those near 0.
var least = [elem.StoredTypes]float64{
	elem.Float16: 1.0 / (1 << 24), elem.Float8E4M3: 1.0 / 512, elem.Float8E5M2: 1.0 / (1 << 16)}

// number returns an element as a number; false if it is none with a fraction.
func number(t elem.Type, p unsafe.Pointer) (float64, bool) {
	switch t {
	case elem.Float32:
		return float64(*(*float32)(p)), true
	case elem.Float64:
		return *(*float64)(p), true
	case elem.Float16:
		return float64((*(*elem.F16)(p)).Float32()), true
	case elem.BFloat16:
		return float64((*(*elem.BF16)(p)).Float32()), true
	case elem.Float8E4M3:
		return float64((*(*elem.F8E4M3)(p)).Float32()), true
	case elem.Float8E5M2:
		return float64((*(*elem.F8E5M2)(p)).Float32()), true
	}
	return 0, false
}
