package spmd

import (
	"time"

	"github.com/spf13/pflag"

	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/world"
)

// Config has the settings of the common flags; Main fills it from the command line. An empty string
// is the default of its flag.
type Config struct {
	Device      string // auto, cuda or host
	Collectives string // auto, nccl, mpi, mpi-peer, mpi-aware or host-staged
	JSON        string // file that Emit appends to; "-" is standard output
	LogLevel    string // trace, debug, info, warn or error
	LogFormat   string // auto, console or json
	LogRanks    string // ranks that log below error: "0", "all" or a list
	Seed        uint64
	Timeout     time.Duration // of a collective, the start and the end; 0 is 5 minutes
	Symmetric   string        // auto, always or never: kernels on symmetric memory beside plain NCCL
	Check       string        // off, sample or on: compare calls over the ranks; bounds: indices in kernels
	Ranks       int           // that Main runs as goroutines of this process, as Local does, if more than one
	Summary     string        // auto (after 10 s of Main), on or off: a table of where the time went, at the end
	Trace       string        // file for what each rank did and when, written at the end; "-" is standard output
	Overwrite   bool          // replace existing files: Trace, and files that the program writes
	Dashboard   string        // [HOST]:PORT of package dashboard's page; without HOST for its own machine alone
}

// forJob returns the configuration as package job has it.
func (c *Config) forJob() *job.Flags { return (*job.Flags)(c) }

// start returns how to open a world. The flags fs have set the configuration; they may be nil.
func (c *Config) start(fs *pflag.FlagSet) world.Start {
	return world.Start{Config: *c.forJob(), Flags: fs, Fill: fillKernel.in()}
}

// MayDiffer says that ranks may be started with different values of these flags of fs, such as a
// folder on each node's own disk. Of the common flags --json and the --log flags may differ anyway.
// All others must be the same on every rank. Else Main ends the job with status 2, and one line
// that names the flag. MayDiffer panics if fs lacks one.
func MayDiffer(fs *pflag.FlagSet, names ...string) { job.MayDiffer(fs, names...) }
