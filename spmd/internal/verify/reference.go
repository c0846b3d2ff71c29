package verify

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
)

// ErrDiffer is spmd.ErrDiffer.
var ErrDiffer = errors.New("NCCL and MPI give different results")

// partBytes is how much of two results is compared at a time.
const partBytes = 4 << 20

// Reference makes calls a second time (--check both): MPI repeats NCCL's calls, on copies of NCCL's
// input, into memory of its own. The host waits for both and compares. One goroutine at a time uses
// it.
type Reference struct {
	queue transport.Queue
	mem   DeviceMemory
	self  transport.Host // of this rank alone: to compare in
	part  [2][]byte      // of two results, in host memory
}

// DeviceMemory is the memory of the GPU, as a Reference needs it.
type DeviceMemory interface {
	// Alloc returns memory, and a function that gives it back when nothing uses it any more.
	Alloc(bytes int) (p unsafe.Pointer, free func(), err error)
	// Local enqueues a step of a call that concerns this rank alone.
	Local(q transport.Queue, s coll.Call) error
	// Fetch copies memory of the GPU to the host, and waits for that.
	Fetch(dst, src unsafe.Pointer, bytes int) error
}

// NewReference returns the reference of a rank. Its calls run on queue; self has this rank alone.
func NewReference(queue transport.Queue, mem DeviceMemory, self transport.Host) *Reference {
	x := &Reference{queue: queue, mem: mem, self: self}
	for i := range x.part {
		x.part[i] = make([]byte, partBytes)
	}
	return x
}

// Run is the calls that one command makes, and their second time.
type Run struct {
	x     *Reference
	by    transport.Transport
	comm  transport.Host
	rec   *Recorder
	calls []again
	free  []func()
}

// again is a call as it is made a second time.
type again struct {
	first         coll.Call // on the memory that NCCL has
	second        coll.Call // on memory of its own
	reads, writes int       // elements
}

