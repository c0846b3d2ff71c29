// Package watch is the control channel of a job: a small TCP network beside MPI, which goes
// on working when MPI, CUDA or the program hangs. It tells every rank why the job ends, and
// asks every rank what it does.
//
// Rank 0 is the hub and rank 1 its stand-in. Every rank keeps a connection to both, proved from
// both sides with a key that travelled by MPI; what comes later on the connection is not
// encrypted. A connection that ends without goodbye is a death, and the job's end. A rank that is
// merely silent, as a stopped process is, stays connected. In a large job the signs of life of a
// node come from one of its ranks.
//
// Nothing here calls MPI or CUDA, waits without a deadline, prints, or ends the process.
package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Hello says who a rank is.
type Hello struct {
	Rank int    `json:"rank"`
	Node int    `json:"node"`
	PID  int    `json:"pid"`
	Host string `json:"host"`
}

// Kinds of causes.
const (
	KindError  = "error"
	KindPanic  = "panic"
	KindSignal = "signal"
	KindDied   = "died" // its connection ended without goodbye
	KindCut    = "cut"  // nothing comes through to its host
	KindHang   = "hang"
)

// NoWord is the text of the cause of a rank whose process has ended, and
// nothing else is known of it.
const NoWord = "the process ended without a word"

// Cause says why a job ends, and at which rank that began.
type Cause struct {
	Hello
	Kind string    `json:"kind"`
	Text string    `json:"text"`
	Time time.Time `json:"time"`
}

// RankState is what a report says of one rank.
type RankState struct {
	Hello
	State  json.RawMessage `json:"state,omitempty"`  // from its Config.State; nil if none came
	Silent bool            `json:"silent,omitempty"` // connected, and neither answers nor beats
	Died   bool            `json:"died,omitempty"`   // its connection ended without goodbye
	Left   bool            `json:"left,omitempty"`   // it said goodbye
	// of a rank without answer, seen by another of its node: "T (stopped)"
	ProcState string `json:"procState,omitempty"`
	Note      string `json:"note,omitempty"` // why State is missing, where that is known
}

// Limits of a state and of a cause's text.
const (
	MaxState     = 256 << 10 // bytes of JSON, and less in jobs so large that all states pass maxStates
	maxStates    = 64 << 20
	maxCauseText = 16 << 10
	manyRanks    = 512
	spareFiles   = 32 // descriptors for what the process opens beside connections to ranks
)

// Times within which the ranks hear of each other.
const (
	joinLimit  = time.Minute      // of Join, for a context without deadline
	shakeLimit = 5 * time.Second  // of a handshake
	cutLimit   = 30 * time.Second // until a connection without acknowledgements counts as cut
	// in which the hub waits for an earlier cause: a death makes other ranks fail
	settleTime    = 100 * time.Millisecond
	standInTime   = 600 * time.Millisecond // after which the stand-in decides, if the hub has not
	orphanTime    = 900 * time.Millisecond // after which a rank decides that lost a hub
	tellLimit     = 300 * time.Millisecond // for the ranks to confirm the cause, before the hub's own rank ends
	tellWarned    = 50 * time.Millisecond  // the same, where a rank had warned of it
	failLimit     = time.Second            // of Fail, and of each half of Done
	gatherLimit   = 3 * time.Second        // for the ranks to say their state
	quietLimit    = time.Second            // the same, for ranks that have been quiet before
	lookLimit     = 500 * time.Millisecond // for a rank to look at processes of its node
	deliverLimit  = 5 * time.Second        // for a report to travel
	defaultBeat   = time.Second            // twice that in a job of more than manyRanks: the hub hears all of them
	defaultSilent = 5 * time.Second
)

