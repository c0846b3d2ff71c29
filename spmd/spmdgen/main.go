// Command spmdgen writes, for kernels that are Go functions with the comment //spmd:kernel, the CUDA source that does the
// same and the functions that launch them, into the file kernels_spmd.go beside them.
//
//	//go:generate go run lockstep/spmd/spmdgen
//
// Its arguments are folders of packages, by default the one that it is called in.
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
