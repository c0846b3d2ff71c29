package peer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Window is device memory of every rank of a node, opened to all of them: each rank has an address
// of its own for it. Copies and kernels read and write it over the link between the devices. The
// ranks order what they do themselves, for example by Comm.Barrier.
type Window struct {
	c       Ranks
	dev     *cuda.Device
	base    []unsafe.Pointer
	foreign []*cuda.Foreign
	table   unsafe.Pointer
}

// Ranks moves host memory between ranks, which are on one node. *shm.NodeComm is one.
type Ranks interface {
	Loaders
	Size() int
	AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error
	Barrier() error
	// Here returns how many of the ranks are on this node. Collective; it blocks.
	Here() (int, error)
}

// windowInfo describes a rank's memory for the others.
type windowInfo struct {
	handle  cuda.IPCHandle // for other processes
	process [16]byte       // whose memory it is
	mem     uintptr        // for those of the process: the address,
	context uintptr        // and the context of the device
	bytes   int
	uuid    [48]byte
}

// process names this process on the node.
var process = func() (name [16]byte) {
	rand.Read(name[:]) // never fails
	return name
}()

// Share opens a window on memory that each rank has from cuda.Malloc, or on a place in it. The
// memory may have another size on every rank, and is nil with no bytes.
//
// It fails on all ranks, with the reason of the first that failed. Reasons are ranks on several
// nodes, devices without peer access between them, and a device that is not visible to another
// rank's process.
//
// Collective; it blocks. The memory must not be freed before Close. Source: cuda.h,
// cuIpcGetMemHandle, cuIpcOpenMemHandle; of ranks of this process cuCtxEnablePeerAccess.
func Share(c Ranks, d *cuda.Device, mem unsafe.Pointer, bytes int) (*Window, error) {
	here, err := c.Here()
	if err != nil {
		return nil, err
	}
	if here != c.Size() {
		err = fmt.Errorf("peer: device memory is shared within a node, and %d of %d ranks are on this one",
			here, c.Size())
	}
	w := &Window{c: c, dev: d, base: make([]unsafe.Pointer, c.Size()), foreign: make([]*cuda.Foreign, c.Size())}
	all := make([]windowInfo, c.Size()+1)
	mine := &all[c.Size()]
	mine.bytes, mine.process, mine.mem = bytes, process, ccall.Address(mem)
	mine.context = ccall.Address(d.Bind().Context)
	copy(mine.uuid[:], d.UUID())
	others, e := elsewhere(c)
	if e != nil {
		return nil, e
	}
	if bytes > 0 && err == nil && others {
		mine.handle, err = d.IPCHandle(mem)
	}
	if err := c.FirstFailure(err); err != nil {
		return nil, err
	}
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), int(unsafe.Sizeof(*mine)),
		elem.Uint8); err != nil {
		return nil, err
	}
	if err := c.FirstFailure(w.open(mem, all)); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *Window) open(mem unsafe.Pointer, all []windowInfo) error {
	for r, info := range all[:w.c.Size()] {
		switch {
		case info.bytes == 0:
			continue
		case r == w.c.Rank():
			w.base[r] = mem
			continue
		}
		ok, why, err := w.dev.CanAccess(strings.TrimRight(string(info.uuid[:]), "\x00"))
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("peer: memory of rank %d: %s", r, why)
		}
		if info.process == process {
			if err := w.dev.Reach(pointer(info.context)); err != nil {
				return err
			}
			w.base[r] = pointer(info.mem)
			continue
		}
		if w.foreign[r], err = w.dev.OpenIPC(info.handle); err != nil {
			return err
		}
		w.base[r] = w.foreign[r].Addr()
	}
	return w.tabulate()
}

// pointer returns an address of the driver's that came as a number.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// elsewhere reports whether some of the ranks are in other processes. Collective.
func elsewhere(c Ranks) (bool, error) {
	all := make([][16]byte, c.Size())
	mine := process
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine), len(mine), elem.Uint8); err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(p [16]byte) bool { return p != process }), nil
}

// tabulate puts the addresses into device memory.
func (w *Window) tabulate() error {
	bytes := len(w.base) * int(unsafe.Sizeof(w.base[0]))
	host, err := w.dev.MallocHost(bytes)
	if err != nil {
		return err
	}
	copy(unsafe.Slice((*unsafe.Pointer)(host), len(w.base)), w.base)
	w.table, err = w.dev.Malloc(bytes)
	if err == nil {
		err = onStream(w.dev, func(s *cuda.Stream) error { return s.Copy(w.table, host, bytes) })
	}
	return errors.Join(err, w.dev.FreeHost(host))
}

// onStream has fn enqueue work and waits for it.
func onStream(d *cuda.Device, fn func(s *cuda.Stream) error) error {
	s, err := d.NewStream(0)
	if err != nil {
		return err
	}
	if err = fn(s); err == nil {
		err = s.Synchronize()
	}
	return errors.Join(err, s.Close())
}

// At returns the address, on this rank's device, of the memory of a rank; nil if it has none.
func (w *Window) At(rank int) unsafe.Pointer { return w.base[rank] }

// Close unmaps the memory of the others. Afterwards each rank may free its own.
// A second Close does nothing.
//
// Collective; it blocks until all ranks have called it. Each rank calls it when its own
// work on the window is over.
func (w *Window) Close() error {
	if w.base == nil {
		return nil
	}
	err := w.c.Barrier()
	return errors.Join(err, w.close(), w.c.Barrier())
}

func (w *Window) close() error {
	var err error
	for _, f := range w.foreign {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	err = errors.Join(err, w.dev.Free(w.table))
	w.base, w.foreign, w.table = nil, nil, nil
	return err
}
