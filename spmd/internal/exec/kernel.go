package exec

import (
	"strings"
	"sync"
	"sync/atomic"

	"lockstep/spmd/internal/kernels"
)

// Kernel is what a kernel runs: a CUDA source, and a function that does the same on the host.
// Programs have it as spmd.Kernel.
type Kernel struct {
	name   string
	symbol string
	source kernels.Source // of this kernel alone
	host   func(Args) error
	id     int
	params atomic.Pointer[[]kernels.Param]
	write  func() (uint64, bool)
}

// declared counts the kernels of this process.
var declared atomic.Int32

// unnamed leaves out of a symbol what is no part of a kernel's name.
var unnamed = strings.NewReplacer("_<>", "", "<>", "", "_<", "<")

// NewKernel declares a kernel by its symbol in the source.
func NewKernel(symbol string, source kernels.Source, host func(Args) error) *Kernel {
	name := strings.TrimSuffix(unnamed.Replace(symbol), "_")
	written := sync.OnceValues(func() (uint64, bool) { return source.Written(symbol) })
	return &Kernel{name: name, symbol: symbol, source: source, host: host, id: int(declared.Add(1)) - 1, write: written}
}

// Name returns the kernel's name.
func (k *Kernel) Name() string { return k.name }

// Symbol returns the kernel's name in the source.
func (k *Kernel) Symbol() string { return k.symbol }

// Source returns the source in CUDA C++; its Text is empty if there is none.
func (k *Kernel) Source() *kernels.Source { return &k.source }

// Host returns the function that does the same on the host.
func (k *Kernel) Host() func(Args) error { return k.host }

// ID returns the kernel's number in this process, from 0, in the order in which kernels were
// declared.
func (k *Kernel) ID() int { return k.id }

// Written returns the arguments that the kernel writes, as bits, as far as its CUDA source declares
// those const that it only reads; false if it has no source.
func (k *Kernel) Written() (args uint64, known bool) { return k.write() }

// Params has the parameters in the CUDA source, once tests have found them; nil if they are not
// known.
func (k *Kernel) Params() *atomic.Pointer[[]kernels.Param] { return &k.params }
