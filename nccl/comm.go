package nccl

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/cuda"
	"lockstep/internal/ccall"
)

// Config sets a communicator's use of the machine. NCCL and its environment variables decide zero
// fields; for Split the parent does.
//
// NCCL reads the size bytes of ncclConfig_t that its own version knows, and sets fields newer than
// the version field to their defaults (init.cc, parseCommConfig, 2.18 to 2.30). So one struct
// serves all versions. Source: nccl.h, ncclConfig_t.
type Config struct {
	MinCTAs, MaxCTAs int // bounds of the blocks that a collective occupies on the GPU
	CGAClusterSize   int // blocks in a cluster on compute capability 9 and later; negative for none
	TrafficClass     int // of the network; needs 2.26
	NVLSCTAs         int // blocks of NVLink-multicast collectives; needs 2.27
	CTAPolicy        int // 1 saves blocks, 2 uses none if copy engines can do the work; needs 2.27, 2 needs 2.28
	NetName          string
	CommName         string // for NCCL's logs; left out before 2.27

	// SplitShare lets the communicators that are split off this one share its channels and its
	// memory. These are most of the 0.5 to 1.6 GB that one costs. They then share its fate: an
	// Abort of one aborts all. NCCL reads it from the parent (init.cc, ncclCommInitChildComm), so
	// it belongs into the configuration of Init, not of Split.
	SplitShare bool

	// UnmixedGraphs promises that streams order the collectives of this communicator, and of those
	// that share its resources. No such collective is under way on the GPU while another is that
	// belongs to another graph, or to none. It also promises that none of them goes through NCCL's
	// network threads, which no stream orders.
	//
	// NCCL then leaves out the events by which it orders them itself. They would be around each
	// collective of a graph and, from the first capture on, around each call. Before 2.29 that is a
	// setting of the process, NCCL_GRAPH_MIXING_SUPPORT, which the first Init makes if it is not
	// set.
	UnmixedGraphs bool

	// NonBlocking makes a communicator whose calls can be given up cleanly: Init at its deadline
	// frees everything, and Abort ends a call that hangs on another goroutine. Without it
	// collectives run at the speed of C, and an Init or Split that passed its deadline keeps a
	// thread until the process ends.
	//
	// Its price is a thread that NCCL starts and ends for every single collective or group
	// (group.cc, ncclGroupEndInternal: pthread_create if blocking is 0). The call then waits for
	// the work to be in the stream. Measured on two H200s with NCCL 2.28.3, an all-reduce of one
	// element took 52 us instead of 7.
	NonBlocking bool
}

// maxCTAs is the largest number of blocks that any version knows (device.h, MAXCHANNELS); NCCL cuts
// it to its own.
const maxCTAs = 64

// check refuses settings that the version at hand would silently leave out.
func (c *Config) check() error {
	for _, x := range []struct {
		name string
		set  bool
		need int
	}{
		{"Config.TrafficClass", c.TrafficClass != 0, 22600},
		{"Config.NVLSCTAs", c.NVLSCTAs != 0, 22700},
		{"Config.CTAPolicy", c.CTAPolicy != 0, 22700},
	} {
		if err := needs(x.name, x.need, !x.set || library.version >= x.need); err != nil {
			return err
		}
	}
	return nil
}

// setMixing makes the setting of UnmixedGraphs for a version that reads no field for it.
func (c *Config) setMixing() error {
	const name = "NCCL_GRAPH_MIXING_SUPPORT"
	settingMixing.Lock() // or another rank of the process might set it while NCCL reads the environment
	defer settingMixing.Unlock()
	if !c.UnmixedGraphs || library.version >= 22900 || os.Getenv(name) != "" {
		return nil
	}
	return os.Setenv(name, "0")
}

var settingMixing sync.Mutex

// over fills open fields of c from the parent.
func (c Config) over(parent Config) Config {
	number := func(v *int, p int) {
		if *v == 0 {
			*v = p
		}
	}
	number(&c.MinCTAs, parent.MinCTAs)
	number(&c.MaxCTAs, parent.MaxCTAs)
	number(&c.CGAClusterSize, parent.CGAClusterSize)
	number(&c.TrafficClass, parent.TrafficClass)
	number(&c.NVLSCTAs, parent.NVLSCTAs)
	number(&c.CTAPolicy, parent.CTAPolicy)
	if c.NetName == "" {
		c.NetName = parent.NetName
	}
	if c.CommName == "" {
		c.CommName = parent.CommName
	}
	c.SplitShare = c.SplitShare || parent.SplitShare
	c.UnmixedGraphs = c.UnmixedGraphs || parent.UnmixedGraphs
	c.NonBlocking = c.NonBlocking || parent.NonBlocking
	return c
}

// Comm is a rank's place in a communicator. Close it when every rank is done with it, and Abort it
// after a failure.
type Comm struct {
	link       link
	dev        *cuda.Device
	rank, size int
	cfg        Config

	stuck  atomic.Int32 // calls given up at a deadline that have not come back
	broken atomic.Bool  // an error was met after which the ranks cannot end together

	mu        sync.Mutex // guards the fields below, and AsyncError against the end of the communicator
	finalized bool
	over      bool
}

