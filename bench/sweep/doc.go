// Package sweep is bench sweep. It measures collectives by size and applications by ranks, in turn
// with the peers that the machine has.
package sweep