// Config describes a rank's part in the network. Size, Key and Hubs are the same on every rank.
type Config struct {
	Me   Hello
	Size int
	Key  [32]byte   // random, from rank 0
	Hubs [][]string // Addrs of the listeners of rank 0 and, with two ranks or more, of rank 1

	// Listener is this rank's, on ranks 0 and 1. Join takes it over, and closes it
	// when every rank has joined.
	Listener *Listener

	// State returns what this rank does, as JSON of at most MaxState bytes. It is called for each
	// report, on a goroutine of its own, never twice at a time; it may panic or hang, which the
	// report then shows. May be nil.
	State func() []byte

	// Account returns what this rank has to say when the job ends, in as many bytes as it likes. It
	// is called for each question, on a goroutine of its own. May be nil.
	Account func() []byte

	// OnEnd is called once, on a goroutine of its own, when the job is to end, with the cause
	// that every rank gets; possibly before Join has returned, and not any more when Close
	// has. On ranks 0 and 1 it comes when the other ranks have the cause, so that the process
	// may end at once. May be nil.
	OnEnd func(Cause)

	// OnSilent is called, on rank 0 or where that is silent itself on rank 1, when ranks
	// have not been heard of for twice Silence, once until they are heard of again. who is
	// "ranks 2-3 on h1". The connection may come back, or be cut, which OnEnd tells after 30
	// s. May be nil; must return soon.
	OnSilent func(who string)

	// Heartbeat returns what rides on the next sign of life to rank 0, or where that has gone to
	// rank 1, at most MaxState bytes of JSON, nil for nothing; it is called by one goroutine.
	// OnHeartbeat gets it there, called by a goroutine for each rank, or for each node; it must
	// return soon, and must not wait for Fail. Both may be nil.
	Heartbeat   func() []byte
	OnHeartbeat func(rank int, heartbeat []byte)

	// Carry is called on a rank that carries the heartbeats of its node, by one goroutine, with
	// what the ranks have said since the last time, which may be nothing. It returns what goes on.
	// May be nil: then all of it does.
	Carry func([]Beat) []Beat

	Beat    time.Duration // between two signs of life; 0 means 1 s, and 2 s in a job of more than 512 ranks
	Silence time.Duration // without sign of life, after which a rank is silent; 0 means 5 s

	standIn time.Duration // standInTime, other in tests
	carry   bool          // also in a job that is not large; in tests
}

func (c *Config) check() error {
	if c.Beat == 0 {
		c.Beat = defaultBeat
		if c.Size > manyRanks {
			c.Beat = 2 * defaultBeat
		}
	}
	if c.Silence == 0 {
		c.Silence = defaultSilent
	}
	if c.standIn == 0 {
		c.standIn = standInTime
	}
	switch {
	case c.Size < 1:
		return fmt.Errorf("watch: a job of %d ranks", c.Size)
	case c.Me.Rank < 0 || c.Me.Rank >= c.Size:
		return fmt.Errorf("watch: rank %d of %d", c.Me.Rank, c.Size)
	case c.Key == [32]byte{}:
		return errors.New("watch: the key is all zeros")
	case len(c.Hubs) != min(2, c.Size):
		return fmt.Errorf("watch: addresses of %d hubs for %d ranks, not of %d", len(c.Hubs), c.Size, min(2, c.Size))
	case c.isHub() != (c.Listener != nil):
		return fmt.Errorf("watch: rank %d: listeners belong to ranks 0 and 1, and to these alone", c.Me.Rank)
	case c.Beat < 0 || c.Silence < 2*c.Beat:
		return fmt.Errorf("watch: silence after %v with beats each %v: want two beats or more", c.Silence, c.Beat)
	}
	return c.checkFiles()
}

// checkFiles refuses a job for whose connections a hub has not enough
// descriptors: some ranks could not join.
func (c *Config) checkFiles() error {
	var files unix.Rlimit
	if !c.isHub() || unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return nil
	}
	open, err := os.ReadDir("/proc/self/fd")
	if need := uint64(c.Size + len(open) + spareFiles); err == nil && need > files.Cur {
		return fmt.Errorf("watch: rank %d keeps a connection to each of %d ranks, and ulimit -n is %d here: raise "+
			"it to %d or more",
			c.Me.Rank, c.Size, files.Cur, need)
	}
	return nil
}

func (c *Config) isHub() bool { return c.Me.Rank < len(c.Hubs) }
