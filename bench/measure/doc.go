// Package measure is the parts of bench that run under mpirun. They time the framework's calls, and
// collectives by size, on the ranks of a job. They check results before and after.
package measure
