// Package kernels lists the CUDA sources of the program: what is declared in
// package variables is known before main starts, so that all of it is compiled
// once, at start, and a test can compile all of it without a GPU.
package kernels

import (
	"slices"
	"sync"
)

// Source is CUDA C++ and the kernels declared from it.
type Source struct {
	Text  string
	Names []string
}

// Headers are what any source may include, by name. Set by package spmd.
var Headers = map[string]string{}

var (
	mu   sync.Mutex
	list []Source
)

// Add notes a kernel. Without source there is nothing to compile.
func Add(name, text string) {
	if text == "" {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	for i := range list {
		if list[i].Text == text {
			if !slices.Contains(list[i].Names, name) { // declared in a function, it comes again
				list[i].Names = append(list[i].Names, name)
			}
			return
		}
	}
	list = append(list, Source{text, []string{name}})
}

// All returns the sources in the order of their first kernel.
func All() []Source {
	mu.Lock()
	defer mu.Unlock()
	return append([]Source(nil), list...)
}
