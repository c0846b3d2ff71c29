package runfiles

// These are names of files in the folder of a run.
const (
	Starts = "starts.jsonl" // a line for each start
	Log    = "log.jsonl"    // a line for each measurement, as --json has it
)
