// Package run is a run of train from its flags to its last checkpoint: what the user asked for,
// whether it fits into memory, the loop of steps, and what is reported and saved of them.
package run
