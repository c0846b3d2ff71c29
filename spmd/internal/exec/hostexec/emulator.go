package hostexec

import (
	"fmt"
	"sync"
	"unsafe"

	"lockstep/cuda/nvrtc"
	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
)

// Emulator runs kernels from their CUDA source on the host's processors.
type Emulator struct {
	mu       sync.Mutex
	programs map[string]*kernels.Emulated // by the keys of their sources
}

// NewEmulator returns an Emulator, which compiles a source when a kernel of it is first launched.
func NewEmulator() *Emulator { return &Emulator{programs: map[string]*kernels.Emulated{}} }

func (e *Emulator) program(k *exec.Kernel) (*kernels.Emulated, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := k.Source().Key()
	p := e.programs[key]
	if p != nil && p.Has(k.Symbol()) {
		return p, nil
	}
	source := *k.Source()
	for _, s := range kernels.All() { // with all kernels of the source
		if s.Key() == key {
			source = s
		}
	}
	if source.Text == "" {
		return nil, fmt.Errorf("kernel %s has no CUDA source: it runs on the host only", k.Name())
	}
	p, err := kernels.Emulate(nvrtc.DefaultCache().Dir, kernels.EmulatedSource{
		Text: source.Text, Flags: source.AllFlags(), Names: source.Names, Headers: kernels.Headers})
	if err != nil {
		return nil, fmt.Errorf("kernel %s cannot be emulated: %w", k.Name(), err)
	}
	e.programs[key] = p
	return p, nil
}

// Launch runs a kernel, its blocks on the cores of this rank.
func (e *Emulator) Launch(k *exec.Kernel, grid exec.Grid, args []exec.Arg) error {
	p, err := e.program(k)
	if err != nil {
		return err
	}
	var words []uint64
	var at []uint32
	for i := range args {
		at = append(at, uint32(len(words)))
		switch args[i].Kind {
		case exec.BufferArg:
			words = append(words, uint64(ccall.Address(args[i].Ptr)))
		case exec.StructArg:
			words = append(words, args[i].Words()...)
		case exec.TensorArg:
			return fmt.Errorf("kernel %s cannot be emulated: argument %d is %v", k.Name(), i, &args[i])
		default:
			words = append(words, args[i].Bits[:args[i].Slots()]...)
		}
	}
	return exec.Guard(func() error {
		var mu sync.Mutex
		var failed error
		host.Parallel(grid.Blocks[0]*grid.Blocks[1]*grid.Blocks[2], 1, func(lo, hi int) {
			part := kernels.Part{Blocks: grid.Blocks, Threads: grid.Threads, First: lo, Last: hi, Shared: grid.Shared}
			if err := p.Launch(k.Symbol(), part, words, at); err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
		return failed
	})
}

// emulated is the stream of a library.Call on a queue that emulates.
type emulated struct {
	*Emulator
	exec.Queue
}

// call runs a library.Function that only launches kernels.
func (e *Emulator) call(l *exec.Library, args []exec.Arg, workspace int) error {
	var work unsafe.Pointer
	if workspace > 0 {
		work = unsafe.Pointer(unsafe.SliceData(make([]uint64, (workspace+7)/8)))
	}
	return l.Device(emulated{Emulator: e}, args, work, workspace)
}
