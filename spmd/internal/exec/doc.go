// Package exec runs commands. It has queues, the points in them that others wait for, and the
// memory of commands. It knows neither CUDA nor MPI.
package exec
