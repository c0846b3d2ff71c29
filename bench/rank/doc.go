// Package rank is the part of bench that runs under mpirun: it times calls of the framework on the
// ranks of a job.
package rank
