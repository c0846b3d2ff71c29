package job

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/internal/readable"
	"lockstep/spmd/internal/dashboard"
)

// Flags is the values of the common flags. spmd.Config has the same fields and says what they
// mean.
type Flags struct {
	Device      string // auto, cuda, host or emulate
	Collectives string // auto, nccl, mpi, mpi-peer, mpi-aware or host-staged
	JSON        string // file that Emit appends to; "-" is standard output
	LogLevel    string // trace, debug, info, warn or error
	LogFormat   string // auto, console or json
	LogRanks    string // ranks that log below error: "0", "all" or a list
	Seed        uint64
	Timeout     time.Duration // of a collective, the start and the end; 0 is 5 minutes
	Symmetric   string        // auto, always or never
	Check       string        // off, sample, on or bounds
	Ranks       int           // that are goroutines of this process, if there is more than one
	Summary     string        // auto, on or off
	Trace       string        // file
	Overwrite   bool          // a file that is there is replaced
	Dashboard   string        // [HOST]:PORT
}

const (
	defaultTimeout = 5 * time.Minute
	leastTimeout   = 100 * time.Millisecond
)

// Limit is --timeout, or its default.
func (c *Flags) Limit() time.Duration {
	if c.Timeout == 0 {
		return defaultTimeout
	}
	return c.Timeout
}

// CheckModes are the values of --check.
var CheckModes = []string{"off", "sample", "on", "bounds"}

// Compares returns the place of --check among the modes that compare calls; 0 for a mode that
// compares none.
func (c *Flags) Compares() int {
	if c.Check == "bounds" {
		return 0
	}
	return slices.Index(CheckModes, c.Check)
}

// OnHost reports whether --device asks for host memory.
func (c *Flags) OnHost() bool { return c.Device == "host" || c.Device == "emulate" }

// throughMPI reports whether --collectives asks for MPI.
func (c *Flags) throughMPI() bool { return strings.HasPrefix(c.Collectives, "mpi") }

// Flags adds the common flags to an application's. collectives are the values that --collectives
// may have.
func (c *Flags) Flags(fs *pflag.FlagSet, collectives []string) {
	fs.StringVar(&c.Device, "device", "auto",
		"where buffers live: auto, cuda or host; emulate is host, with kernels run from their CUDA "+
			"source, slowly: for tests")
	fs.StringVar(&c.Collectives, "collectives", "auto",
		"which library moves data between ranks; auto takes the fastest that is here: "+
			strings.Join(collectives, ", ")+"; mpi is the best of what does without NCCL, with mpi-peer "+
			"GPUs reach each other, with mpi-aware MPI takes GPU memory, and with host-staged ranks may "+
			"share a GPU")
	fs.StringVar(&c.Symmetric, "symmetric", "auto",
		"make small collectives between GPUs fast: auto takes own kernels, and NCCL's symmetric ones on "+
			"AllocSymmetric's memory, where they are faster; always takes symmetric ones at all sizes, "+
			"also over NVLink between nodes; never takes neither")
	fs.IntVar(&c.Ranks, "ranks", 1, "run so many ranks as goroutines of this process, each with a GPU of "+
		"its own or all on the host, without mpirun")
	fs.StringVar(&c.JSON, "json", "", "append results to `FILE`, one JSON object a line (- is standard output)")
	fs.StringVar(&c.LogLevel, "log-level", "info", "trace, debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "auto",
		"auto, console or json; auto is console, since under mpirun no rank sees a terminal")
	fs.StringVar(&c.LogRanks, "log-ranks", "0", "ranks that log: 0, all, or a list such as 0,3,8-11")
	fs.Uint64Var(&c.Seed, "seed", 42, "seed of everything random")
	fs.DurationVar(&c.Timeout, "timeout", defaultTimeout,
		"how long a collective, the start and the end may take, such as 90s or 10m; then the job ends "+
			"and says who is missing where")
	fs.StringVar(&c.Check, "check", "off", "compare each collective and message over the ranks before it "+
		"runs: off, sample (one of 64) or on, which also finds races between streams; bounds instead finds indices "+
		"out of range in kernels in Go, on a GPU too")
	fs.Lookup("check").NoOptDefVal = "on"
	fs.StringVar(&c.Summary, "summary", "auto",
		"say at the end where the time went: on, off, or auto, which does after 10 s")
	fs.StringVar(&c.Trace, "trace", "", "write what each rank did and when to `FILE`, for "+
		"ui.perfetto.dev; compressed where the name ends in .gz")
	fs.BoolVar(&c.Overwrite, "overwrite", false, "replace a file that is there, as that of --trace")
	output := []string{"summary", "trace", "overwrite", "json", "log-level", "log-format", "log-ranks"}
	if dashboard.Serve != nil {
		fs.StringVar(&c.Dashboard, "dashboard", "",
			"serve a page that shows the run while it goes on, and /metrics, at `[HOST]:PORT` of rank 0; "+
				"without HOST its own machine alone gets it")
		output = append(output, "dashboard")
	}
	MayDiffer(fs, "json", "log-level", "log-format", "log-ranks")
	cli.Group(fs, cli.Framework, "device", "collectives", "symmetric", "ranks", "seed", "timeout", "check")
	cli.Group(fs, cli.Output, output...)
	for _, f := range c.choices(collectives) {
		cli.Choices(fs, f.flag, f.known...)
	}
}

