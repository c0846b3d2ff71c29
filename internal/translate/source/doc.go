// Package source reads the Go source of packages that have kernels, with their types, and says
// whether the generated file is still true. It finds the slices that a kernel, or a loop over the
// elements of a row, uses only at its own index.
package source
