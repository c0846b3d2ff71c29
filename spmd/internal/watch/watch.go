// Package watch is the control channel of a job: a small TCP network beside MPI, which goes on
// working when MPI, CUDA or the program hangs. It tells every rank why the job ends, and asks every
// rank what it does.
//
// Rank 0 is the hub and rank 1 its stand-in. Every rank keeps a connection to both. Both sides
// prove it with a key that travelled by MPI; later messages on it are not encrypted. In a large job
// one rank carries the heartbeats of its node.
//
// A connection that ends without goodbye is a death, and the job's end. A rank that is only silent,
// as a stopped process is, stays connected.
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

// These are the kinds of causes.
const (
	KindError  = "error"
	KindPanic  = "panic"
	KindSignal = "signal"
	KindDied   = "died" // its connection ended without goodbye
	KindCut    = "cut"  // nothing comes through to its host
	KindHang   = "hang"
)

// NoWord is the text of the cause if a process has ended and nothing else is known.
const NoWord = "the process ended without a word"

// Cause says why a job ends, and at which rank that began.
type Cause struct {
	Hello
	Kind string    `json:"kind"`
	Text string    `json:"text"`
	Time time.Time `json:"time"`
}

// RankState is the part of a report about one rank.
type RankState struct {
	Hello
	State  json.RawMessage `json:"state,omitempty"`  // from its Config.State; nil if none came
	Silent bool            `json:"silent,omitempty"` // connected, and neither answers nor beats
	Died   bool            `json:"died,omitempty"`   // its connection ended without goodbye
	Left   bool            `json:"left,omitempty"`   // it said goodbye
	// of a rank without answer, as another of its node sees it: "T (stopped)"
	ProcState string `json:"procState,omitempty"`
	Note      string `json:"note,omitempty"` // why State is missing, if known
}

// These limit a state and a cause's text.
const (
	MaxState     = 256 << 10 // bytes of JSON, less in jobs whose states together would pass maxStates
	maxStates    = 64 << 20
	maxCauseText = 16 << 10
	manyRanks    = 512
	spareFiles   = 32 // descriptors for what the process opens beside connections to ranks
)

// These are the times within which the ranks hear of each other.
const (
	joinLimit  = time.Minute      // of Join, for a context without deadline
	shakeLimit = 5 * time.Second  // of a handshake
	cutLimit   = 30 * time.Second // until a connection without acknowledgements counts as cut
	// the hub waits so long for an earlier cause, since a death makes other ranks fail
	settleTime   = 100 * time.Millisecond
	standInTime  = 600 * time.Millisecond // until the stand-in decides, if the hub has not
	orphanTime   = 900 * time.Millisecond // after which a rank decides that lost a hub
	tellLimit    = 300 * time.Millisecond // for the ranks to confirm the cause, before the hub's own rank ends
	tellWarned   = 50 * time.Millisecond  // the same, where a rank had warned of it
	failLimit    = time.Second            // of Fail, and of each half of Done
	gatherLimit  = 3 * time.Second        // for the ranks to say their state
	quietLimit   = time.Second            // the same, for ranks that have been quiet before
	lookLimit    = 500 * time.Millisecond // for a rank to look at processes of its node
	deliverLimit = 5 * time.Second        // for a report to travel
	// twice that in a job of more than manyRanks, since the hub hears all of them
	defaultBeat   = time.Second
	defaultSilent = 5 * time.Second
)

// Config describes a rank's part in the network. Size, Key and Hubs are the same on every rank.
type Config struct {
	Me   Hello
	Size int
	Key  [32]byte   // random, from rank 0
	Hubs [][]string // Addrs of the listeners of rank 0 and, if there is one, rank 1

	// Listener is this rank's, on ranks 0 and 1. Join takes it over, and closes it when every
	// rank has joined.
	Listener *Listener

	// State returns what this rank does, as JSON of at most MaxState bytes. A goroutine calls
	// it for each report, never twice at a time. It may panic or hang, which the report then
	// shows. May be nil.
	State func() []byte

	// Account returns this rank's last words when the job ends, of any length. A goroutine calls it
	// for each question. May be nil.
	Account func() []byte

	// OnEnd is called once when the job is to end, on a goroutine of its own, with the cause that
	// every rank gets. It may come before Join has returned, and does not come after Close. On
	// ranks 0 and 1 it comes when the other ranks have the cause, so that the process may end at
	// once. May be nil.
	OnEnd func(Cause)

	// OnSilent is called on rank 0, or on rank 1 if rank 0 is silent, when ranks were silent
	// for twice Silence. It comes once until they are heard of again. who is "ranks 2-3 on
	// h1". The connection may come back, or be cut, which OnEnd tells after 30 s. May be nil;
	// must return soon.
	OnSilent func(who string)

	// Heartbeat returns at most MaxState bytes of JSON, or nil, for the next sign of life to
	// rank 0, or to rank 1 if rank 0 has gone. One goroutine calls it. OnHeartbeat gets it
	// there, on a goroutine for each rank or node. It must return soon, and must not wait for
	// Fail. Both may be nil.
	Heartbeat   func() []byte
	OnHeartbeat func(rank int, heartbeat []byte)

	// Carry is called on a rank that carries the heartbeats of its node, by one goroutine, with
	// the heartbeats since the last time, perhaps none. It returns what goes on. If it is nil,
	// all of it does.
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

// checkFiles refuses a job if a hub lacks descriptors for its connections: some ranks
// could not join.
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
