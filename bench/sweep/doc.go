// Package sweep is bench sweep: collectives by size, applications by ranks, turn and turn about
// with the peers that the machine has.
package sweep
