// Package kernels lists the CUDA sources of the program: what is declared in
// package variables is known before main starts, so that all of it is compiled
// once, at start, and a test can compile all of it without a GPU.
package kernels

import (
	"slices"
	"strings"
	"sync"

	"lockstep/cuda/nvrtc"
)

// Source is CUDA C++, how it is compiled, and the kernels declared from it.
type Source struct {
	Text         string
	Flags        []string // of NVRTC, definitions among them
	ArchSpecific bool     // for one architecture with what only it has
	Names        []string // extern "C" functions, and name expressions such as "scale<float>"
}

// Key is the same for sources that differ in their kernels only: these are one program.
func (s *Source) Key() string {
	if len(s.Flags) == 0 && !s.ArchSpecific {
		return s.Text
	}
	key := strings.Join(append([]string{s.Text}, s.Flags...), "\x00")
	if s.ArchSpecific {
		key += "\x00\x00"
	}
	return key
}

// Options are those of the compiler, for a compute capability.
func (s *Source) Options(capability int) nvrtc.Options {
	expressions := slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return !IsExpression(n) })
	return nvrtc.Options{Capability: capability, Headers: Headers, Flags: s.Flags, ArchSpecific: s.ArchSpecific, Names: expressions}
}

// IsExpression says whether the name of a kernel is a name expression of NVRTC.
func IsExpression(name string) bool { return strings.Contains(name, "<") }

// Headers are what any source may include, by name. Set by package spmd.
var Headers = map[string]string{}

var (
	mu   sync.Mutex
	list []Source
)

// Add notes the kernels of a source. Without text there is nothing to compile.
func Add(s Source) {
	if s.Text == "" {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	for i := range list {
		if list[i].Key() == s.Key() {
			for _, name := range s.Names {
				if !slices.Contains(list[i].Names, name) { // declared in a function, it comes again
					list[i].Names = append(list[i].Names, name)
				}
			}
			return
		}
	}
	s.Names = slices.Clone(s.Names)
	list = append(list, s)
}

// All returns the sources in the order of their first kernel.
func All() []Source {
	mu.Lock()
	defer mu.Unlock()
	all := slices.Clone(list)
	for i := range all {
		all[i].Names = slices.Clone(all[i].Names) // Add may go on
	}
	return all
}
