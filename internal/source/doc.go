// Package source reads the Go source of packages that have kernels, with their types, and says
// whether the generated file is still true.
package source