// choice is a flag with a list of values.
type choice struct {
	flag    string
	value   *string
	initial string
	known   []string
}

// choices are the flags with a list of values. collectives are the values that --collectives may
// have.
func (c *Flags) choices(collectives []string) []choice {
	return []choice{
		{"device", &c.Device, "auto", []string{"auto", "cuda", "host", "emulate"}},
		{"collectives", &c.Collectives, "auto", collectives},
		{"symmetric", &c.Symmetric, "auto", []string{"auto", "always", "never"}},
		{"check", &c.Check, "off", CheckModes},
		{"summary", &c.Summary, "auto", []string{"auto", "on", "off"}},
		{"log-level", &c.LogLevel, "info", []string{"trace", "debug", "info", "warn", "error"}},
		{"log-format", &c.LogFormat, "auto", []string{"auto", "console", "json"}},
	}
}

// Complete sets empty fields to their defaults, and refuses values that no machine could satisfy.
// collectives are the values that --collectives may have.
func (c *Flags) Complete(collectives []string) error {
	if c.Collectives == "mpi-staged" {
		return errors.New("--collectives mpi-staged is gone: host-staged is the way through host memory")
	}
	if c.Check == "both" {
		return errors.New("--check both is gone: run again with --collectives host-staged, and compare what comes out")
	}
	for _, f := range c.choices(collectives) {
		*f.value = cmp.Or(*f.value, f.initial)
		if !slices.Contains(f.known, *f.value) {
			return fmt.Errorf("--%s %s: want %s", f.flag, *f.value, strings.Join(f.known, ", "))
		}
	}
	if c.OnHost() && c.Collectives == "nccl" {
		return fmt.Errorf("--collectives nccl does not go with --device %s: NCCL moves GPU memory only", c.Device)
	}
	without := c.throughMPI() || c.Collectives == "host-staged" // NCCL
	if c.OnHost() && without && c.Collectives != "mpi" {
		return fmt.Errorf("--collectives %s does not go with --device %s: it is a way for GPU memory",
			c.Collectives, c.Device)
	}
	if err := c.checkRanks(); err != nil {
		return err
	}
	if c.Timeout < 0 || c.Timeout > 0 && c.Timeout < leastTimeout {
		return fmt.Errorf("--timeout %v: must be at least %v", c.Timeout, leastTimeout)
	}
	if c.Dashboard != "" {
		if _, err := dashboard.Address(c.Dashboard); err != nil {
			return err
		}
	}
	_, err := parseRanks(c.LogRanks)
	return err
}

// mostRanks is the most goroutines that make sense as ranks: each has desks for all others.
const mostRanks = 1024

// checkRanks refuses a number of ranks, and settings that do not go with ranks that are goroutines.
func (c *Flags) checkRanks() error {
	if c.Ranks < 0 || c.Ranks > mostRanks {
		return fmt.Errorf("--ranks %d: want 1 to %d", c.Ranks, mostRanks)
	}
	if c.Ranks <= 1 {
		return nil
	}
	if c.throughMPI() {
		return fmt.Errorf("--collectives %s does not go with --ranks %d: MPI joins processes, not ranks "+
			"that are goroutines of one", c.Collectives, c.Ranks)
	}
	return nil
}

// parseRanks reads a list of ranks; nil is all of them.
func parseRanks(list string) (map[int]bool, error) {
	switch list {
	case "":
		return map[int]bool{0: true}, nil
	case "all":
		return nil, nil
	}
	const most = 1 << 20 // beyond any job, and few enough to list
	listed := 0
	ranks := map[int]bool{}
	for _, part := range strings.Split(list, ",") {
		lo, hi, ok := readable.Span(part)
		if !ok || hi >= most || hi-lo >= most-listed {
			return nil, fmt.Errorf("--log-ranks %s: want 0, all, or a list such as 0,3,8-11", list)
		}
		listed += hi - lo + 1
		for r := lo; r <= hi; r++ {
			ranks[r] = true
		}
	}
	return ranks, nil
}

// Logger returns the logger of a rank. Ranks that are not to log still log errors.
func (c *Flags) Logger(rank, size int, out *os.File) zerolog.Logger {
	var w io.Writer = out
	if out == os.Stderr { // where a live line may stand
		w = cli.Stderr
		if size > 1 && rank != 0 && cli.Columns() > 0 {
			cli.Stderr.Beside()
		}
	}
	if c.LogFormat != "json" {
		w = newConsole(w, out)
	}
	level, err := zerolog.ParseLevel(c.LogLevel)
	if err != nil || c.LogLevel == "" {
		level = zerolog.InfoLevel
	}
	ranks, _ := parseRanks(c.LogRanks) // checked before
	if ranks != nil && !ranks[rank] {
		level = max(level, zerolog.ErrorLevel)
	}
	ctx := zerolog.New(w).Level(level).With().Timestamp()
	if size > 1 {
		ctx = ctx.Int("rank", rank)
	}
	return ctx.Logger()
}
