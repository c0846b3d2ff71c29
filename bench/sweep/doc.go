// Package sweep is bench sweep: it measures collectives by size, and the applications by ranks,
// against peers.
package sweep
