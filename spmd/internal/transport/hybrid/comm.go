// Package hybrid carries calls between ranks of several processes that each have several ranks, which are goroutines. Those of
// a process meet in its memory, and one of them speaks for them to the other processes, through MPI.
package hybrid

import (
	"cmp"
	"hash/fnv"
	"slices"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/inproc"
)

// Comm is a communicator, on one of its ranks. It is a transport.Host, used by one goroutine at a time.
type Comm struct {
	*layout
	transport.Calls
	open     *opened
	id       uint64 // the same on all its ranks
	rank     int
	local    *inproc.Comm // of its ranks in this process
	splits   int
	turn     uint64 // of its collectives
	work     [4][]byte
	off      []int
	counts   []int
	starts   []int
	sources  []unsafe.Pointer
	list     []coll.Call
	wanted   wanted
	sending  []*transfer
	under    int   // of sending, under way
	differs  error // of a call whose rounds go on
	crossing crossing
}

// layout is which ranks a communicator has, and where.
type layout struct {
	place   []place
	process []int   // those that have ranks of it, by their lowest rank
	members [][]int // their ranks, in the order of the communicator in the process
	mine    int     // this process's place among them
	orderly bool    // the ranks of a process follow each other, and the processes too
}

// place is where a rank of a communicator is.
type place struct {
	process int // of layout.process
	local   int // its rank in there
	number  int // of the process
}

// newWorld is the communicator of all ranks, on one of them.
func newWorld(o *opened, here int, local *inproc.Comm) *Comm {
	processes := make([]int, len(o.nodes)*here)
	for r := range processes {
		processes[r] = r / here
	}
	return newComm(o, 1, processes, o.process*here+local.Rank(), local)
}

// newComm is a communicator of ranks of these processes, on one of its ranks. local has those of this process, in their order.
func newComm(o *opened, id uint64, processes []int, rank int, local *inproc.Comm) *Comm {
	l := &layout{place: make([]place, len(processes))}
	for r, number := range processes {
		at := slices.Index(l.process, number)
		if at < 0 {
			at = len(l.process)
			l.process, l.members = append(l.process, number), append(l.members, nil)
		}
		l.place[r] = place{at, len(l.members[at]), number}
		l.members[at] = append(l.members[at], r)
	}
	l.mine = l.place[rank].process
	l.orderly = slices.IsSortedFunc(l.place, func(a, b place) int { return cmp.Compare(a.process, b.process) })
	return l.comm(o, id, rank, local)
}

// comm is a communicator of these ranks, on one of them.
func (l *layout) comm(o *opened, id uint64, rank int, local *inproc.Comm) *Comm {
	c := &Comm{layout: l, open: o, id: id, rank: rank, local: local}
	c.Of = c
	return c
}

// Rank returns this rank's number.
func (c *Comm) Rank() int { return c.rank }

// Size returns the number of ranks.
func (c *Comm) Size() int { return len(c.place) }

// derived is the id of a communicator that is made of c.
func (c *Comm) derived(color int) uint64 {
	h := fnv.New64a()
	for _, v := range [...]uint64{c.id, uint64(c.splits), uint64(color)} {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8))
	}
	return h.Sum64()
}

// Dup implements transport.Host. It waits for nobody.
func (c *Comm) Dup() (transport.Host, error) {
	c.splits++
	local, err := c.local.Dup()
	if err != nil {
		return nil, err
	}
	return c.layout.comm(c.open, c.derived(-1), c.rank, local.(*inproc.Comm)), nil
}

// SplitShared implements transport.Host.
func (c *Comm) SplitShared() (transport.Host, error) {
	all := make([]asked, c.Size())
	for r, p := range c.place {
		all[r] = asked{int64(c.open.nodes[p.number]), int64(r), int64(r)}
	}
	return c.split(all)
}

// asked is what a rank asks of a split.
type asked struct{ color, key, rank int64 }

// Split implements transport.Host.
func (c *Comm) Split(color, key int) (transport.Host, error) {
	all := make([]asked, c.Size())
	mine := asked{int64(color), int64(key), int64(c.rank)}
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine), 3, elem.Int64); err != nil {
		return nil, err
	}
	return c.split(all)
}

// split is Split where this rank knows what all have asked for.
func (c *Comm) split(all []asked) (transport.Host, error) {
	c.splits++
	mine := all[c.rank]
	all = slices.DeleteFunc(all, func(a asked) bool { return a.color != mine.color })
	slices.SortStableFunc(all, func(a, b asked) int { return cmp.Compare(a.key, b.key) })
	rank := slices.Index(all, mine)
	local, err := c.local.Split(int(mine.color), rank)
	if err != nil || local == nil {
		return nil, err
	}
	processes := make([]int, len(all))
	for i, a := range all {
		processes[i] = c.place[a.rank].number
	}
	return newComm(c.open, c.derived(int(mine.color)), processes, rank, local.(*inproc.Comm)), nil
}

// Abort implements transport.Host.
func (c *Comm) Abort(status int) { cudampi.Abort(status) }

// Name implements transport.Transport.
func (c *Comm) Name() string { return "hybrid" }

// Caps implements transport.Transport: those of the ranks of a process.
func (c *Comm) Caps() *transport.Caps { return c.local.Caps() }

// failed is the error of a call on this rank.
func (c *Comm) failed(call *coll.Call, err error) error { return transport.Failed(call, c.rank, err) }
