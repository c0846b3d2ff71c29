package cudaexec

import (
	"fmt"
	"sync"
	"sync/atomic"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
)

// function is a kernel on a GPU.
type function struct {
	f      *cuda.Function
	mu     sync.Mutex
	shared atomic.Int64 // dynamic shared memory that launches may ask for
	params []int        // their sizes in bytes
	known  bool         // params is all of them
}

// defaultShared is the dynamic shared memory that every kernel may have unasked.
const defaultShared = 48 << 10

func (f *function) raise(bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int64(bytes) <= f.shared.Load() {
		return nil
	}
	if err := f.f.SetMaxShared(bytes); err != nil {
		return err
	}
	f.shared.Store(int64(bytes))
	return nil
}

// fits reports whether arguments are what the source of k has as parameters.
func (f *function) fits(k *exec.Kernel, args []exec.Arg) error {
	if !f.known {
		return nil
	}
	if len(args) != len(f.params) {
		return fmt.Errorf("kernel %s: %d arguments, but its CUDA source has %d parameters",
			k.Name(), len(args), len(f.params))
	}
	for i := range args {
		if n := args[i].Bytes(); n != f.params[i] {
			text := args[i].String()
			if args[i].Kind != exec.StructArg {
				text = fmt.Sprintf("%s, of %d bytes", text, n)
			}
			return fmt.Errorf("kernel %s: argument %d is %s, but the parameter of its CUDA source has %d",
				k.Name(), i, text, f.params[i])
		}
	}
	return nil
}

// on returns k on the GPU; nil if it is not there yet.
func (g *GPU) on(k *exec.Kernel) *function {
	if list := g.functions.Load(); list != nil && k.ID() < len(*list) {
		return (*list)[k.ID()]
	}
	return nil
}

// ready makes k ready on the GPU. A kernel that was declared after the world was opened is compiled
// now, by each rank.
func (g *GPU) ready(k *exec.Kernel) error {
	if g.on(k) != nil {
		return nil
	}
	if k.Source().Text == "" {
		return fmt.Errorf("%s: kernel %s has no CUDA source: it runs on the host only", ccall.At(), k.Name())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.moduleOf(k)
	if err != nil {
		return fmt.Errorf("%s: %w", ccall.At(), err)
	}
	f, err := m.function(k.Symbol())
	if err != nil {
		return fmt.Errorf("%s: %w", ccall.At(), err)
	}
	fn := &function{f: f}
	if fn.params, fn.known, err = f.Params(m.end(k.Symbol())); err != nil {
		return fmt.Errorf("%s: kernel %s: %w", ccall.At(), k.Name(), err)
	}
	fn.shared.Store(defaultShared)
	list := make([]*function, k.ID()+1)
	if old := g.functions.Load(); old != nil {
		list = make([]*function, max(len(*old), k.ID()+1))
		copy(list, *old)
	}
	list[k.ID()] = fn
	g.functions.Store(&list)
	return nil
}

// moduleOf returns the program that has k, which it compiles if need be. The caller holds g.mu.
func (g *GPU) moduleOf(k *exec.Kernel) (*module, error) {
	m := g.modules[k.Source().Key()]
	if m != nil && !m.has(k.Symbol()) {
		// An instance of a template that the program was compiled without.
		key := k.Source().Key() + "\x00" + k.Symbol()
		if m = g.modules[key]; m == nil {
			return g.compileOne(k, key)
		}
	}
	if m == nil {
		return g.compileOne(k, k.Source().Key())
	}
	return m, nil
}

// compileOne compiles the source of k for k alone. The caller holds g.mu.
func (g *GPU) compileOne(k *exec.Kernel, key string) (*module, error) {
	image, err := g.compile(nvrtc.DefaultCache(), k.Source())
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", k.Name(), err)
	}
	return g.load(key, k.Symbol(), image)
}

// module is a compiled source on the GPU.
type module struct {
	*cuda.Module
	image nvrtc.Image    // which knows the names of its kernels
	ends  map[string]int // of their parameters
}

// load brings a compiled source to the GPU, to be found by its key. The caller holds g.mu.
func (g *GPU) load(key, name string, image nvrtc.Image) (*module, error) {
	m, err := g.Dev.LoadModule(image.Code())
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	g.modules[key] = &module{m, image, image.ParamsEnds()}
	return g.modules[key], nil
}

// end returns where the parameters of a kernel end; -1 if the code does not say.
func (m *module) end(name string) int {
	if n, known := m.ends[m.image.Kernel(name)]; known {
		return n
	}
	return -1
}

// has reports whether a kernel is in the program, unless it is a function without template
// arguments, which every program of its source has.
func (m *module) has(name string) bool {
	return !kernels.IsExpression(name) || m.image.Kernel(name) != name
}

// function returns a kernel whose code is on the GPU. If its code were loaded at its first launch,
// that could wait for a collective in flight.
func (m *module) function(name string) (*cuda.Function, error) {
	f, err := m.Function(m.image.Kernel(name))
	if err == nil {
		err = f.Load()
	}
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	return f, nil
}

func (g *GPU) compile(cache nvrtc.Cache, s *kernels.Source) (nvrtc.Image, error) {
	image, _, err := cache.Compile(s.Names[0], s.Text, s.Options(g.Capability()))
	return image, err
}
