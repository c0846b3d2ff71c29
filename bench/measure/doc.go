// Package measure has what every measurement of bench needs: the programs that run under mpirun and
// time calls and collectives, the Harness that runs them in turn with those of peers, and the rows
// of bench/results.
package measure