// Begin copies the input of a call, or of a group's calls, before NCCL may overwrite it: save
// enqueues a copy in the order of the call's stream. by has the ranks of comm.
func (x *Reference) Begin(by transport.Transport, comm transport.Host, rec *Recorder, c *coll.Call, g Group,
	save func(dst, src unsafe.Pointer, bytes int) error) (*Run, error) {
	r := &Run{x: x, by: by, comm: comm, rec: rec}
	if c.Kind != coll.Group {
		return r, r.add(*c, save)
	}
	for i := range g.Len() {
		in, _ := g.Call(i)
		if err := r.add(*in, save); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Free gives back the memory of the run, of which nothing is under way.
func (r *Run) Free() {
	for _, free := range r.free {
		free()
	}
}

func (r *Run) add(c coll.Call, save func(dst, src unsafe.Pointer, bytes int) error) error {
	// a group is used again once it is issued
	c.Counts, c.RecvCounts = slices.Clone(c.Counts), slices.Clone(c.RecvCounts)
	a := again{first: c, second: c}
	a.second.Dst, a.second.Src = nil, nil
	a.writes, a.reads = c.Extents(r.rec.Rank, r.rec.Size)
	size := c.Type.Size()
	alloc := func(n int) (unsafe.Pointer, error) {
		p, free, err := r.x.mem.Alloc(n * size)
		if err == nil {
			r.free = append(r.free, free)
		}
		return p, err
	}
	var err error
	if a.reads > 0 {
		if a.second.Src, err = alloc(a.reads); err == nil {
			err = save(a.second.Src, c.Src, a.reads*size)
		}
	}
	if err == nil && a.writes > 0 {
		a.second.Dst, err = alloc(a.writes)
		if err == nil && c.Kind == coll.Broadcast { // whose root reads there
			err = save(a.second.Dst, c.Dst, a.writes*size)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: --check both: %w", ccall.At(), err)
	}
	r.calls = append(r.calls, a)
	return nil
}

// Compare makes the calls the second time, when NCCL has made them: collectives one after the
// other, then all messages together, as a group is made. It returns the first difference, of a
// collective on every rank. The caller is in its turn in MPI. Collective over the ranks that the
// calls concern.
func (r *Run) Compare() error {
	var messages []coll.Call
	for i := range r.calls {
		a := &r.calls[i]
		switch {
		case a.first.Kind == coll.Barrier:
		case a.first.Kind.Traits().Message:
			messages = append(messages, a.second)
		default:
			if err := r.compareCollective(a); err != nil {
				return r.failed(a, err)
			}
		}
	}
	if len(messages) == 0 {
		return nil
	}
	if err := r.wait(r.by.Group(r.x.queue, messages, nil)); err != nil {
		return fmt.Errorf("%s: --check both: %w", ccall.At(), err)
	}
	for i := range r.calls {
		if a := &r.calls[i]; a.first.Kind.Traits().Message {
			if err := r.difference(a, nil); err != nil {
				return r.failed(a, fmt.Errorf("%w: rank %d: %w", ErrDiffer, r.rec.Rank, err))
			}
		}
	}
	return nil
}

func (r *Run) compareCollective(a *again) error {
	if err := r.wait(r.make(&a.second)); err != nil {
		return err
	}
	bound, err := r.bound(a)
	if err != nil {
		return err
	}
	// Every rank has its own part of the result: the first that is wrong speaks for all.
	wrong, err := control.First(r.comm, r.difference(a, bound))
	if err == nil && wrong != nil {
		return fmt.Errorf("%w: %w", ErrDiffer, wrong)
	}
	return err
}

// make makes a collective the second time.
func (r *Run) make(c *coll.Call) error {
	rank, size, lib := r.rec.Rank, r.rec.Size, &r.by.Caps().Library
	if lib.Kinds.Has(c.Kind) {
		return r.by.Do(r.x.queue, *c)
	}
	work, free, err := r.x.mem.Alloc(c.Scratch(rank, size, lib))
	if err != nil {
		return err
	}
	r.free = append(r.free, free)
	return transport.Make(r.by, r.x.queue, c, rank, size, work, r.x.mem.Local)
}

// wait waits for the enqueued work, unless err says that it has failed.
func (r *Run) wait(err error) error {
	if err != nil {
		return err
	}
	return transport.Wait(r.comm, r.x.queue.Stream().Query)
}

// failed adds which call it was.
func (r *Run) failed(a *again, err error) error {
	return fmt.Errorf("%s: %v: %w (%s, %d ranks)", ccall.At(), &a.first, err, r.rec.ID, r.rec.Size)
}

// bound says how far the two results may be apart; nil if they must be the same.
func (r *Run) bound(a *again) (Bound, error) {
	c := &a.first
	if !c.Kind.Traits().Reduces {
		return nil, nil
	}
	if ReductionBound(c.Type, c.Op, r.rec.Size, 1) == nil {
		return func(float64) float64 { return 0 }, nil // of integers, of minima and maxima, in which -0 is 0
	}
	most := new(float64)
	err := inParts(a.reads, c.Type.Size(), func(off, n int) error {
		if err := r.x.fetch(0, a.second.Src, off, n, c.Type.Size()); err != nil {
			return err
		}
		largest, err := largest(r.x.self, unsafe.Pointer(&r.x.part[0][0]), n, c.Type)
		*most = max(*most, largest)
		return err
	})
	if err == nil {
		err = r.comm.AllReduce(unsafe.Pointer(most), unsafe.Pointer(most), 1, elem.Float64, elem.Max)
	}
	return ReductionBound(c.Type, c.Op, r.rec.Size, *most), err
}

// difference compares this rank's two results of a call.
func (r *Run) difference(a *again, bound Bound) error {
	x, typ := r.x, a.first.Type
	return inParts(a.writes, typ.Size(), func(off, n int) error {
		if err := errors.Join(x.fetch(0, a.first.Dst, off, n, typ.Size()),
			x.fetch(1, a.second.Dst, off, n, typ.Size())); err != nil {
			return err
		}
		err := compare(x.self, unsafe.Pointer(&x.part[0][0]), unsafe.Pointer(&x.part[1][0]), n, typ, bound)
		var d *Difference
		if !errors.As(err, &d) {
			return err
		}
		within := ""
		if d.Bound > 0 {
			within = fmt.Sprintf(", and may differ by %.3g", d.Bound)
		}
		return fmt.Errorf("element %d is %s by NCCL and %s by %s%s", off+d.Index, d.Got, d.Want,
			r.by.Name(), within)
	})
}

// inParts calls f for parts of n elements, until it fails.
func inParts(n, size int, f func(off, n int) error) error {
	for off := 0; off < n; off += partBytes / size {
		if err := f(off, min(partBytes/size, n-off)); err != nil {
			return err
		}
	}
	return nil
}

// fetch copies elements of device memory to one of the parts.
func (x *Reference) fetch(part int, p unsafe.Pointer, off, n, size int) error {
	return x.mem.Fetch(unsafe.Pointer(&x.part[part][0]), unsafe.Add(p, off*size), n*size)
}
