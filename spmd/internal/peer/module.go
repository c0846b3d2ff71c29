package peer

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// FoldSource is the source of Fold, which others may be appended to.
//
//go:embed fold.cu
var FoldSource string

// Kernel is the name of a kernel, and the threads of its blocks.
type Kernel struct {
	Name    string
	Threads int
}

const foldThreads = 256 // its launch bound

// FoldKernel is in every module.
var FoldKernel = Kernel{"fold", foldThreads}

// Compile makes an image of a source. A test without a compiler sets another function.
var Compile = func(source string, capability int) ([]byte, error) {
	image, _, err := nvrtc.DefaultCache().Compile("device.cu", source, nvrtc.Options{Capability: capability})
	return image, err
}

// Loaders are the ranks that load kernels together. They move host memory between
// them. A *cudampi.Comm is one.
type Loaders interface {
	Rank() int
	AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error
	Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error
	FirstFailure(mine error) error
}

// Module is the kernels of a source, loaded on a device.
type Module struct {
	dev       *cuda.Device
	source    string
	users     int
	module    *cuda.Module
	functions map[string]*cuda.Function
	fold      *cuda.Function
}

// loaded are the modules in use. They stay until the last user closes them.
var loaded struct {
	sync.Mutex
	all []*Module
}

// find returns the module of a device whose source begins with this one, for one more user, or nil.
func find(d *cuda.Device, source string) *Module {
	loaded.Lock()
	defer loaded.Unlock()
	for _, m := range loaded.all {
		if m.dev == d && strings.HasPrefix(m.source, source) {
			m.users++
			return m
		}
	}
	return nil
}

// Load loads a source that begins with FoldSource, on all ranks that do not have it. Their devices
// must be of one kind. A module whose source begins with this one serves as well.
//
// Collective; it blocks.
func Load(c Loaders, d *cuda.Device, source string, kernels ...Kernel) (*Module, error) {
	m := find(d, source)
	major, minor := d.Capability()
	kind := int64(10*major + minor)
	said := &[3]int64{kind, -kind}
	if m == nil {
		said[2] = 1 // it is to be loaded
	}
	err := c.AllReduce(unsafe.Pointer(said), unsafe.Pointer(said), len(said), elem.Int64, elem.Max)
	if err == nil && said[0] != -said[1] {
		err = fmt.Errorf("devices of compute capability %d and %d in one communicator", -said[1], said[0])
	}
	if err == nil && said[2] != 0 {
		m, err = loadImage(c, d, m, source, kernels)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// loadImage compiles on rank 0, or finds the image on disk, and loads it if m is nil. Collective.
func loadImage(c Loaders, d *cuda.Device, m *Module, source string, kernels []Kernel) (*Module, error) {
	var image []byte
	var err error
	if c.Rank() == 0 {
		major, minor := d.Capability()
		image, err = Compile(source, 10*major+minor)
	}
	length := new(int64)
	*length = int64(len(image))
	if err := c.Broadcast(unsafe.Pointer(length), 1, elem.Int64, 0); err != nil {
		return m, err
	}
	if *length == 0 {
		return m, c.FirstFailure(err)
	}
	if c.Rank() != 0 {
		image = make([]byte, *length)
	}
	if err := c.Broadcast(unsafe.Pointer(&image[0]), len(image), elem.Uint8, 0); err != nil {
		return m, err
	}
	if m == nil {
		m, err = openModule(d, source, image, kernels)
	}
	return m, c.FirstFailure(err)
}

// openModule returns a module that must be closed, also with an error.
func openModule(d *cuda.Device, source string, image []byte, kernels []Kernel) (m *Module, err error) {
	m = &Module{dev: d, source: source, users: 1, functions: make(map[string]*cuda.Function)}
	if m.module, err = d.LoadModule(image); err != nil {
		return m, err
	}
	for _, k := range append([]Kernel{FoldKernel}, kernels...) {
		f, err := m.module.Function(k.Name)
		if err != nil {
			return m, err
		}
		if err := f.Load(); err != nil { // not in the first call, which may be captured
			return m, err
		}
		most, err := f.MaxThreads()
		if err != nil {
			return m, err
		}
		if most < k.Threads {
			return m, fmt.Errorf("kernel %s was compiled for blocks of at most %d threads, and %d are needed",
				k.Name, most, k.Threads)
		}
		m.functions[k.Name] = f
	}
	m.fold = m.functions[FoldKernel.Name]
	loaded.Lock()
	defer loaded.Unlock()
	loaded.all = append(loaded.all, m)
	return m, nil
}

// Function returns a kernel by its name.
func (m *Module) Function(name string) *cuda.Function { return m.functions[name] }

// Close ends one use. It does nothing for nil. The last one unloads the kernels.
func (m *Module) Close() error {
	if m == nil {
		return nil
	}
	loaded.Lock()
	m.users--
	last := m.users == 0
	if last {
		loaded.all = slices.DeleteFunc(loaded.all, func(o *Module) bool { return o == m })
	}
	loaded.Unlock()
	if !last || m.module == nil {
		return nil
	}
	return m.module.Close()
}

// Fold enqueues dst = op over the ranks r of the n elements at table[r] + offset bytes. table is in
// device memory. Its addresses, and offset, are aligned to 16 bytes.
func (m *Module) Fold(s *cuda.Stream, dst, table unsafe.Pointer, offset, n int, t elem.Type, op elem.Op,
	size int) error {
	if n == 0 {
		return nil
	}
	const each = 16 * foldThreads // bytes of a block at a time
	bytes := n * t.Size()
	blocks := min((bytes+each-1)/each, 1024)
	args := [...]uint64{uint64(ccall.Address(dst)), uint64(ccall.Address(table)), uint64(offset), uint64(bytes),
		uint64(t), uint64(op), uint64(size)}
	return s.Launch(m.fold, [3]int{blocks, 1, 1}, [3]int{foldThreads, 1, 1}, 0, args[:])
}
