// Package exec is where commands run: queues, the points in them that others wait for,
// and the memory that commands use. It knows neither CUDA nor MPI.
package exec
