// Package runlog has the names of what the folder of a run holds, for who writes it and who reads it.
package runlog

// Names of files in the folder of a run.
const (
	Starts = "starts.jsonl" // a line for each start
	Log    = "log.jsonl"    // a line for each measurement, as --json has it
)
