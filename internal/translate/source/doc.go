// Package source reads the Go source of packages that have kernels, with their types, and says
// whether what was made of it is still true.
package source