// Init makes the communicator that id names, as rank of size, on d.
//
// Collective: all ranks must call it, each with its own rank and device. It blocks the host until
// all have.
//
// It returns when ctx is done even if a rank never comes. The error then wraps ctx's, and says what
// was waited for and how long. A blocking NCCL cannot be called off (an abort from another thread
// frees memory that the call still uses). So the call then goes on in a goroutine of its own, and
// aborts the communicator should it come about after all. Source: nccl.h, ncclCommInitRankConfig.
func Init(ctx context.Context, d *cuda.Device, id ID, rank, size int, cfg Config) (*Comm, error) {
	if err := Load(); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	const op = "ncclCommInitRankConfig"
	c := &Comm{dev: d, rank: rank, size: size, cfg: cfg, link: makeLink(d)}
	if size < 1 || rank < 0 || rank >= size {
		return nil, c.refused(op, "rank %d of %d ranks", rank, size)
	}
	if err := cfg.setMixing(); err != nil {
		return nil, err
	}
	sysSetRank(&c.link, rank, size)
	sys := sysConfig(&cfg, library.version)
	waitsFor := fmt.Sprintf("all %d ranks to initialise", size)
	if !cfg.NonBlocking {
		return c.create(ctx, op, waitsFor, c, func() (uintptr, int) { return sysInit(&c.link, id, sys) })
	}
	start := time.Now()
	if ctx.Err() != nil {
		return nil, c.late(ctx, op, waitsFor, start)
	}
	comm, status := sysInit(&c.link, id, sys)
	sysSetComm(&c.link, comm, cfg.NonBlocking)
	tick := time.NewTicker(time.Millisecond / 2)
	defer tick.Stop()
	for status == statusInProgress {
		select {
		case <-ctx.Done():
			err := c.late(ctx, op, waitsFor, start)
			if abort := c.Abort(); abort != nil {
				err.Detail += "; " + abort.Error()
			}
			return nil, err
		case <-tick.C:
			status = sysInitPoll(&c.link)
		}
	}
	if status != statusOK {
		err := c.failed(op, status, "")
		_ = c.Abort() // frees what there is; its error would say the same again
		return nil, err
	}
	return c, nil
}

// create runs call, which makes the communicator for c, and gives up waiting when ctx is done. The
// call is made on the communicator from, which is left with a call under way.
func (c *Comm) create(ctx context.Context, op, waitsFor string, from *Comm, call func() (uintptr, int)) (*Comm, error) {
	type made struct {
		comm   uintptr
		status int
	}
	start := time.Now()
	if ctx.Err() != nil {
		return nil, from.late(ctx, op, waitsFor, start)
	}
	done := make(chan made) // unbuffered: either the waiter takes the communicator, or the goroutine keeps it
	from.stuck.Add(1)
	go func() {
		comm, status := call()
		from.stuck.Add(-1)
		select {
		case done <- made{comm, status}:
		case <-ctx.Done():
			// Nobody else will have it, and the other ranks shall not wait in it. There is nobody
			// to tell of an error.
			if status == statusOK && comm != 0 {
				sysSetComm(&c.link, comm, c.cfg.NonBlocking)
				_ = sysAbort(&c.link)
			}
		}
	}()
	select {
	case m := <-done:
		if m.status != statusOK {
			return nil, from.failed(op, m.status, "")
		}
		if m.comm == 0 {
			return nil, nil
		}
		sysSetComm(&c.link, m.comm, c.cfg.NonBlocking)
		return c, nil
	case <-ctx.Done():
		return nil, from.late(ctx, op, waitsFor, start)
	}
}

// late returns the error of a call that was given up.
func (c *Comm) late(ctx context.Context, op, waitsFor string, start time.Time) *ccall.Error {
	c.broken.Store(true)
	return &ccall.Error{Op: op, Rank: c.rank, At: ccall.At(), Err: context.Cause(ctx),
		Detail: fmt.Sprintf("waited %.1f s for %s", time.Since(start).Seconds(), waitsFor)}
}

// Split makes a communicator of the ranks that gave the same color, ordered by key and then by rank
// in c. A rank with a negative color takes part and gets nil.
//
// Collective: all ranks of c must call it, with nothing else under way on c. It blocks the host
// until they have, or ctx is done; then c is good for Abort only. SplitShare at c's Init says
// whether resources are shared. Source: nccl.h, ncclCommSplit.
func (c *Comm) Split(ctx context.Context, color, key int, cfg Config) (*Comm, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	color = max(color, -1) // NCCL_SPLIT_NOCOLOR
	return c.child(ctx, "ncclCommSplit", cfg,
		func(sys config) (uintptr, int) { return sysSplit(&c.link, color, key, sys) })
}

