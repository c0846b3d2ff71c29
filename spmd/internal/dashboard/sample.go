// Package dashboard shows a job while it runs: rank 0 serves a page, and the same numbers for Prometheus. Each rank makes a
// Sample of itself now and then; a Board on rank 0 keeps the last ones of every rank. What carries them there is no matter of
// this package, nor what the numbers of the program mean.
package dashboard

// Sample is what one rank says of itself at one time. Counts and times are those since its start.
type Sample struct {
	Rank    int      `json:"rank"`
	Node    int      `json:"node"`
	Host    string   `json:"host"`
	At      int64    `json:"at"`      // ns by a clock of the rank that only moves forward
	Phases  []Phase  `json:"phases"`  // what its time goes into, in the order in which they are shown
	Regions []Phase  `json:"regions"` // parts of the program that it has named
	Pools   []Pool   `json:"pools"`
	Process int      `json:"process"` // bytes of memory that the process has
	Free    int      `json:"free"`    // bytes of memory that processes of the node can still have
	Total   int      `json:"total"`   // bytes of memory of the node
	GPU     *Reading `json:"gpu,omitempty"`
}

// Phase is what a rank's time goes into.
type Phase struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes,omitempty"`
	Nanos int64  `json:"ns"`
	Meets bool   `json:"meets,omitempty"` // it is known how long the rank waits for others in it
}

// Pool is memory of one kind that buffers have.
type Pool struct {
	Kind string `json:"kind"`
	Used int    `json:"used"` // bytes
	Peak int    `json:"peak"` // bytes, the most at one time
}

// Reading is how a GPU is. What is not known is 0.
type Reading struct {
	Name        string   `json:"name"`
	MemoryUsed  int      `json:"used"`  // bytes, by all processes
	MemoryTotal int      `json:"total"` // bytes
	Clock       int      `json:"clock"` // MHz
	MostClock   int      `json:"most_clock"`
	MemoryClock int      `json:"memory_clock"`
	Power       float64  `json:"power"` // W
	PowerLimit  float64  `json:"power_limit"`
	Temperature int      `json:"temperature"` // degrees Celsius
	Busy        int      `json:"busy"`        // percent
	Slowed      []string `json:"slowed,omitempty"`
}

// Facts are what does not change about a job.
type Facts struct {
	Program     string `json:"program"`
	Ranks       int    `json:"ranks"` // the Board knows
	Nodes       int    `json:"nodes"`
	Device      string `json:"device"`
	Collectives string `json:"collectives"`
}
