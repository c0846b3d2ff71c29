package cudampi

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
)

//go:embed device.cu
var kernelSource string

// kernels are those of device.cu.
type kernels struct {
	module                              *cuda.Module
	fold, barrier, small, peerAllReduce *cuda.Function
}

// compile is what makes an image of the source; a test that has no compiler sets another.
var compile = func(capability int) ([]byte, error) {
	image, _, err := nvrtc.DefaultCache().Compile("device.cu", kernelSource, nvrtc.Options{Capability: capability})
	return image, err
}

// loadKernels compiles on rank 0, or finds the image on disk, and loads it on all. Their devices must be of one kind.
// Collective.
func (c *Comm) loadKernels(d *cuda.Device) (*kernels, error) {
	major, minor := d.Capability()
	word := [2]int64{int64(10*major + minor), -int64(10*major + minor)}
	kind := &word
	if err := c.AllReduce(unsafe.Pointer(kind), unsafe.Pointer(kind), 2, elem.Int64, elem.Max); err != nil {
		return nil, err
	}
	if kind[0] != -kind[1] {
		return nil, fmt.Errorf("devices of compute capability %d and %d in one communicator", -kind[1], kind[0])
	}
	var image []byte
	var err error
	if c.rank == 0 {
		image, err = compile(int(kind[0]))
	}
	length := new(int64)
	*length = int64(len(image))
	if err := c.Broadcast(unsafe.Pointer(length), 1, elem.Int64, 0); err != nil {
		return nil, err
	}
	if *length == 0 {
		return nil, c.sameOnAll(err)
	}
	if c.rank != 0 {
		image = make([]byte, *length)
	}
	if err := c.Broadcast(unsafe.Pointer(&image[0]), len(image), elem.Uint8, 0); err != nil {
		return nil, err
	}
	k, err := newKernels(d, image)
	if failure := c.sameOnAll(err); failure != nil {
		return nil, errors.Join(failure, k.close())
	}
	return k, nil
}

func newKernels(d *cuda.Device, image []byte) (k *kernels, err error) {
	k = &kernels{}
	if k.module, err = d.LoadModule(image); err != nil {
		return k, err
	}
	for _, f := range []struct {
		at   **cuda.Function
		name string
	}{{&k.fold, "fold"}, {&k.barrier, "peer_barrier"}, {&k.small, "peer_small"}, {&k.peerAllReduce, "peer_all_reduce"}} {
		if *f.at, err = k.module.Function(f.name); err != nil {
			return k, err
		}
		if err := (*f.at).Load(); err != nil { // not in the first call, which may be captured
			return k, err
		}
	}
	return k, nil
}

func (k *kernels) close() error {
	if k == nil || k.module == nil {
		return nil
	}
	return k.module.Close()
}

// sameOnAll returns the first rank's failure, if any, on all ranks. Collective.
func (c *Comm) sameOnAll(mine error) error {
	const room = 512
	text := make([]byte, room)
	if mine != nil {
		copy(text, strings.ReplaceAll(mine.Error(), "\n", "; "))
	}
	all := make([]byte, room*c.size)
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&text[0]), room, elem.Uint8); err != nil {
		return err
	}
	for r := range c.size {
		said, _, _ := strings.Cut(string(all[r*room:(r+1)*room]), "\x00")
		switch {
		case said == "":
		case r == c.rank:
			return mine
		default:
			return fmt.Errorf("rank %d: %s", r, said)
		}
	}
	return nil
}

// foldGrid is a grid whose threads loop over bytes, 16 at a time.
func foldGrid(bytes int) (blocks, threads [3]int) {
	const block = 256
	return [3]int{min((bytes+16*block-1)/(16*block), 1024), 1, 1}, [3]int{block, 1, 1}
}

// foldOn enqueues dst = op over the ranks r of the n elements at table[r] + offset bytes. table is in device memory; what
// it names, and offset, are aligned to 16 bytes.
func (k *kernels) foldOn(s *cuda.Stream, dst, table unsafe.Pointer, offset, n int, t elem.Type, op elem.Op, size int) error {
	if n == 0 {
		return nil
	}
	blocks, threads := foldGrid(n * t.Size())
	args := [...]uint64{uint64(uintptr(dst)), uint64(uintptr(table)), uint64(offset), uint64(n * t.Size()), uint64(t), uint64(op), uint64(size)}
	return s.Launch(k.fold, blocks, threads, 0, args[:])
}
