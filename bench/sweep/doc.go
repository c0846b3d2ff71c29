// Package sweep is bench sweep and bench model. The first measures collectives by size and
// applications by ranks, in turn with the peers that the machine has. The second fits a model of
// time to what was measured.
package sweep