func (c *Comm) child(ctx context.Context, op string, cfg Config, call func(config) (uintptr, int)) (*Comm, error) {
	cfg = cfg.over(c.cfg)
	sys := sysConfig(&cfg, library.version)
	n := &Comm{dev: c.dev, cfg: cfg, link: makeLink(c.dev)}
	n, err := n.create(ctx, op, fmt.Sprintf("the ranks of a communicator of %d", c.size), c,
		func() (uintptr, int) { return call(sys) })
	if n == nil || err != nil {
		return nil, err
	}
	rank, status := sysUserRank(&n.link)
	op = "ncclCommUserRank"
	if status == statusOK {
		n.rank = rank
		op = "ncclCommCount"
		n.size, status = sysCount(&n.link)
	}
	if status != statusOK {
		err = n.failed(op, status, "")
		_ = n.Abort() // the first error says more
		return nil, err
	}
	return n, nil
}

// Rank returns the caller's rank in c.
func (c *Comm) Rank() int { return c.rank }

// Size returns the number of ranks in c.
func (c *Comm) Size() int { return c.size }

// Device returns the GPU that c works on.
func (c *Comm) Device() *cuda.Device { return c.dev }

// AsyncError returns the error that c met after a call had returned, such as a rank lost over the
// network, or nil. It does not block, and may be called while another goroutine is in a call of c.
// After an error c is good for Abort only. Source: nccl.h, ncclCommGetAsyncError.
func (c *Comm) AsyncError() error {
	const op = "ncclCommGetAsyncError"
	c.mu.Lock()
	defer c.mu.Unlock()
	result, status := sysAsyncError(&c.link)
	if status != statusOK {
		return c.failed(op, status, "")
	}
	if result != statusOK && result != statusInProgress {
		c.broken.Store(true)
		return c.failed(op, result, "reported by an earlier operation")
	}
	return nil
}

// Abort ends c's work on the GPU and frees c, without the other ranks. It may be called while
// another goroutine is in a call of c. Later calls of c fail, but for Abort and Close, which then
// do nothing.
//
// A call of a blocking communicator that was given up at a deadline may still be under way. NCCL
// would free memory that the call uses. c is then left to the end of the process, and the error
// says so. Source: nccl.h, ncclCommAbort.
func (c *Comm) Abort() error {
	if left, err := c.end("ncclCommAbort"); !left {
		return err
	}
	if status := sysAbort(&c.link); status != statusOK {
		return c.failed("ncclCommAbort", status, "")
	}
	return nil
}

// end takes the communicator out of use, once, and says whether there is something left to free.
func (c *Comm) end(op string) (left bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false, nil
	}
	c.over = true
	if c.stuck.Load() > 0 && !c.cfg.NonBlocking {
		return false, &ccall.Error{Op: op, Rank: c.rank, At: ccall.At(), Err: ErrInvalidUsage,
			Detail: "a call that was given up is still under way: the communicator is left to the end of the process"}
	}
	return true, nil
}

// Finalize waits until everything issued on c is done on every rank, as far as NCCL needs it, and
// ends its connections. Only Close and Abort are legal afterwards. A second Finalize does nothing.
//
// Collective: all ranks of c should call it. It blocks the host, at most until ctx is done; the
// error then wraps ctx's. It waits for graphs that hold collectives of c, for ever (init.cc,
// commDestroySync: localPersistentRefs): close them first. Source: nccl.h, ncclCommFinalize.
func (c *Comm) Finalize(ctx context.Context) error {
	const op = "ncclCommFinalize"
	c.mu.Lock()
	first := !c.finalized && !c.over
	c.finalized = true
	c.mu.Unlock()
	if !first {
		return nil
	}
	start := time.Now()
	done := make(chan int, 1)
	c.stuck.Add(1)
	go func() {
		status := sysFinalize(&c.link)
		c.stuck.Add(-1)
		done <- status
	}()
	select {
	case status := <-done:
		if status != statusOK {
			return c.failed(op, status, "")
		}
		return nil
	case <-ctx.Done():
		return c.late(ctx, op, fmt.Sprintf("the work of %d ranks to end", c.size), start)
	}
}

// Close finalises c, if Finalize has not, and frees it. A second Close, and one after Abort, does
// nothing. Once c has met an error after which the ranks cannot end together, Close aborts. Every
// error but a wrong argument is such.
//
// Collective, and blocking the host, as Finalize. Close registrations and windows of c first, and
// graphs that hold its collectives; streams may be closed before or after, memory after. Source:
// nccl.h, ncclCommDestroy.
func (c *Comm) Close() error {
	if c.broken.Load() {
		return c.Abort()
	}
	if err := c.Finalize(context.Background()); err != nil {
		_ = c.Abort() // the first error says more
		return err
	}
	if left, err := c.end("ncclCommDestroy"); !left {
		return err
	}
	if status := sysDestroy(&c.link); status != statusOK {
		return c.failed("ncclCommDestroy", status, "")
	}
	return nil
}
