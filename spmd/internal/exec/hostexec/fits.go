package hostexec

import (
	"fmt"
	"sync"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
)

// described are the parameters of kernels, by the keys of sources. They are nil if no C++ compiler
// understands the source.
var described sync.Map

// params returns the parameters of k in its CUDA source. They are not known without a source or a
// compiler, or if the source is for NVIDIA's alone.
func params(k *exec.Kernel) (list []kernels.Param, known bool) {
	if k.Source().Text == "" {
		return nil, false
	}
	key := k.Source().Key()
	all, ok := described.Load(key)
	if found, _ := all.(map[string][]kernels.Param); !ok || found != nil && found[k.Symbol()] == nil {
		source := *k.Source()
		for _, s := range kernels.All() {
			if s.Key() == key {
				source = s
			}
		}
		got, err := kernels.Describe(nvrtc.DefaultCache().Dir, kernels.EmulatedSource{
			Text: source.Text, Flags: source.AllFlags(), Names: source.Names, Headers: kernels.Headers})
		if err != nil {
			got = nil
		}
		described.Store(key, got)
		all = got
	}
	list, known = all.(map[string][]kernels.Param)[k.Symbol()]
	return list, known
}

// Fits says why arguments are not the parameters that k has in its CUDA source, as far as these are
// known.
func Fits(k *exec.Kernel, args []exec.Arg) error {
	found := k.Params().Load()
	if found == nil {
		list, _ := params(k)
		found = &list
		k.Params().Store(found)
	}
	list := *found
	if len(list) == 0 { // not known; or of none, of which there may be a form for each architecture
		return nil
	}
	if len(args) != len(list) {
		return fmt.Errorf("kernel %s: %d arguments, but its CUDA source has %d parameters",
			k.Name(), len(args), len(list))
	}
	for i := range args {
		if !fits(&args[i], list[i]) {
			return fmt.Errorf("kernel %s: argument %d is %s, but the parameter of its CUDA source is %s",
				k.Name(), i, args[i].String(), list[i].String())
		}
	}
	return nil
}

// kinds are the types of elements as emulate.Param has them.
var kinds = [elem.StoredTypes]byte{
	elem.Int8: 'i', elem.Uint8: 'i', elem.Int32: 'i', elem.Uint32: 'i', elem.Int64: 'i', elem.Uint64: 'i',
	elem.Float16: 'h', elem.BFloat16: 'b', elem.Float8E4M3: 'e', elem.Float8E5M2: 'w',
	elem.Float32: 'f', elem.Float64: 'f', elem.Complex64: 's', elem.Complex128: 's'}

// fits reports whether an argument is good for a parameter. It does not compare whether integers
// have a sign. Bytes may be anything, and floats of 16 and 8 bits integers of that size.
func fits(a *exec.Arg, p kernels.Param) bool {
	switch a.Kind {
	case exec.BufferArg:
		if !p.Pointer || p.Kind == 's' || p.Kind == 'v' || a.Type == elem.Uint8 {
			return p.Pointer
		}
		kind := kinds[a.Type]
		return a.Type.Size() == p.Size && (kind == p.Kind || p.Kind == 'i' && p.Size <= 2)
	case exec.NumberArg:
		if p.Pointer {
			return a.Type == elem.Uint64 // an address
		}
		return a.Type.Size() == p.Size && kinds[a.Type] == p.Kind
	default:
		return !p.Pointer && a.Bytes() == p.Size
	}
}
