// Command spmdgen translates kernels that are Go functions with the comment //spmd:kernel. It
// writes their CUDA source, and the functions that launch them, into kernels_spmd.go beside them.
// Those of a test package x_test go into kernels_spmd_test.go.
//
//	//go:generate go run lockstep/spmd/spmdgen
//
// Its arguments are folders of packages; the default is its own folder.
package main

import (
	"fmt"
	"os"

	"lockstep/internal/translate"
)

func main() {
	dirs := os.Args[1:]
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	status := 0
	for _, dir := range dirs {
		if _, err := translate.Write(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}
