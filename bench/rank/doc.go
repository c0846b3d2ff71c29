// Package rank is bench as its runner starts it under mpirun: it times calls of the
// framework on the ranks of a job.
package rank
