// Package dashboard keeps what is known of a job while it runs. Each rank makes a Sample of itself
// now and then; a Board on rank 0 keeps the last ones of every rank. Others carry them there, and
// know what the numbers of the program mean. lockstep/spmd/dashboard serves a Board as a page.
package dashboard

// Server serves a Board.
type Server interface {
	URL() string  // of the page
	Close() error // tells the viewers that the job has ended, and ends
}

// Serve serves a Board until Close. address is as Address returns it. It is nil in a program that
// does not import lockstep/spmd/dashboard.
var Serve func(b *Board, address, token string) (Server, error)

// Sample is a rank's account of itself at one time. Counts and times are those since its start.
type Sample struct {
	Rank    int      `json:"rank"`
	Node    int      `json:"node"`
	Host    string   `json:"host"`
	At      int64    `json:"at"`      // ns by a clock of the rank that only moves forward
	Phases  []Phase  `json:"phases"`  // uses of its time, in the order in which they are shown
	Regions []Phase  `json:"regions"` // parts of the program that it has named
	Pools   []Pool   `json:"pools"`
	Process int      `json:"process"` // bytes of memory that the process has
	Free    int      `json:"free"`    // bytes of memory that processes of the node can still have
	Total   int      `json:"total"`   // bytes of memory of the node
	GPU     *Reading `json:"gpu,omitempty"`
}

// Phase is one use of a rank's time.
type Phase struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes,omitempty"`
	Nanos int64  `json:"ns"`
	Meets bool   `json:"meets,omitempty"` // it is known how long the rank waits for others in it
}

// Pool is the memory of one kind of buffers.
type Pool struct {
	Kind string `json:"kind"`
	Used int    `json:"used"` // bytes
	Peak int    `json:"peak"` // bytes, the most at one time
}

// Reading is the state of a GPU. Unknown numbers are 0.
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

// Facts do not change during a job.
type Facts struct {
	Program     string `json:"program"`
	Ranks       int    `json:"ranks"` // the Board knows
	Nodes       int    `json:"nodes"`
	Device      string `json:"device"`
	Collectives string `json:"collectives"`
}
