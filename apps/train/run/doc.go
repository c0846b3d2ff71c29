// Package run is a run of train, from its flags to its last checkpoint: the options, the check of
// memory, the loop of steps, the reports and the checkpoints.
package run
