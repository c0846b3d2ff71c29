// Command spmdgen translates kernels that are Go functions with the comment //spmd:kernel. Such a
// function computes one element, by its indices, and itself runs on the host. spmdgen writes CUDA
// C++ that does the same, and a typed function that launches it, into kernels_spmd.go beside it.
// Those of a test package x_test go into kernels_spmd_test.go.
//
//	//go:generate go run lockstep/spmd/spmdgen
//
// Its arguments are folders of packages; the default is its own folder.
package main

import (
	"fmt"
	"os"
)

func main() {
	dirs := os.Args[1:]
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	status := 0
	for _, dir := range dirs {
		if _, err := Write(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}
